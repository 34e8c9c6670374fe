// Features for a learned score: score()'s inputs from one token, computed from its query or key by a layer norm without affine
// parameters (or a constant factor), a small matrix per query head (or a shared one), and optionally a bias:
//     feature (b, h, t, f) = sum_d weight_hfd LN(x_bt of head h / (heads / sources))_d + bias_hf
// and their gradients. On the CPU these are a few calls of gemm(); on the GPU one kernel per direction reads x once and keeps the
// normed rows in shared memory. A block of 128 threads takes TILE tokens of one source head, and all query heads that read it.
#pragma once
#include <type_traits>
#include <vector>

#include "attention/scores/layernorm.h"
#include "model/device/blas.h"
#ifdef WITH_GPU
#include "attention/kernel/features.cuh"
#include "model/operations/column_sum.cuh"
#endif

template <class X>
struct PairFeatures {
    Heads<const X> x;     // (B, T, sources, HS), q or k before RoPE
    const X* weight;      // (heads, m, HS), or (m, HS) where heads share it
    const X* bias;        // (heads, m), or null
    int B, T;
    int sources, heads;   // heads of x; query heads, a multiple of `sources`
    int HS, m;
    Wide<X> eps;                  // of the layer norm
    Wide<X> factor = 0;           // if not 0: factor * x replaces LN(x)
    bool shared_weight = false;

    constexpr size_t weight_at(int h) const { return shared_weight ? 0 : size_t(h) * m * HS; }
    constexpr int group() const { return heads / sources; }
};

/// Memory layout, as score() reads features: (B, heads, T, m) for queries, (B, heads, m, padded(T)) for keys.
enum class FeatureLayout { row, column };

/// Index of feature f of token t of query head h.
template <FeatureLayout layout, class X>
constexpr size_t feature_at(const PairFeatures<X>& p, int b, int h, int t, int f) {
    const size_t bh = size_t(b) * p.heads + h;
    return layout == FeatureLayout::row ? (bh * p.T + t) * p.m + f : (bh * p.m + f) * padded(p.T) + t;
}

/// The tokens of one source head on the CPU: x (T, HS) after the norm, or as it is where a factor replaces the norm.
template <class X>
struct NormedTokens {
    std::vector<X> x, rstd;
    NormedTokens(const PairFeatures<X>& p, int b, int source) : x(size_t(p.T) * p.HS), rstd(p.T) {
        for (int t = 0; t < p.T; t++) {
            const X* const from = p.x.data + (size_t(b) * p.T + t) * p.x.row + size_t(source) * p.HS;
            if (p.factor) std::copy_n(from, p.HS, &x[size_t(t) * p.HS]);
            else rstd[t] = layernorm_row(&x[size_t(t) * p.HS], from, p.HS, p.eps);
        }
    }
    /// Overwrites dx from the gradient of x (T, HS).
    void backward(const PairFeatures<X>& p, int b, int source, Heads<X> dx, const std::vector<X>& gradient) const {
        for (int t = 0; t < p.T; t++) {
            X* const to = dx.data + (size_t(b) * p.T + t) * dx.row + size_t(source) * p.HS;
            const size_t at = size_t(t) * p.HS;
            if (p.factor) std::copy_n(&gradient[at], p.HS, to);
            else std::fill_n(to, p.HS, X(0)), layernorm_row_backward(to, &gradient[at], &x[at], rstd[t], p.HS);
        }
    }
};

