// Device tags. Every operation is a set of overloads on a tag, with the same name and argument order: device, outputs, inputs,
// sizes. X is the type of weights and activations: float on the CPU (double for the tests' oracle), bf16 or float on the GPU.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "model/device/math.h"

// GPU code is compiled by nvcc, or by any C++ compiler with -DEMULATED_GPU (dev/emulator).
#if defined(__CUDACC__) || defined(EMULATED_GPU)
#define WITH_GPU 1
#include "model/device/gpu.cuh"

/// Where a program lacks GPU_FLOAT32: models on a GPU are in bf16.
inline constexpr const char* no_float32_kernels = "this program has only bf16 kernels; use --device cpu, or build it with make FLOAT32=1";
#endif

/// OpenMP threads and CBLAS.
struct CPU {
    static constexpr const char* name = "cpu";
};

/// Wide<X>: the type of an X model's sums, statistics, weight gradients, master weights and moments; float32 for bf16.
template <class X>
using Wide = std::conditional_t<sizeof(X) == 2, float, X>;

/// Converts between the storage type X and the arithmetic type Wide<X>.
template <class X>
constexpr Wide<X> widened(X x) {
    if constexpr (std::is_same_v<X, Wide<X>>) return x;
    else return to_float(x);
}
template <class X>
constexpr X narrowed(Wide<X> x) {
    if constexpr (std::is_same_v<X, Wide<X>>) return x;
    else return from_float<X>(x);
}

/// Whether a gradient overwrites its buffer (first micro-step) or is added to it (later ones).
enum class Write : bool { overwrite, add };

/// x (n) = value.
template <class X>
void fill(CPU, X* x, size_t n, X value) {
    std::fill(x, x + n, value);
}

/// A CPU's team: one thread alone.
template <class X>
class ThreadTeam {
public:
    explicit ThreadTeam(size_t scratch) : scratch_(std::make_unique_for_overwrite<X[]>(scratch)) {}
    static constexpr int first() { return 0; }
    static constexpr int step() { return 1; }
    static void sync() {}
    template <class N>
    static N sum(N x) {
        return x;
    }
    static X max(X x) { return x; }
    static int place(bool yes, int& count) { return std::exchange(count, count + yes); }
    static X product(const X* x, const X* y, int n) { return inner_product(x, y, n); }
    static X joint_product(const X* x, const X* y, int n) { return inner_product(x, y, n); }
    X* scratch() const { return scratch_.get(); }

private:
    std::unique_ptr<X[]> scratch_;
};

/// Calls task(team, n) for every n < teams: one text for both devices where several threads compute one result. A GPU's teams have WARPS
/// warps. A task is a struct of pointers and values with a type Number, that of its sums, and a constexpr operator() template. A member
/// takes the elements first(), first() + step(), .. of a loop; sync() makes what all have written visible to all. sum() and max() of the
/// members' numbers, and joint_product(), an inner product, are computed together; product() by a member alone. place() returns the place
/// of a member with `yes` in a list of `count` entries so far, behind those of lower members, and adds all members with `yes` to count.
/// scratch() is memory that the members share, `scratch` numbers. On the CPU a few small teams, as in a step of decoding, are not worth
/// waking threads.
template <int WARPS, class Task>
void each_team(CPU, size_t teams, const Task& task, size_t scratch = 0) {
#pragma omp parallel if (teams > 32 || WARPS > 4)
    {
        const ThreadTeam<typename Task::Number> team(scratch);
#pragma omp for
        for (size_t n = 0; n < teams; n++) task(team, unsigned(n));
    }
}
