// Many matrix products, each too small for a library call and of mixed number types, for gates on pooled queries and keys. Sums are in
// Wide<X>, by plain multiplications and additions in a fixed order.
#pragma once
#include <algorithm>

#include "model/device/blas.h"
#include "model/device/device.h"

/// One factor: element (r, c) of sequence b, head h and summand s at data[b * sequence + h * head + s * summand + r * row + c *
/// column]. On the CPU row or column is 1.
template <class Y>
struct Factor {
    const Y* data;
    size_t sequence, head, summand;
    size_t row, column;
    Factor transposed() const { return {data, sequence, head, summand, column, row}; }
};

/// out (B, H, M, N), the M x N matrix of (b, h) at out + b * sequence + h * head, without gaps.
template <class Y>
struct SmallProduct {
    Y* data;
    size_t sequence, head;
};

/// Products of (M, K) by (K, N) for B sequences and H heads, each the sum of `summands` such products.
struct ProductShape {
    int B, H, M, N, K;
    int summands = 1;
};

/// out = or += scale a b.
template <class X>
void small_products(CPU, const SmallProduct<X>& out, const Factor<X>& a, const Factor<X>& b, const ProductShape& s, X scale,
                    Write write) {
    // A matrix of one row may have any row stride, but CBLAS checks that it is large enough.
    const auto transposed = [](const Factor<X>& f) { return f.column == 1 ? Transpose::no : Transpose::yes; };
    const auto distance = [](const Factor<X>& f, int rows, int columns) {
        return f.column == 1 ? std::max(f.row, size_t(columns)) : std::max(f.column, size_t(rows));
    };
    const int piece = 64;   // rows per thread
#pragma omp parallel for collapse(3)
    for (int n = 0; n < s.B; n++)
        for (int h = 0; h < s.H; h++)
            for (int r = 0; r < s.M; r += piece)
                for (int k = 0; k < s.summands; k++)
                    gemm(transposed(a), transposed(b), std::min(piece, s.M - r), s.N, s.K, scale,
                         a.data + n * a.sequence + h * a.head + k * a.summand + r * a.row, distance(a, s.M, s.K),
                         b.data + n * b.sequence + h * b.head + k * b.summand, distance(b, s.K, s.N),
                         X(k > 0 || write == Write::add), out.data + n * out.sequence + h * out.head + size_t(r) * s.N, s.N);
}

#ifdef WITH_GPU

namespace products {
inline constexpr int SIDE = 32, THREADS = 256, OUTPUTS = SIDE * SIDE / THREADS;   // a block has SIDE x SIDE outputs

/// Both as (k, m) and (k, n); rows are padded by one float, so that writes along k hit different banks.
struct Shared {
    float a[SIDE][SIDE + 1], b[SIDE][SIDE + 1];
};

/// to[k][r] = element (r0 + r, k0 + k) of `from`, a matrix of `rows` x `depth`; zero outside.
/// Adjacent threads read adjacent memory.
template <class Y>
__device__ void fetch(float (&to)[SIDE][SIDE + 1], const Y* from, size_t row, size_t column, int r0, int rows, int k0, int depth) {
    for (int n = threadIdx.x; n < SIDE * SIDE; n += THREADS) {
        const int k = column == 1 ? n % SIDE : n / SIDE, r = column == 1 ? n / SIDE : n % SIDE;
        const bool inside = r0 + r < rows && k0 + k < depth;
        to[k][r] = inside ? to_float(from[(r0 + r) * row + (k0 + k) * column]) : 0;
    }
}
}   // namespace products

template <class A, class B>
__global__ void __launch_bounds__(products::THREADS)
    small_products_kernel(const SmallProduct<float> out, const Factor<A> a, const Factor<B> b, const ProductShape s, float scale,
                          Write write) {
    using namespace products;
    auto& shared = dynamic_shared<Shared>();
    const int tiles = (s.N + SIDE - 1) / SIDE, m0 = int(blockIdx.x) / tiles * SIDE, n0 = int(blockIdx.x) % tiles * SIDE;
    const int h = blockIdx.y, sequence = blockIdx.z, column = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    float sums[OUTPUTS] = {};
    for (int piece = 0; piece < s.summands; piece++)
        for (int k0 = 0; k0 < s.K; k0 += SIDE) {
            __syncthreads();   // the products of the previous iteration are done
            fetch(shared.a, a.data + sequence * a.sequence + h * a.head + piece * a.summand, a.row, a.column, m0, s.M, k0, s.K);
            fetch(shared.b, b.data + sequence * b.sequence + h * b.head + piece * b.summand, b.column, b.row, n0, s.N, k0, s.K);
            __syncthreads();
            for (int k = 0; k < SIDE; k++)
                for (int n = 0; n < OUTPUTS; n++) sums[n] += shared.a[k][first + n * (SIDE / OUTPUTS)] * shared.b[k][column];
        }
    for (int n = 0; n < OUTPUTS; n++) {
        const int r = m0 + first + n * (SIDE / OUTPUTS), c = n0 + column;
        if (r >= s.M || c >= s.N) continue;
        float& to = out.data[sequence * out.sequence + h * out.head + size_t(r) * s.N + c];
        to = scale * sums[n] + (write == Write::add ? to : 0);
    }
}

template <class A, class B>
void small_products(GPU device, const SmallProduct<float>& out, const Factor<A>& a, const Factor<B>& b, const ProductShape& s,
                    float scale, Write write) {
    using namespace products;
    const Grid grid(blocks_for(s.M, SIDE) * blocks_for(s.N, SIDE), s.H, s.B);
    launch(device, small_products_kernel<A, B>, grid, THREADS, sizeof(Shared), out, a, b, s, scale, write);
}

#endif
