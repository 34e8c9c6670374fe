// Launching kernels: blocks are spread over OpenMP threads, and each runs one block to its end before it takes the next.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#endif

#include <atomic>
#include <exception>
#include <tuple>
#include <type_traits>
#include <utility>

#include "block_run.h"
#include "runtime_types.h"
#include "streams.h"

namespace emulator {

/// Throws if a GPU would refuse the launch.
inline void check_launch(const Kernel& kernel) {
    if (kernel.threads <= 0 || kernel.threads > MAX_THREADS)
        throw Error(join(kernel.name(), ": ", kernel.threads, " threads per block; there may be 1 to ", MAX_THREADS));
    if (kernel.threads % LANES)
        throw Error(join(kernel.name(), ": ", kernel.threads, " threads per block are not a multiple of ", LANES));
    if (kernel.blocks() == 0 || kernel.grid.x > 0x7fffffff || kernel.grid.y > 0xffff || kernel.grid.z > 0xffff)
        throw Error(join(kernel.name(), ": a grid of (", kernel.grid.x, ",", kernel.grid.y, ",", kernel.grid.z,
                         ") blocks; there may be 1 to (2147483647,65535,65535)"));
    if (kernel.shared > max_shared())
        throw Error(join(kernel.name(), ": ", kernel.shared, " bytes of shared memory; a block may have ", max_shared()));
}

/// The block that starts as number i. Some seeds go backwards or jump: blocks must not depend on each other's order.
inline size_t block_number(size_t i, size_t blocks) {
    const uint64_t seed = options().seed;
    if (seed == 0) return i;
    if (seed == 1) return blocks - 1 - i;
    return size_t((i * 2654435761ull + seed) % blocks);   // a prime larger than any grid here: every block exactly once
}

inline int worker_count() {
#if defined(_OPENMP) && !EMULATOR_TSAN   // ThreadSanitizer does not understand libgomp; it finds races with one worker, too
    return options().threads ? options().threads : omp_get_max_threads();
#else
    return 1;
#endif
}

/// Runs all blocks on this machine and returns when they have ended. Throws the first error.
inline void run_blocks(const Kernel& kernel) {
    Progress progress;
    std::exception_ptr error;
    const size_t blocks = kernel.blocks();
    [[maybe_unused]] const int workers = worker_count();
    release(this_worker().launch_sign);
#pragma omp parallel for schedule(dynamic) num_threads(workers) if (blocks > 1 && workers > 1)
    for (size_t i = 0; i < blocks; i++) {
        if (progress.failed) continue;
        const size_t number = block_number(i, blocks);
        const uint3 index{unsigned(number % kernel.grid.x), unsigned(number / kernel.grid.x % kernel.grid.y),
                          unsigned(number / (size_t(kernel.grid.x) * kernel.grid.y))};
        progress.running++;
        try {
            this_worker().run(kernel, progress, index, number);
        } catch (...) {
            if (!progress.failed.exchange(true)) error = std::current_exception();
        }
        progress.running--;
    }
    for (Block& block : this_worker().blocks)
        for (char& sign : block.signs) acquire(sign);
    if (error) std::rethrow_exception(error);
}

/// Whether this launch is to fail, as on a defective GPU (EMULATED_GPU_FAILS_AT).
inline bool refused() {
    static std::atomic<uint64_t> launches{0};
    if (++launches != options().failing_launch) return false;
    last_error = cudaErrorLaunchFailure;
    return true;
}

/// kernel<<<grid, threads, shared, stream>>>(arguments...), launched at `at`.
template <class... Parameters>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared, Location at,
            std::type_identity_t<Parameters>... arguments) {
    if (refused()) return;
    auto body = [kernel, values = std::tuple<std::decay_t<Parameters>...>(std::move(arguments)...)] { std::apply(kernel, values); };
    Kernel launched{at, grid, threads, shared, std::move(body)};
    check_launch(launched);
    enqueue(stream, [launched = std::move(launched)] { run_blocks(launched); }, at);
}

/// The shared memory of the calling thread's block.
inline void* dynamic_shared() { return worker->block->shared.begin(); }

}   // namespace emulator
