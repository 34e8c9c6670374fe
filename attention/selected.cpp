// The variant that a trainer is linked with: this file compiled with -DATTENTION=NAME, and once more with
// -DOF_GPU for programs with a GPU half.
#include "attention/variant.h"

#ifdef OF_GPU
namespace on_gpu {
extern const Variant ATTENTION;
}
const Variant& the_attention_on_gpu = on_gpu::ATTENTION;
#else
namespace on_cpu {
extern const Variant ATTENTION;
}
const Variant& the_attention = on_cpu::ATTENTION;
#endif
