// One attention variant: compiled with -DATTENTION=asga, for instance, this is all of asga that a program is linked with. A C++
// compiler compiles the CPU's half, nvcc (or a C++ compiler with -DEMULATED_GPU) the GPU's, into different objects.
#include "attention/attention.h"
#include "attention/layer_of.h"

// Registered before objects of other units are initialised, such as the test cases of all variants.
#ifdef WITH_GPU
namespace on_gpu {
extern const Variant ATTENTION;
const Variant ATTENTION = variant_of<GpuLayer, ::ATTENTION>;
__attribute__((init_priority(200))) static const Registered registered(ATTENTION, true);
}   // namespace on_gpu
#else
namespace on_cpu {
extern const Variant ATTENTION;
const Variant ATTENTION = variant_of<CpuLayer, ::ATTENTION>;
__attribute__((init_priority(200))) static const Registered registered(ATTENTION, false);
}   // namespace on_cpu
#endif
