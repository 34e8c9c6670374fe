// CUDA's additions to C++ inside kernels: keywords, arithmetic, cached loads, barriers. Warp operations and atomics have their own
// files.
#pragma once
#include <bit>
#include <chrono>
#include <cmath>
#include <type_traits>

#include "atomics.h"
#include "meetings.h"
#include "vectors.h"

// ---- keywords. Not __noinline__, which the C++ library uses itself, and not __shared__: kernels take dynamic_shared().
#define __global__
#define __device__
#define __constant__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// ---- fast functions. glibc's <math.h> declares functions of these names without defining them, so they have to be macros.
#define __expf(x) expf(x)
#define __logf(x) logf(x)

constexpr float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / std::sqrt(a); }

// CUDA has more of these, for arguments of two types. Here mixed arguments do not compile.
constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
constexpr unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
constexpr long min(long a, long b) { return a < b ? a : b; }
constexpr long max(long a, long b) { return a > b ? a : b; }
constexpr unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
constexpr unsigned long max(unsigned long a, unsigned long b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

// ---- bits
constexpr unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
constexpr float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
constexpr int __popc(unsigned x) { return std::popcount(x); }
constexpr int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }

// ---- loads and stores with a hint for the caches. __ldcg and __stcg bypass the first-level cache, so that blocks see each
// other's values: numbers of four and eight bytes are read and written as atomics, and can be flags.
template <class T>
T __ldcs(const T* from) {
    return *from;
}
template <class T>
T __ldcg(const T* from) {
    if constexpr (emulator::AtomicNumber<T>) return emulator::load(from);
    else return *from;
}
template <class T>
void __stcs(T* to, std::type_identity_t<T> value) {
    *to = value;
}
template <class T>
void __stcg(T* to, std::type_identity_t<T> value) {
    if constexpr (emulator::AtomicNumber<T>) std::atomic_ref<T>(*to).store(value, std::memory_order_relaxed);
    else *to = value;
}

// ---- barriers
inline void __syncthreads(emulator::Location at = emulator::Location::current()) {
    emulator::meet(emulator::worker->block->barrier, "__syncthreads", nullptr, at, [] {});
}
inline void __syncwarp(unsigned mask = 0xffffffff, emulator::Location at = emulator::Location::current()) {
    emulator::require_all_lanes("__syncwarp", mask, at);
    emulator::meet(*emulator::self->warp, "__syncwarp", nullptr, at, [] {});
}
/// Lets others run meanwhile: the only way to wait for another block.
inline void __nanosleep(unsigned /*nanoseconds*/, emulator::Location at = emulator::Location::current()) { emulator::nap(at); }

/// A clock of 1 GHz.
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

[[noreturn]] inline void __trap(emulator::Location at = emulator::Location::current()) { emulator::fail_at(at, "__trap()"); }
