// Times the attention layer of sparse variants on the CPU against dense causal attention of the same size (patterns.cuh):
//   make build/dev/bench_patterns && build/dev/bench_patterns [T [WORD]]
// float32, one sequence, the fastest of as many runs as two seconds hold, three at least. WORD: only variants with it.
#include "dev/patterns.cuh"
#include "model/base/options.h"
#include "model/device/machine.h"

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    return run_program("bench_patterns", [&] {
        const PatternOptions options(argc, argv);
        const int threads = use_threads(0, 1);
        auto time = [](const auto& work) { return fastest(work, 2); };
        std::printf("%s, float32; ", describe_cpu(threads).c_str());
        print_patterns<float>(CPU{}, all_variants(), 1, 4, 2, options, time);
    });
}
