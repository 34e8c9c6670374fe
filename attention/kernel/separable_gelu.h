// GELU of a sum as a sum of products, so that a gate of hidden units is a product of matrices. GELU(x) - x/2 is even; for |x| <= R
//     GELU(x) ~ c0 + x/2 + c x^2 + sum_{n<3} s_n cos(w_n x)
// and each term of x = a + b splits into a function of a times one of b:
//     GELU(a + b) ~ sum_{n<4} <phi_n(a), psi_n(b)> + chi(b)                      <,> of two numbers, eight numbers in all
//     phi_n(a) = (cos w_n a, sin w_n a)         psi_n(b) = (s_n cos w_n b, -s_n sin w_n b)        n < 3
//     phi_3(a) = (a, a^2)                       psi_3(b) = (2 c b + 1/2, c)
//     chi(b) = c0 + b/2 + c b^2
// The derivative by a needs no other numbers: phi_n' = w_n (-sin, cos), phi_3' = (1, 2 a); likewise that by b, where
// chi'(b) is the first number of psi_3(b). dev/separable_gelu.py derives the numbers below.
#pragma once
#include <cmath>

#include "attention/mechanism.h"
#include "model/device/gpu.cuh"

struct SeparableGelu {
    static constexpr int PAIRS = 4, NUMBERS = 2 * PAIRS;

    float frequency[3], amplitude[3];
    float square, constant;

    /// The numbers for the smallest R of the table that suffices.
    static __device__ SeparableGelu for_reach(float reach);

    /// phi_n(a).
    __device__ float2 phi(float a, int n) const {
        if (n == 3) return make_float2(a, a * a);
        return cos_and_sin(number(frequency, n) * a);
    }
    /// psi_n(b).
    __device__ float2 psi(float b, int n) const {
        if (n == 3) return make_float2(fmaf(2 * square, b, 0.5f), square);
        const float2 wave = cos_and_sin(number(frequency, n) * b);
        return make_float2(number(amplitude, n) * wave.x, -number(amplitude, n) * wave.y);
    }
    __device__ float chi(float b) const { return fmaf(fmaf(square, b, 0.5f), b, constant); }

    /// <d phi_n(a) / da, of>, given phi_n(a).
    __device__ float phi_slope(float2 phi, int n, float2 of) const {
        return n == 3 ? fmaf(2 * phi.x, of.y, of.x) : number(frequency, n) * (phi.x * of.y - phi.y * of.x);
    }
    /// <d psi_n(b) / db, of>, given psi_n(b).
    __device__ float psi_slope(float2 psi, int n, float2 of) const {
        return n == 3 ? 2 * square * of.x : number(frequency, n) * (psi.y * of.x - psi.x * of.y);
    }

private:
    /// Number n, which may differ between the lanes of a warp: registers cannot be indexed.
    static __device__ float number(const float (&numbers)[3], int n) { return n == 0 ? numbers[0] : n == 1 ? numbers[1] : numbers[2]; }

    /// Off by about 2^-20 at angles up to 4 MOST_REACH, and rounded to 2^-11 later.
    static __device__ float2 cos_and_sin(float angle) {
#if defined(__CUDACC__)
        float2 both;
        __sincosf(angle, &both.y, &both.x);
        return both;
#else
        return make_float2(std::cos(angle), std::sin(angle));
#endif
    }
};

/// For R of 3 to 8. The comments say by how much value and slope are off at most.
static __constant__ const SeparableGelu SEPARABLE_GELU[] = {
    {{1.2304257f, 2.3377685f, 3.5950507f}, {-0.27711207f, -0.027509388f, -0.0008812369f}, 0.10832043f, 0.3055009f},     // 1.8e-6, 6.0e-6
    {{1.1067313f, 2.1076753f, 3.1930083f}, {-0.31915218f, -0.04253832f, -0.0026201202f}, 0.095317356f, 0.36434344f},    // 3.3e-5, 1.5e-4
    {{0.98469998f, 1.8813338f, 2.8127548f}, {-0.36555874f, -0.06212844f, -0.0067005841f}, 0.083210783f, 0.43465867f},   // 2.7e-4, 1.0e-3
    {{0.87774021f, 1.6839366f, 2.4978874f}, {-0.41216962f, -0.083269342f, -0.013582246f}, 0.073096122f, 0.51013245f},   // 1.1e-3, 3.8e-3
    {{0.78705511f, 1.5166616f, 2.2411933f}, {-0.45810946f, -0.10407678f, -0.022826607f}, 0.064844518f, 0.58810258f},    // 3.1e-3, 1.0e-2
    {{0.71024473f, 1.3751142f, 2.0289412f}, {-0.50397111f, -0.12375869f, -0.033887777f}, 0.058043522f, 0.66809755f}};   // 6.5e-3, 2.2e-2

__device__ __forceinline__ SeparableGelu SeparableGelu::for_reach(float reach) {
    constexpr int FIRST = 3, LAST = 8;
    static_assert(sizeof(SEPARABLE_GELU) == (LAST - FIRST + 1) * sizeof(SeparableGelu) && LAST == MOST_REACH);
    return SEPARABLE_GELU[int(fmaxf(FIRST, fminf(ceilf(reach), LAST))) - FIRST];
}
