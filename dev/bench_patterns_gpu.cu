// Times the attention layer of sparse variants on a GPU against dense causal attention of the same size (patterns.cuh):
//   make build/dev/bench_patterns_gpu && build/dev/bench_patterns_gpu [T [WORD]]
// bf16, medians of ten runs that start on cold caches (timing.cuh). WORD: only variants with it.
#include "dev/patterns.cuh"
#include "dev/timing.cuh"
#include "model/base/options.h"
#include "model/device/machine.h"

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("bench_patterns_gpu", [&] {
        const PatternOptions options(argc, argv);
        const OpenGpu gpu(0, false);
        Bench bench(gpu.device(), {.repeats = 10});
        std::printf("%s, bf16; ", describe(gpu.device(), 0).c_str());
        auto median = [&](const auto& work) { return bench.time(work).seconds; };
        print_patterns<bf16>(gpu.device(), all_variants_on_gpu(), 2, 16, 8, options, median);
    });
}
