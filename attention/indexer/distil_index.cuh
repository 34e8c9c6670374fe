// Distillation of attention's weights into the indexer (DeepSeek-V3.2): over the keys S_t that query t sees,
//     p_ts = 1 / NH sum_h P_hts     the teacher: attention's weights of all heads, which add up to 1; it has no gradient
//     L = lambda sum_t KL(p_t || softmax(I_t))     dL/dI_ts = lambda (softmax(I_t)_s - p_ts)
// and the gradients of the indexer's q, k and w:
//     dw_th = scale sum_s dI_ts ReLU(a_hts)     dq_th = scale w_th sum_s dI_ts [a_hts > 0] k_s     dk_s = the sum over t and h
// P and the products a = q_th.k_s are recomputed for one piece of the pairs at a time, whose dI replace its scores.
// Pieces follow each other, and sums over queries are in text order: the same bits in every run.
#pragma once
#include <bit>

#include "attention/indexer/choose_keys.cuh"

/// Arguments of the distillation, for both devices. W is Wide<X>.
template <class X>
struct IndexDistillation {
    using W = Wide<X>;
    LayerInputs<X> in;
    const W* attention_lse;   // (B, NH, T)
    Index<X> index;
    ChosenKeys<W> chosen;
    W lambda, scale;    // of the scores
    W* divergences;     // (pieces' tiles, TILE, tiles): one per row and key tile of a piece
    W* of_tokens;       // (B, T) lambda KL
    W *dqk, *dw;        // as in Index; dqk is zero at the start

    constexpr TouchedTiles touched() const { return {chosen.touched, tiles_of(in.T)}; }
    constexpr W& divergence(int n, int r, int key_tile) const { return divergences[(size_t(n) * TILE + r) * tiles_of(in.T) + key_tile]; }
    constexpr W lse(int b, int h, int t) const { return attention_lse[(size_t(b) * in.NH + h) * in.T + t]; }
    constexpr W* dquery(int b, int t, int h) const { return dqk + (size_t(b) * in.T + t) * index.s.row() + size_t(h) * index.s.D; }

    /// Turns a score into dI, in place; returns the pair's part of lambda KL. `weights` is the sum of P over the heads.
    constexpr W differentiate(W& score, W weights, W index_lse) const {
        const W teacher = weights / W(in.NH), log_student = score - index_lse;
        score = lambda * (exp_of(log_student) - teacher);
        return teacher > 0 ? lambda * teacher * (std::log(teacher) - log_student) : W(0);
    }
};

/// Writes a piece's part of of_tokens.
template <class X>
struct SumDivergences {
    IndexDistillation<X> d;
    IndexPiece<Wide<X>> piece;
    constexpr void operator()(unsigned n, int r) const {
        const int t = piece.tile(int(n)) * TILE + r;
        if (t >= piece.T) return;
        Wide<X> sum = 0;
        for (int tile = 0; tile <= piece.tile(int(n)); tile++)
            if (d.touched().has(piece.b(int(n)), piece.tile(int(n)), tile)) sum += d.divergence(int(n), r, tile);
        d.of_tokens[size_t(piece.b(int(n))) * piece.T + t] = sum;
    }
};

/// auxiliary (B, NH): sums over every NH-th token, because the loss has no heads.
template <class W>
struct SumTokens {
    W* auxiliary;
    const W* of_tokens;
    int T, NH;
    constexpr void operator()(unsigned b, int h) const {
        W sum = 0;
        for (int t = h; t < T; t += NH) sum += of_tokens[size_t(b) * T + t];
        auxiliary[size_t(b) * NH + h] = sum;
    }
};

// ---- CPU

/// sums (rows, TILE) = P over all heads, for the queries from i0 on and the keys from j0 on.
template <class X>
void sum_weights(X* sums, const IndexDistillation<X>& d, TileProducts<X>& products, int b, int i0, int rows, int j0) {
    const LayerInputs<X>& in = d.in;
    std::fill_n(sums, rows * TILE, X(0));
    for (int h = 0; h < in.NH; h++) {
        if (h % (in.NH / in.NKV) == 0) products.load_keys(in.key(in.k, b, j0, h), in.qk_row, in.T - j0);
        const X* const z = products.compute(in.query(in.q, b, i0, h), in.qk_row, rows, X(1) / std::sqrt(X(in.HS)));
        for (int r = 0; r < rows; r++) {
            const X lse = d.lse(b, h, i0 + r);
            for (int j = r * TILE; j < (r + 1) * TILE; j += LANES<X>)
                store(sums + j, load<Pack<X>>(sums + j) + exp_of(load<Pack<X>>(z + j) - lse));
        }
    }
}