/// Computes features of all heads and tokens, in `layout`.
template <FeatureLayout layout, class X>
void pair_features_forward(CPU, X* features, const PairFeatures<X>& p) {
    const X factor = p.factor ? p.factor : X(1);
#pragma omp parallel for collapse(2)
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < p.heads; h++) {
            const NormedTokens<X> normed(p, b, h / p.group());
            const X* const weight = p.weight + p.weight_at(h);
            X* const to = features + feature_at<layout>(p, b, h, 0, 0);
            for (int t = 0; p.bias && t < p.T; t++)
                for (int f = 0; f < p.m; f++) features[feature_at<layout>(p, b, h, t, f)] = p.bias[size_t(h) * p.m + f];
            const X before = p.bias ? 1 : 0;
            if (layout == FeatureLayout::row)
                gemm(Transpose::no, Transpose::yes, p.T, p.m, p.HS, factor, normed.x.data(), p.HS, weight, p.HS, before, to, p.m);
            else
                gemm(Transpose::no, Transpose::yes, p.m, p.T, p.HS, factor, weight, p.HS, normed.x.data(), p.HS, before, to, padded(p.T));
        }
}

/// Overwrites dx (B, T, sources, HS); adds to dweight (shaped like weight) and dbias (heads, m; null without a bias).
template <FeatureLayout layout, class X>
void pair_features_backward(CPU, Heads<X> dx, X* dweight, std::type_identity_t<X>* dbias, const X* dfeatures,
                            const PairFeatures<X>& p) {
    constexpr bool row = layout == FeatureLayout::row;
    const X factor = p.factor ? p.factor : X(1);
    const size_t width = row ? p.m : padded(p.T), numbers = size_t(p.m) * p.HS;
    std::vector<X> parts(p.shared_weight ? p.heads * numbers : 0);   // to be summed in the order of heads
#pragma omp parallel for
    for (int source = 0; source < p.sources; source++) {   // one thread owns the weights of its heads, so sums keep their order
        std::vector<X> gradient(size_t(p.T) * p.HS);
        for (int b = 0; b < p.B; b++) {
            const NormedTokens<X> normed(p, b, source);
            for (int h = source * p.group(); h < (source + 1) * p.group(); h++) {
                const X* const d = dfeatures + feature_at<layout>(p, b, h, 0, 0);
                for (int t = 0; dbias && t < p.T; t++)
                    for (int f = 0; f < p.m; f++) dbias[size_t(h) * p.m + f] += dfeatures[feature_at<layout>(p, b, h, t, f)];
                gemm(row ? Transpose::yes : Transpose::no, Transpose::no, p.m, p.HS, p.T, factor, d, width, normed.x.data(), p.HS, X(1),
                     p.shared_weight ? &parts[h * numbers] : dweight + h * numbers, p.HS);
                gemm(row ? Transpose::no : Transpose::yes, Transpose::no, p.T, p.HS, p.m, factor, d, width, p.weight + p.weight_at(h),
                     p.HS, X(h > source * p.group()), gradient.data(), p.HS);
            }
            normed.backward(p, b, source, dx, gradient);
        }
    }
    for (size_t n = 0; n < parts.size(); n++) dweight[n % numbers] += parts[n];
}

#ifdef WITH_GPU

/// The distribution of a tile of tokens over a block's threads. LANES adjacent threads share one token. Each has PARTS times four of
/// its elements, so that adjacent threads read adjacent 16 bytes. A thread has TOKENS tokens, GROUPS apart.
template <int HS_>
struct PairShape {
    static constexpr int HS = HS_, THREADS = 128;
    static constexpr int LANES = HS < 64 ? HS / 4 : 16, GROUPS = THREADS / LANES;
    static constexpr int TOKENS = TILE / GROUPS, PARTS = HS / (4 * LANES);
    static constexpr int UNITS = 16;   // features in shared memory at a time
    static_assert(TOKENS * GROUPS == TILE && PARTS * 4 * LANES == HS && UNITS % GROUPS == 0);

    __device__ static int lane() { return threadIdx.x % LANES; }
    __device__ static int group() { return threadIdx.x / LANES; }
    __device__ static int token(int i) { return i * GROUPS + group(); }
    __device__ static int dim(int part) { return part * 4 * LANES + lane() * 4; }
};

