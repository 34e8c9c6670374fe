// Elementary functions on scalars and on SIMD vectors, so that one formula serves the CPU (sixteen floats at a time) and a GPU
// thread (one). They have no branches and no tables, so loops over them vectorise. What both devices call is constexpr: nvcc then
// also compiles it for the GPU (--expt-relaxed-constexpr).
#pragma once
#include <bit>
#include <compare>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

/// Pack<X>: a SIMD vector of 64 bytes, LANES<X> elements of type X.
template <class X>
struct PackOf {
    typedef X type __attribute__((vector_size(64)));
};
template <class X>
using Pack = typename PackOf<X>::type;
template <class X>
inline constexpr int LANES = 64 / sizeof(X);

/// load<N>(from): a scalar or a pack N, from an address that need not be aligned.
template <class N, class X>
constexpr N load(const X* from) {
    N n;
    std::memcpy(&n, from, sizeof n);
    return n;
}
template <class N, class X>
constexpr void store(X* to, const N& n) {
    std::memcpy(to, &n, sizeof n);
}

/// {first, first + 1, ...}
template <class X>
inline Pack<X> iota(X first) {
    Pack<X> p;
    for (int lane = 0; lane < LANES<X>; lane++) p[lane] = first + X(lane);
    return p;
}

/// Reduces `lanes` (N) by combining halves, so that each step is one vector instruction. Overwrites them.
template <int N, class X, class Combine>
inline X fold_halves(X* lanes, Combine combine) {
    for (int lane = 0; lane < N / 2; lane++) lanes[lane] = combine(lanes[lane], lanes[lane + N / 2]);
    if constexpr (N > 2) return fold_halves<N / 2>(lanes, combine);
    else return lanes[0];
}
template <class X, class Combine>
inline X fold(const Pack<X>& p, Combine combine) {
    X lanes[LANES<X>];
    store(lanes, p);
    return fold_halves<LANES<X>>(lanes, combine);
}
template <class X>
inline X sum(const Pack<X>& p) {
    return fold<X>(p, [](X a, X b) { return a + b; });
}

/// exp(x) with relative error of about 1e-7 in float: 2^n by the exponent bits, times a polynomial on |r| <= ln(2)/2. Arguments are
/// clamped to [-87.3, 88.3], so exp(-1e30) is 1e-38, not 0: masked entries are multiplied by an explicit 0 where that matters.
/// N is float or a pack of floats, I the integer type of the same shape; `lowest` and `highest` are the limits in every lane (nvcc
/// cannot make pack constants in a constexpr function).
template <class I, class N>
constexpr N exp_by_polynomial(N x, N lowest, N highest) {
    x = x < lowest ? lowest : x;
    x = x > highest ? highest : x;
    const float magic = 12582912.0f;   // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
    const N shifted = x * 1.44269504f + magic;
    const N n = shifted - magic;
    const N r = (x - n * 0.693359375f) + n * 2.12194440e-4f;   // ln 2 as a sum of two floats
    N p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return std::bit_cast<N>(std::bit_cast<I>(p) + (std::bit_cast<I>(shifted) << 23));   // p * 2^n
}

typedef int32_t PackOfInts __attribute__((vector_size(64)));
constexpr float exp_of(float x) {
#ifdef __CUDA_ARCH__
    return __expf(x);
#else
    return exp_by_polynomial<int32_t>(x, -87.3f, 88.3f);
#endif
}
inline Pack<float> exp_of(Pack<float> x) {
    return exp_by_polynomial<PackOfInts>(x, Pack<float>{} - 87.3f, Pack<float>{} + 88.3f);
}
inline double exp_of(double x) { return std::exp(x); }
inline Pack<double> exp_of(Pack<double> x) {
    for (int lane = 0; lane < LANES<double>; lane++) x[lane] = std::exp(x[lane]);
    return x;
}