/// Replaces the scores of a piece by dI, 0 where a query does not see the key.
template <class X>
void index_losses(CPU, const IndexDistillation<X>& d, const IndexPiece<X>& piece) {
#pragma omp parallel
    {
        TileProducts<X> products(d.in.HS);
        std::vector<X> weights(TILE * TILE);
#pragma omp for schedule(dynamic)
        for (int n = piece.count - 1; n >= 0; n--)
            for (int tile = 0; tile <= piece.tile(n); tile++) {
                const int b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
                if (!d.touched().has(b, piece.tile(n), tile)) continue;
                sum_weights(weights.data(), d, products, b, i0, rows, tile * TILE);
                for (int r = 0; r < rows; r++) {
                    X *const scores = piece.row(n, r) + tile * TILE, dI[TILE] = {}, sum = 0;
                    const X index_lse = d.chosen.lse[size_t(b) * d.in.T + i0 + r];
                    for (uint64_t seen = d.chosen.bits.word(b, i0 + r, tile); seen; seen &= seen - 1) {
                        const int j = std::countr_zero(seen);
                        dI[j] = scores[j];
                        sum += d.differentiate(dI[j], weights[r * TILE + j], index_lse);
                    }
                    std::copy_n(dI, TILE, scores);
                    d.divergence(n, r, tile) = sum;
                }
            }
    }
}

/// Replaces the products of (rows, TILE) pairs by scale w dI [a > 0]; adds to dw (rows) unless it is null.
template <class X>
void differentiate_products(const IndexDistillation<X>& d, const IndexPiece<X>& piece, X* products, int n, int tile, int h, X* dw) {
    const int b = piece.b(n), i0 = piece.tile(n) * TILE;
    for (int r = 0; r < piece.rows(n); r++) {
        X *const a = products + r * TILE, *const dI = piece.row(n, r) + tile * TILE;
        const X w = d.index.weight(b, i0 + r, h, d.scale);
        X sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < TILE; j++) {
            sum += a[j] > 0 ? a[j] * dI[j] : X(0);
            a[j] = a[j] > 0 ? w * dI[j] : X(0);
        }
        if (dw) dw[r] += d.scale * sum;
    }
}

/// Computes dw, and dqk of the piece's queries.
template <class X>
void index_query_gradients(CPU, const IndexDistillation<X>& d, const IndexPiece<X>& piece) {
    const IndexShape& s = d.index.s;
#pragma omp parallel
    {
        TileProducts<X> products(s.D);
#pragma omp for schedule(dynamic)
        for (int n = piece.count - 1; n >= 0; n--) {
            const int b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
            std::vector<X> dw(size_t(s.heads) * TILE, X(0));
            for (int tile = 0; tile <= piece.tile(n); tile++) {
                if (!d.touched().has(b, piece.tile(n), tile)) continue;
                products.load_keys(d.index.key(b, tile * TILE), s.row(), s.T - tile * TILE);
                for (int h = 0; h < s.heads; h++) {
                    X* const da = products.compute(d.index.query(b, i0, h), s.row(), rows);
                    differentiate_products(d, piece, da, n, tile, h, &dw[size_t(h) * TILE]);
                    gemm(Transpose::no, Transpose::no, rows, s.D, std::min(TILE, s.T - tile * TILE), X(1), da, TILE,
                         d.index.key(b, tile * TILE), s.row(), X(1), d.dquery(b, i0, h), s.row());
                }
            }
            for (int r = 0; r < rows; r++)
                for (int h = 0; h < s.heads; h++) d.dw[(size_t(b) * s.T + i0 + r) * s.heads + h] = dw[size_t(h) * TILE + r];
        }
    }
}

/// Adds the part of the piece's queries to dqk of the keys.
template <class X>
void index_key_gradients(CPU, const IndexDistillation<X>& d, const IndexPiece<X>& piece) {
    const IndexShape& s = d.index.s;
    const int first = piece.b(0), sequences = piece.b(piece.count - 1) - first + 1;
#pragma omp parallel
    {
        TileProducts<X> products(s.D);
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = first; b < first + sequences; b++)
            for (int tile = 0; tile < tiles_of(s.T); tile++) {
                products.load_keys(d.index.key(b, tile * TILE), s.row(), s.T - tile * TILE);
                for (int n = 0; n < piece.count; n++)
                    for (int h = 0; h < s.heads; h++) {
                        if (piece.b(n) != b || !d.touched().has(b, piece.tile(n), tile)) continue;
                        const int i0 = piece.tile(n) * TILE, rows = piece.rows(n);
                        X *const da = products.compute(d.index.query(b, i0, h), s.row(), rows), *const no_weights = nullptr;
                        differentiate_products(d, piece, da, n, tile, h, no_weights);
                        gemm(Transpose::yes, Transpose::no, std::min(TILE, s.T - tile * TILE), s.D, rows, X(1), da, TILE,
                             d.index.query(b, i0, h), s.row(), X(1), d.dquery(b, tile * TILE, s.heads), s.row());
                    }
            }
    }
}