/// Rows are padded by four floats: eight threads that read 16 bytes of eight rows then hit different banks.
template <class Shape>
struct PairShared {
    float normed[TILE][Shape::HS + 4];           // LN(x), or factor * x
    float rstd[TILE];                            // 1 / standard deviation, or factor
    float weight[Shape::UNITS][Shape::HS + 4];   // of one head
};
template <class Shape>
struct PairSharedBackward : PairShared<Shape> {
    float dfeature[TILE][Shape::UNITS + 4];
};

/// Sum over the threads that share a token.
template <class Shape>
__device__ __forceinline__ float token_sum(float x) {
    for (int distance = Shape::LANES / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

/// shared.normed = LN of the tile's tokens from t0 on, zero past the last.
template <class Shape, class X>
__device__ __forceinline__ void normalise_tile(PairShared<Shape>& shared, const PairFeatures<X>& p, int b, int source, int t0) {
    constexpr int PARTS = Shape::PARTS;
#pragma unroll 4
    for (int i = 0; i < Shape::TOKENS; i++) {
        const int t = t0 + Shape::token(i);
        const X* from = p.x.data + (size_t(b) * p.T + t) * p.x.row + size_t(source) * Shape::HS;
        float x[PARTS][4] = {}, sum = 0, squares = 0;
        for (int part = 0; part < PARTS && t < p.T; part++) read_numbers(x[part], from + Shape::dim(part));
        for (auto& four : x)
            for (float number : four) sum += number;
        const float mean = p.factor ? 0 : token_sum<Shape>(sum) / Shape::HS;
        for (auto& four : x)
            for (float& number : four) {
                number -= mean;
                squares += number * number;
            }
        const float rstd = p.factor ? p.factor : 1 / sqrtf(token_sum<Shape>(squares) / Shape::HS + p.eps);
        if (Shape::lane() == 0) shared.rstd[Shape::token(i)] = rstd;
        for (int part = 0; part < PARTS; part++) {
            for (float& number : x[part]) number *= rstd;
            write_numbers(&shared.normed[Shape::token(i)][Shape::dim(part)], x[part]);
        }
    }
}

/// shared.weight = the weights of features f0.. of head h, zero past the last.
template <class Shape, class X>
__device__ __forceinline__ void load_weights(PairShared<Shape>& shared, const PairFeatures<X>& p, int h, int f0) {
#pragma unroll 4
    for (int n = threadIdx.x; n < Shape::UNITS * Shape::HS; n += Shape::THREADS) {
        const int unit = n / Shape::HS, d = n % Shape::HS;
        const bool exists = f0 + unit < p.m;
        shared.weight[unit][d] = exists ? to_float(p.weight[p.weight_at(h) + size_t(f0 + unit) * Shape::HS + d]) : 0;
    }
}

/// Features f0 .. f0 + 15 of the tile: each thread computes 4 tokens x 2 features. Adjacent threads write adjacent memory. Keys
/// past the end get zeros, so that scores of padding are finite.
template <class Shape, FeatureLayout layout, class X>
__device__ __forceinline__ void write_features(float* features, const PairShared<Shape>& shared, const PairFeatures<X>& p, int b,
                                               int h, int t0, int f0) {
    constexpr bool row = layout == FeatureLayout::row;
    constexpr int TOKENS = 4, TOKEN_STEP = TILE / TOKENS, FEATURES = 2, FEATURE_STEP = Shape::UNITS / FEATURES;
    const int token = row ? threadIdx.x / FEATURE_STEP : threadIdx.x % TOKEN_STEP;
    const int unit = row ? threadIdx.x % FEATURE_STEP : threadIdx.x / TOKEN_STEP;
    float sums[TOKENS][FEATURES] = {};
#pragma unroll 4
    for (int d = 0; d < Shape::HS; d += 4) {
        float x[TOKENS][4], w[FEATURES][4];
        for (int i = 0; i < TOKENS; i++) read_numbers(x[i], &shared.normed[token + i * TOKEN_STEP][d]);
        for (int u = 0; u < FEATURES; u++) read_numbers(w[u], &shared.weight[unit + u * FEATURE_STEP][d]);
        for (int i = 0; i < TOKENS; i++)
            for (int u = 0; u < FEATURES; u++)
                for (int n = 0; n < 4; n++) sums[i][u] += x[i][n] * w[u][n];
    }
    for (int u = 0; u < FEATURES; u++) {
        const int f = f0 + unit + u * FEATURE_STEP;
        if (f >= p.m) continue;
        const float bias = p.bias ? to_float(p.bias[size_t(h) * p.m + f]) : 0;
        for (int i = 0; i < TOKENS; i++) {
            const int t = t0 + token + i * TOKEN_STEP;
            if (t < p.T) features[feature_at<layout>(p, b, h, t, f)] = sums[i][u] + bias;
            else if (!row) features[feature_at<layout>(p, b, h, t, f)] = 0;
        }
    }
}

template <class Shape, FeatureLayout layout, class X>
__global__ void __launch_bounds__(Shape::THREADS) pair_features_forward_kernel(float* features, const PairFeatures<X> p) {
    auto& shared = dynamic_shared<PairShared<Shape>>();
    const int t0 = blockIdx.x * TILE, source = blockIdx.y, b = blockIdx.z, group = p.group();
    normalise_tile(shared, p, b, source, t0);
    for (int h = source * group; h < (source + 1) * group; h++)
        for (int f0 = 0; f0 < p.m; f0 += Shape::UNITS) {
            __syncthreads();   // the previous weights have been read
            load_weights(shared, p, h, f0);
            __syncthreads();
            write_features<Shape, layout>(features, shared, p, b, h, t0, f0);
        }
}

template <FeatureLayout layout, class X>
void pair_features_forward(GPU device, float* features, const PairFeatures<X>& p) {
    require_aligned(p.x, "q or k before RoPE");
    for_head_size(p.HS, [&](auto HS) {
        using Shape = PairShape<HS()>;
        launch(device, pair_features_forward_kernel<Shape, layout, X>, Grid(tiles_of(p.T), p.sources, p.B), Shape::THREADS,
               sizeof(PairShared<Shape>), features, p);
    });
}

// ---- backward

/// shared.dfeature = the gradients of features f0 .. f0 + 15 of the tile, zero past the last token and feature.
template <class Shape, FeatureLayout layout, class X>
__device__ __forceinline__ void load_dfeatures(PairSharedBackward<Shape>& shared, const float* dfeatures, const PairFeatures<X>& p,
                                               int b, int h, int t0, int f0) {
#pragma unroll 4
    for (int n = threadIdx.x; n < TILE * Shape::UNITS; n += Shape::THREADS) {
        const bool row = layout == FeatureLayout::row;   // adjacent threads read adjacent memory
        const int token = row ? n / Shape::UNITS : n % TILE, unit = row ? n % Shape::UNITS : n / TILE;
        const bool exists = t0 + token < p.T && f0 + unit < p.m;
        shared.dfeature[token][unit] = exists ? dfeatures[feature_at<layout>(p, b, h, t0 + token, f0 + unit)] : 0;
    }
}

/// A thread's part of the gradient of the normed rows.
template <class Shape>
using PairGradient = float[Shape::TOKENS][Shape::PARTS][4];

/// dnormed of this thread's tokens and dimensions += dfeature weight.
template <class Shape>
__device__ __forceinline__ void add_dnormed(PairGradient<Shape>& dnormed, const PairSharedBackward<Shape>& shared) {
#pragma unroll 1
    for (int unit = 0; unit < Shape::UNITS; unit += 4) {
        float w[4][Shape::PARTS][4];
        for (int u = 0; u < 4; u++)
            for (int part = 0; part < Shape::PARTS; part++) read_numbers(w[u][part], &shared.weight[unit + u][Shape::dim(part)]);
#pragma unroll
        for (int i = 0; i < Shape::TOKENS; i++) {
            float d[4];
            read_numbers(d, &shared.dfeature[Shape::token(i)][unit]);
            for (int u = 0; u < 4; u++)
                for (int part = 0; part < Shape::PARTS; part++)
                    for (int n = 0; n < 4; n++) dnormed[i][part][n] += d[u] * w[u][part][n];
        }
    }
}

/// Adds the tile's gradient of the weights of features f0 .. f0 + 15, (m, HS), to this block's sums. The first tile overwrites;
/// each element always belongs to the same thread.
template <class Shape>
__device__ __forceinline__ void add_dweight(float* dweight, const PairSharedBackward<Shape>& shared, int m, int f0, bool first) {
    constexpr int FEATURES = Shape::UNITS / Shape::GROUPS;
    float sums[FEATURES][Shape::PARTS][4] = {};
#pragma unroll 2
    for (int token = 0; token < TILE; token++) {
        float x[Shape::PARTS][4];
        for (int part = 0; part < Shape::PARTS; part++) read_numbers(x[part], &shared.normed[token][Shape::dim(part)]);
        for (int u = 0; u < FEATURES; u++) {
            const float d = shared.dfeature[token][Shape::group() + u * Shape::GROUPS];
            for (int part = 0; part < Shape::PARTS; part++)
                for (int n = 0; n < 4; n++) sums[u][part][n] += d * x[part][n];
        }
    }
    for (int u = 0; u < FEATURES; u++) {
        const int f = f0 + Shape::group() + u * Shape::GROUPS;
        for (int part = 0; part < Shape::PARTS && f < m; part++) {
            float* to = dweight + size_t(f) * Shape::HS + Shape::dim(part);
            float before[4] = {};
            if (!first) read_numbers(before, to);
            for (int n = 0; n < 4; n++) before[n] += sums[u][part][n];
            write_numbers(to, before);
        }
    }
}

/// The same for the biases (m).
template <class Shape>
__device__ __forceinline__ void add_dbias(float* dbias, const PairSharedBackward<Shape>& shared, int m, int f0, bool first) {
    const int unit = threadIdx.x;
    if (unit >= Shape::UNITS || f0 + unit >= m) return;
    float sum = first ? 0 : dbias[f0 + unit];
    for (int token = 0; token < TILE; token++) sum += shared.dfeature[token][unit];
    dbias[f0 + unit] = sum;
}

/// Backward of the layer norm: dx = rstd (dnormed - mean(dnormed) - normed mean(dnormed normed)); of the factor: factor dnormed.
template <class Shape, class X>
__device__ __forceinline__ void write_dx(Heads<float> dx, const PairGradient<Shape>& dnormed,
                                         const PairSharedBackward<Shape>& shared, const PairFeatures<X>& p, int b, int source,
                                         int t0) {
#pragma unroll
    for (int i = 0; i < Shape::TOKENS; i++) {
        float normed[Shape::PARTS][4], sum = 0, product = 0;
        for (int part = 0; part < Shape::PARTS; part++) {
            read_numbers(normed[part], &shared.normed[Shape::token(i)][Shape::dim(part)]);
            for (int n = 0; n < 4; n++) sum += dnormed[i][part][n], product += dnormed[i][part][n] * normed[part][n];
        }
        const float rstd = shared.rstd[Shape::token(i)];
        const float mean = p.factor ? 0 : token_sum<Shape>(sum) / Shape::HS;
        const float slope = p.factor ? 0 : token_sum<Shape>(product) / Shape::HS;
        const int t = t0 + Shape::token(i);
        if (t >= p.T) continue;
        float* to = dx.data + (size_t(b) * p.T + t) * dx.row + size_t(source) * Shape::HS;
        for (int part = 0; part < Shape::PARTS; part++) {
            for (int n = 0; n < 4; n++) normed[part][n] = rstd * (dnormed[i][part][n] - mean - normed[part][n] * slope);
            write_numbers(to + Shape::dim(part), normed[part]);
        }
    }
}

/// Block (n, source) takes `tiles` tiles of tokens from tile n * tiles on, counted through all sequences. dweights (blocks, heads,
/// m, HS) and dbiases (blocks, heads, m) are sums per block.
template <class Shape, FeatureLayout layout, class X>
__global__ void __launch_bounds__(Shape::THREADS) pair_features_backward_kernel(Heads<float> dx, float* dweights, float* dbiases,
                                                                               const float* dfeatures, const PairFeatures<X> p,
                                                                               int tiles) {
    auto& shared = dynamic_shared<PairSharedBackward<Shape>>();
    const int source = blockIdx.y, group = p.group(), per_sequence = tiles_of(p.T);
    const int first = blockIdx.x * tiles, end = min(first + tiles, p.B * per_sequence);
    float* dweight = dweights + size_t(blockIdx.x) * p.heads * p.m * Shape::HS;
    float* dbias = dbiases ? dbiases + size_t(blockIdx.x) * p.heads * p.m : nullptr;
    for (int tile = first; tile < end; tile++) {
        const int b = tile / per_sequence, t0 = tile % per_sequence * TILE;
        PairGradient<Shape> dnormed = {};
        __syncthreads();   // the previous tile has been read
        normalise_tile(static_cast<PairShared<Shape>&>(shared), p, b, source, t0);
        for (int h = source * group; h < (source + 1) * group; h++)
            for (int f0 = 0; f0 < p.m; f0 += Shape::UNITS) {
                __syncthreads();
                load_weights(static_cast<PairShared<Shape>&>(shared), p, h, f0);
                load_dfeatures<Shape, layout>(shared, dfeatures, p, b, h, t0, f0);
                __syncthreads();
                add_dnormed<Shape>(dnormed, shared);
                add_dweight(dweight + size_t(h) * p.m * Shape::HS, shared, p.m, f0, tile == first);
                if (dbias) add_dbias(dbias + size_t(h) * p.m, shared, p.m, f0, tile == first);
            }
        write_dx<Shape>(dx, dnormed, shared, p, b, source, t0);
    }
}

/// Blocks that share the tiles of one source head in the backward pass: enough to fill a GPU, but no more than 16 MiB of partial
/// sums. Depends on the sizes alone, since other blocks would sum in another order.
inline size_t pair_features_blocks(int B, int T, int sources, int heads, int HS, int m) {
    const size_t tiles = size_t(B) * tiles_of(T), bytes = sizeof(float) * heads * m * (HS + 1);
    const size_t most = std::max<size_t>(1, std::min<size_t>(1024 / sources, (size_t(16) << 20) / bytes));
    return blocks_for(tiles, blocks_for(tiles, most));   // no block is empty
}

template <FeatureLayout layout, class X>
void pair_features_backward(GPU device, Heads<float> dx, float* dweight, float* dbias, const float* dfeatures,
                            const PairFeatures<X>& p) {
    require_aligned(p.x, "q or k before RoPE");
    require_aligned(Heads<const float>{dx.data, dx.row}, "the gradient of q or k before RoPE");
    const size_t blocks = pair_features_blocks(p.B, p.T, p.sources, p.heads, p.HS, p.m), units = size_t(p.heads) * p.m;
    float* dweights = take_workspace<float>(device, "the backward of a learned score", blocks * units * (p.HS + 1));
    float* dbiases = dbias ? dweights + blocks * units * p.HS : nullptr;
    const int tiles = int(blocks_for(size_t(p.B) * tiles_of(p.T), blocks));   // of one block
    for_head_size(p.HS, [&](auto HS) {
        using Shape = PairShape<HS()>;
        launch(device, pair_features_backward_kernel<Shape, layout, X>, Grid(blocks, p.sources), Shape::THREADS,
               sizeof(PairSharedBackward<Shape>), dx, dweights, dbiases, dfeatures, p, tiles);
    });
    const size_t sums = p.shared_weight ? blocks * p.heads : blocks;   // the heads' sums are contiguous
    sum_partials(device, dweight, dweights, sums, blocks * units * p.HS / sums, Write::add);
    if (dbias) sum_partials(device, dbias, dbiases, blocks, units, Write::add);
}

#endif