/// log(x) of normal x > 0, with an error of about 1e-7 in float, absolute or relative, whichever is greater: the exponent bits, and a
/// polynomial on sqrt(1/2) <= m <= sqrt(2).
inline Pack<float> log_of(Pack<float> x) {
    const PackOfInts bits = std::bit_cast<PackOfInts>(x), exponent = (bits - 0x3f3504f3) >> 23;   // of sqrt(1/2)
    const Pack<float> n = __builtin_convertvector(exponent, Pack<float>), f = std::bit_cast<Pack<float>>(bits - (exponent << 23)) - 1.0f;
    Pack<float> p = 7.0376836292e-2f * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return n * 0.693359375f + (f + (p * f * (f * f) - 0.5f * (f * f) - n * 2.12194440e-4f));   // ln 2 as a sum of two floats
}
constexpr float log_of(float x) {
#ifdef __CUDA_ARCH__
    return __logf(x);
#else
    return std::log(x);
#endif
}
inline double log_of(double x) { return std::log(x); }
inline Pack<double> log_of(Pack<double> x) {
    for (int lane = 0; lane < LANES<double>; lane++) x[lane] = std::log(x[lane]);
    return x;
}

/// 1 / sqrt(x), on a GPU with an error of two units in the last place.
constexpr float inverse_root(float x) {
#ifdef __CUDA_ARCH__
    return rsqrtf(x);
#else
    return 1 / std::sqrt(x);
#endif
}
inline double inverse_root(double x) { return 1 / std::sqrt(x); }

template <class N>
constexpr N sigmoid(N x) {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_same_v<N, float>) return __fdividef(1.0f, 1.0f + exp_of(-x));   // an exact division would cost more
#endif
    return 1.0f / (1.0f + exp_of(-x));
}