#ifdef WITH_GPU

/// A block has THREADS threads, of which each warp owns 16 of the TILE rows of a result. Block (key tile, query tile of the piece):
/// replaces the scores of a piece by dI, 0 where a query does not see the key.
template <class X, int HS>
__global__ void __launch_bounds__(indexing::THREADS)
    index_losses_kernel(const __grid_constant__ IndexDistillation<X> d, const IndexPiece<float> piece) {
    using namespace indexing;
    auto& shared = dynamic_shared<IndexTilesShared<X, HS>>();
    const LayerInputs<X>& in = d.in;
    const int tile = blockIdx.x, n = blockIdx.y, b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
    if (!d.touched().has(b, piece.tile(n), tile)) return;
    const float to_base_2 = rsqrtf(float(HS)) * LOG2_E;
    Accumulator<1, TILE / 8> weights;
    for (int h = 0; h < in.NH; h++) {
        if (h % (in.NH / in.NKV) == 0) copy_rows<THREADS>(shared.k, in.key(in.k, b, 0, h), in.qk_row, tile * TILE, in.T - tile * TILE);
        copy_rows<THREADS>(shared.q, in.query(in.q, b, 0, h), in.qk_row, i0, in.T - i0);
        wait_for_copies();
        __syncthreads();
        Accumulator<1, TILE / 8> z;
        rows_times_rows(z, shared.q, warp_row(), shared.k, 0);
        float lse[2];
        for (int half = 0; half < 2; half++) {
            const int r = warp_row() + lane_row() + 8 * half;
            lse[half] = r < rows ? d.lse(b, h, i0 + r) * LOG2_E : INFINITY;
        }
#pragma unroll
        for (int m = 0; m < TILE / 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) weights.d[0][m][e] += exp2_of(z.d[0][m][e] * to_base_2 - lse[e / 2]);
        __syncthreads();   // the tiles are no longer read
    }
    float sums[2] = {};
    weights.for_each([&](float& weight, int row, int c) {
        const int r = warp_row() + row;
        if (r >= rows) return;
        float& score = piece.row(n, r)[tile * TILE + c];
        if (d.chosen.bits.word(b, i0 + r, tile) >> c & 1)
            sums[r / 8 % 2] += d.differentiate(score, weight, d.chosen.lse[size_t(b) * in.T + i0 + r]);
        else score = 0;
    });
    for (int half = 0; half < 2; half++) {
        const int r = warp_row() + lane_row() + 8 * half;
        const float sum = row_sum(sums[half]);
        if (r < rows && lane_column() == 0) d.divergence(n, r, tile) = sum;
    }
}

/// Block (query tile of the piece, head): computes dw, and dqk of its queries.
template <class X, int D>
__global__ void __launch_bounds__(indexing::THREADS)
    index_query_gradients_kernel(const __grid_constant__ IndexDistillation<X> d, const IndexPiece<float> piece) {
    using namespace indexing;
    auto& shared = dynamic_shared<IndexTilesShared<X, D>>();
    const Index<X>& x = d.index;
    const int n = blockIdx.x, h = blockIdx.y, b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
    copy_rows<THREADS>(shared.q, x.query(b, 0, h), x.s.row(), i0, x.s.T - i0);
    float w[2], dw[2] = {};
    Accumulator<1, D / 8> dq;
    for (int half = 0; half < 2; half++) {
        const int r = warp_row() + lane_row() + 8 * half;
        w[half] = r < rows ? x.weight(b, i0 + r, h, d.scale) : 0;
    }
    for (int tile = 0; tile <= piece.tile(n); tile++) {
        if (!d.touched().has(b, piece.tile(n), tile)) continue;
        copy_rows<THREADS>(shared.k, x.key(b, 0), x.s.row(), tile * TILE, x.s.T - tile * TILE);
        wait_for_copies();
        __syncthreads();
        Accumulator<1, TILE / 8> a;
        rows_times_rows(a, shared.q, warp_row(), shared.k, 0);
        a.for_each([&](float& value, int row, int c) {
            const int r = warp_row() + row;
            const float dI = r < rows ? piece.row(n, r)[tile * TILE + c] : 0;
            dw[r / 8 % 2] += fmaxf(value, 0) * dI;
            value = value > 0 ? w[r / 8 % 2] * dI : 0;
        });
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            const FragmentA<X> da[] = {a.template as_a<X>(0, k)};
            registers_times_rows(dq, da, shared.k, 16 * k);
        }
        __syncthreads();   // the keys are no longer read
    }
    for (int half = 0; half < 2; half++) {
        const int r = warp_row() + lane_row() + 8 * half;
        dw[half] = row_sum(dw[half]);
        if (r >= rows) continue;
        if (lane_column() == 0) d.dw[(size_t(b) * x.s.T + i0 + r) * x.s.heads + h] = d.scale * dw[half];
        for (int m = 0; m < D / 8; m++)
            for (int e = 0; e < 2; e++) d.dquery(b, i0 + r, h)[8 * m + lane_column() + e] = dq.at(half, m, e);
    }
}

