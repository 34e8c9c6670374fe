// Times the attention layer of sparse variants on the CPU against dense causal attention of the same size (patterns.cuh):
//   make build/dev/bench_patterns && build/dev/bench_patterns [T [WORD]]
// float32, one sequence, the fastest of as many runs as two seconds hold, three at least. WORD: only variants with it.
#include <algorithm>
#include <cmath>

#include "dev/patterns.cuh"
#include "model/base/options.h"
#include "model/base/text.h"
#include "model/device/machine.h"

namespace {

/// The fastest of three runs or more, as many as two seconds hold: on a CPU other processes only ever add to the time.
template <class Work>
double fastest(const Work& work) {
    work();
    double best = INFINITY;
    const Stopwatch all;
    for (int n = 0; n < 3 || all.seconds() < 2; n++) {
        const Stopwatch watch;
        work();
        best = std::min(best, watch.seconds());
    }
    return best;
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    return run_program("bench_patterns", [&] {
        const PatternOptions options(argc, argv);
        const int threads = use_threads(0, 1);
        std::printf("%s, float32; ", describe_cpu(threads).c_str());
        print_patterns<float>(CPU{}, all_variants(), 1, 4, 2, options, [](const auto& work) { return fastest(work); });
    });
}