/// softplus(x) = log(1 + exp(x)) without overflow; scalars only.
template <class X>
constexpr X softplus(X x) {
    return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

/// A float for kernels that store bf16: the tanh in its gelu() may be off by 5e-4, which saves half the work on a GPU. Otherwise it
/// behaves like float.
struct ReducedPrecision {
    float x;
    constexpr ReducedPrecision() = default;
    constexpr ReducedPrecision(float value) : x(value) {}
    explicit constexpr operator float() const { return x; }
    explicit constexpr operator int() const { return int(x); }
    constexpr ReducedPrecision operator-() const { return -x; }
    constexpr ReducedPrecision& operator+=(ReducedPrecision b) { return *this = x + b.x; }
    friend constexpr ReducedPrecision operator+(ReducedPrecision a, ReducedPrecision b) { return a.x + b.x; }
    friend constexpr ReducedPrecision operator-(ReducedPrecision a, ReducedPrecision b) { return a.x - b.x; }
    friend constexpr ReducedPrecision operator*(ReducedPrecision a, ReducedPrecision b) { return a.x * b.x; }
    friend constexpr ReducedPrecision operator/(ReducedPrecision a, ReducedPrecision b) { return a.x / b.x; }
    friend constexpr auto operator<=>(ReducedPrecision a, ReducedPrecision b) = default;
};
constexpr ReducedPrecision exp_of(ReducedPrecision x) { return exp_of(x.x); }
constexpr ReducedPrecision log_of(ReducedPrecision x) { return log_of(x.x); }
constexpr ReducedPrecision sigmoid(ReducedPrecision x) { return sigmoid(x.x); }

/// The element type of N: X for X itself and for Pack<X>. (The functions are never called.)
template <class N>
N element_of(const N&);
float element_of(const Pack<float>&);
double element_of(const Pack<double>&);
float element_of(const ReducedPrecision&);
template <class N>
using Element = decltype(element_of(std::declval<N>()));

/// Number of lanes of N: LANES<X> for a pack, 1 for a scalar.
template <class N>
inline constexpr int LANES_OF = sizeof(N) / sizeof(Element<N>);

/// x in every lane.
template <class N>
    requires(LANES_OF<N> == 1)
constexpr N broadcast(Element<N> x) {
    return x;
}
template <class N>
    requires(LANES_OF<N> > 1)   // not constexpr: nvcc would try to compile it for the GPU, which has no packs
inline N broadcast(Element<N> x) {
    return N{} + x;
}

/// GELU in its tanh form, x/2 (1 + tanh(y)), y = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2y), and its derivative.
template <class N>
struct ValueAndSlope {
    N value, slope;
};
inline constexpr double GELU_1 = 1.5957691216057308;   // 2 sqrt(2/pi)
inline constexpr double GELU_3 = GELU_1 * 0.044715;
template <class N>
constexpr N gelu(N x) {
    using X = Element<N>;
    return x * sigmoid(x * (X(GELU_1) + X(GELU_3) * (x * x)));
}
template <class N>
constexpr ValueAndSlope<N> gelu_and_slope(N x) {
    using X = Element<N>;
    const N x2 = x * x;
    const N s = sigmoid(x * (X(GELU_1) + X(GELU_3) * x2));
    const N value = x * s;
    return {value, s + value * (X(1) - s) * (X(GELU_1) + X(3 * GELU_3) * x2)};
}

/// tanh(y) of GELU's formula on the CPU: a ratio of polynomials in x^2 (minimax, 1.2e-8), which costs three quarters of an
/// exponential and its division. Exactly 1 where the tanh has saturated: the slope multiplies what is missing by x^3.
inline Pack<float> gelu_tanh(Pack<float> x) {
    using N = Pack<float>;
    const N s = x * x;
    N p = 4.787230993e-8f * s + 1.406184758e-5f;
    p = p * s + 2.661670972e-4f;
    p = p * s + 7.260255916e-3f;
    p = p * s + 6.072303728e-2f;
    p = p * s + 7.978846420e-1f;
    N q = 1.311134175e-6f * s + 7.554650422e-5f;
    q = q * s + 1.296378481e-3f;
    q = q * s + 2.432676593e-2f;
    q = q * s + 2.435973867e-1f;
    q = q * s + 1.0f;
    const float saturated = 5.15f;   // 1 - tanh(y) is 3.2e-8 there, half of a float's last place
    N t = x * p / q;
    t = x > saturated ? N{} + 1.0f : t;
    return x < -saturated ? N{} - 1.0f : t;
}
inline Pack<float> gelu(Pack<float> x) {
    const Pack<float> half = 0.5f * x;
    return half + half * gelu_tanh(x);
}
inline ValueAndSlope<Pack<float>> gelu_and_slope(Pack<float> x) {
    const Pack<float> s = 0.5f + 0.5f * gelu_tanh(x), value = x * s;
    return {value, s + value * (1.0f - s) * (float(GELU_1) + float(3 * GELU_3) * (x * x))};
}

/// tanh(y) for kernels that store bf16: one instruction with relative error up to 2^-11. Exact on the CPU.
constexpr float tanh_of(float y) {
#ifdef __CUDA_ARCH__
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(y));   // what newer toolkits call __tanhf()
    return t;
#else
    const float t = 2 * sigmoid(2 * y) - 1;
#ifdef EMULATED_GPU   // as inexact as a GPU's
    return std::bit_cast<float>((std::bit_cast<uint32_t>(t) + 0x1000) & ~uint32_t{0x1fff});
#endif
    return t;
#endif
}
/// tanh(y) of GELU's formula.
constexpr float gelu_tanh(ReducedPrecision x) { return tanh_of(x.x * (float(GELU_1 / 2) + float(GELU_3 / 2) * (x.x * x.x))); }
constexpr ReducedPrecision gelu(ReducedPrecision x) {
    const float half = 0.5f * x.x;
    return half + half * gelu_tanh(x);
}
constexpr ValueAndSlope<ReducedPrecision> gelu_and_slope(ReducedPrecision x) {
    const float s = 0.5f + 0.5f * gelu_tanh(x), value = x.x * s;
    return {value, s + value * (1 - s) * (float(GELU_1) + float(3 * GELU_3) * (x.x * x.x))};
}

/// <x, y> of x (n) and y (n), on the CPU.
template <class X>
inline X inner_product(const X* x, const X* y, int n) {
    X sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int d = 0; d < n; d++) sum += x[d] * y[d];
    return sum;
}