/// Block (key tile, sequence): adds the part of the piece's queries to dqk of its keys.
template <class X, int D>
__global__ void __launch_bounds__(indexing::THREADS)
    index_key_gradients_kernel(const __grid_constant__ IndexDistillation<X> d, const IndexPiece<float> piece) {
    using namespace indexing;
    auto& shared = dynamic_shared<IndexTilesShared<X, D>>();
    const Index<X>& x = d.index;
    const int tile = blockIdx.x, b = piece.b(0) + int(blockIdx.y), keys = min(TILE, x.s.T - tile * TILE);
    copy_rows<THREADS>(shared.k, x.key(b, 0), x.s.row(), tile * TILE, x.s.T - tile * TILE);
    Accumulator<1, D / 8> dk;
    for (int n = 0; n < piece.count; n++) {
        if (piece.b(n) != b || !d.touched().has(b, piece.tile(n), tile)) continue;
        const int i0 = piece.tile(n) * TILE, rows = piece.rows(n);
        for (int h = 0; h < x.s.heads; h++) {
            copy_rows<THREADS>(shared.q, x.query(b, 0, h), x.s.row(), i0, x.s.T - i0);
            wait_for_copies();
            __syncthreads();
            Accumulator<1, TILE / 8> a;   // rows are keys
            rows_times_rows(a, shared.k, warp_row(), shared.q, 0);
            a.for_each([&](float& value, int row, int r) {
                const int c = warp_row() + row;
                value = r < rows && value > 0 ? x.weight(b, i0 + r, h, d.scale) * piece.row(n, r)[tile * TILE + c] : 0;
            });
#pragma unroll
            for (int k = 0; k < TILE / 16; k++) {
                const FragmentA<X> da[] = {a.template as_a<X>(0, k)};
                registers_times_rows(dk, da, shared.q, 16 * k);
            }
            __syncthreads();   // the queries are no longer read
        }
    }
    wait_for_copies();   // needed if no query sees the keys
    for (int half = 0; half < 2; half++) {
        const int j = warp_row() + lane_row() + 8 * half;
        for (int m = 0; j < keys && m < D / 8; m++)
            for (int e = 0; e < 2; e++) d.dquery(b, tile * TILE + j, x.s.heads)[8 * m + lane_column() + e] += dk.at(half, m, e);
    }
}

template <class X>
void index_losses(GPU device, const IndexDistillation<X>& d, const IndexPiece<float>& piece) {
    for_head_size(d.in.HS, [&](auto HS) {
        launch(device, index_losses_kernel<X, HS>, Grid(tiles_of(piece.T), piece.count), indexing::THREADS,
               sizeof(IndexTilesShared<X, HS>), d, piece);
    });
}
template <class X>
void index_query_gradients(GPU device, const IndexDistillation<X>& d, const IndexPiece<float>& piece) {
    for_head_size(d.index.s.D, [&](auto D) {
        launch(device, index_query_gradients_kernel<X, D>, Grid(piece.count, d.index.s.heads), indexing::THREADS,
               sizeof(IndexTilesShared<X, D>), d, piece);
    });
}
template <class X>
void index_key_gradients(GPU device, const IndexDistillation<X>& d, const IndexPiece<float>& piece) {
    const int sequences = piece.b(piece.count - 1) - piece.b(0) + 1;
    for_head_size(d.index.s.D, [&](auto D) {
        launch(device, index_key_gradients_kernel<X, D>, Grid(tiles_of(piece.T), sequences), indexing::THREADS,
               sizeof(IndexTilesShared<X, D>), d, piece);
    });
}
#endif

/// Computes the auxiliary loss (B, NH) and the gradients of q, k and w, in pieces of `at_once` query tiles.
template <class Device, class X>
void distil_index(Device device, Wide<X>* auxiliary, const IndexDistillation<X>& d, int at_once, Wide<X>* pairs) {
    const IndexShape& s = d.index.s;
    fill(device, d.dqk, s.tokens() * s.row(), Wide<X>(0));
    IndexPiece<Wide<X>>::each(s.B, s.T, at_once, pairs, [&](const IndexPiece<Wide<X>>& piece) {
        index_scores(device, piece, d.index, d.touched());
        index_losses(device, d, piece);
        each_element(device, piece.count, TILE, SumDivergences<X>{d, piece});
        index_query_gradients(device, d, piece);
        index_key_gradients(device, d, piece);
    });
    each_element(device, s.B, d.in.NH, SumTokens<Wide<X>>{auxiliary, d.of_tokens, s.T, d.in.NH});
}
