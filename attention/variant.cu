// One attention variant: compiled with -DATTENTION=asga, for instance, this is all of asga that a program is linked with. A C++
// compiler compiles the CPU's half, nvcc (or a C++ compiler with -DEMULATED_GPU) the GPU's, into different objects; with
// CPU_AND_GPU both are in one (train_gpt.cu).
#include "attention/attention.h"
#include "attention/layer_of.h"

#if !defined(WITH_GPU) || defined(CPU_AND_GPU)
namespace on_cpu {
extern const Variant ATTENTION;
const Variant ATTENTION = variant_of<CpuLayer, ::ATTENTION>;
}   // namespace on_cpu
#endif

#ifdef WITH_GPU
namespace on_gpu {
extern const Variant ATTENTION;
const Variant ATTENTION = variant_of<GpuLayer, ::ATTENTION>;
}   // namespace on_gpu
#endif
