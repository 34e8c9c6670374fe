// Pairs of half-precision values in one register, added, multiplied or both by one instruction: eleven bits of precision, values up to
// 65504. For computations that are limited by instructions and need no more than three digits.
#pragma once
#include "attention/kernel/mma.cuh"

struct Halves {
    uint32_t bits;
};

/// Rounded to the nearest.
__device__ __forceinline__ Halves make_halves(float low, float high) {
#if defined(__CUDACC__)
    Halves pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair.bits) : "f"(high), "f"(low));
    return pair;
#else
    return {emulator::f16x2_of_floats(low, high)};
#endif
}
__device__ __forceinline__ float2 floats_of(Halves pair) {
#if defined(__CUDACC__)
    float2 both;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(both.x), "=f"(both.y)
        : "r"(pair.bits));
    return both;
#else
    return emulator::floats_of_f16x2(pair.bits);
#endif
}

/// a b + c, rounded once.
__device__ __forceinline__ Halves fma_of(Halves a, Halves b, Halves c) {
#if defined(__CUDACC__)
    Halves result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result.bits) : "r"(a.bits), "r"(b.bits), "r"(c.bits));
    return result;
#else
    return {emulator::fma_f16x2(a.bits, b.bits, c.bits)};
#endif
}
__device__ __forceinline__ Halves operator*(Halves a, Halves b) {
#if defined(__CUDACC__)
    Halves result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(a.bits), "r"(b.bits));
    return result;
#else
    return {emulator::fma_f16x2(a.bits, b.bits, 0x80008000)};   // -0: adding it changes no bit
#endif
}
__device__ __forceinline__ Halves operator+(Halves a, Halves b) {
#if defined(__CUDACC__)
    Halves result;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result.bits) : "r"(a.bits), "r"(b.bits));
    return result;
#else
    return {emulator::fma_f16x2(a.bits, 0x3c003c00, b.bits)};   // times 1
#endif
}
__device__ __forceinline__ Halves operator-(Halves a) {
#if defined(__CUDACC__)
    Halves result;
    asm("neg.f16x2 %0, %1;" : "=r"(result.bits) : "r"(a.bits));   // folded into the instruction that reads it
    return result;
#else
    return {a.bits ^ 0x80008000};
#endif
}

/// tanh with an error of 2^-10.987, according to the PTX ISA.
__device__ __forceinline__ Halves tanh_of(Halves a) {
#if defined(__CUDACC__)
    Halves result;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(result.bits) : "r"(a.bits));
    return result;
#else
    return {emulator::tanh_f16x2(a.bits)};
#endif
}

/// x in both halves.
__device__ __forceinline__ Halves both_halves(float x) { return make_halves(x, x); }
