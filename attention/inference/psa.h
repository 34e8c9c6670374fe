// Progressive sparse attention (arXiv 2503.00392), for decode only: a new token reads the cached keys block by block, in decreasing order
// of estimated mass, and stops when the blocks read hold a share eps of its attention mass. Nothing is evicted, and nothing is trained.
//     mass of block c for query q    M_c = sum_{j in c} exp(z_j),   z_j = q.k_j / sqrt(HS)
//     its estimate from metadata     E_c = |c| exp(s_c)
//         mean     s_c = q.mean(k_c) / sqrt(HS)                                 E_c <= M_c (Jensen): a heuristic, may stop early
//         upper    s_c = sum_d max(q_d min_c(k_d), q_d max_c(k_d)) / sqrt(HS)   E_c >= M_c: the share is certified
//     stop when V / (V + R) >= eps,  V = sum of M_c over visited blocks, R = sum of E_c over the others
// V is the running softmax's own sum and costs nothing. The output is the softmax over the visited blocks.
// Only the paper's abstract and second-hand accounts were available: a threshold instead of top-k, per token and layer; blocks with
// metadata; a budget that follows the distribution. Assumptions: both bounds and the stopping rule above; the published form is
// `mean`. Under grouped queries the heads of a group share their keys, so they visit the same blocks, in the order of the mass
// estimated for the group, until every head is satisfied. The paper's other half, unified memory of GPU and host and overlapped
// iterations, is about serving many requests and is left out.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/decoding/decoding.cuh"
#include "attention/inference/options.h"
#include "model/base/error.h"

/// Metadata of the blocks of one layer's cached keys, of several sequences.
template <class W>
struct PsaBlocks {
    PsaBound bound;
    int block, NKV, HS, most;   // keys per block; blocks per sequence
    W *first, *second;          // (sequences, NKV, most, HS): `mean` the sum of the keys; `upper` their minima and maxima

    /// For room.B sequences of at most room.T tokens each.
    PsaBlocks(BumpAllocator& memory, const PsaOptions& how, const LayerShape& room)
        : bound(how.bound), block(how.block), NKV(room.NKV), HS(room.HS), most(count(room.T)) {
        const size_t numbers = size_t(room.B) * NKV * most * HS;
        first = memory.take<W>(numbers), second = memory.take<W>(bound == PsaBound::upper ? numbers : 0);
    }

    constexpr int count(int tokens) const { return (tokens + block - 1) / block; }
    /// Keys in block c of a sequence of `tokens` tokens.
    constexpr int keys(int c, int tokens) const { return std::min(block, tokens - c * block); }
    constexpr size_t at(int sequence, int kv, int c) const { return ((size_t(sequence) * NKV + kv) * most + c) * HS; }

    /// Adds element n of token t's key (NKV, HS).
    constexpr void add(int sequence, int t, int n, W k) const {
        const size_t to = at(sequence, n / HS, t / block) + n % HS;
        const bool begins = t % block == 0;
        if (bound == PsaBound::mean) first[to] = begins ? k : first[to] + k;
        else first[to] = begins ? k : std::min(first[to], k), second[to] = begins ? k : std::max(second[to], k);
    }

    /// One element's part of q.mean(k), or of the upper bound of q.k.
    template <class Y>
    constexpr Y product(Y q, size_t number, int keys) const {
        return bound == PsaBound::mean ? q * Y(first[number]) / Y(keys) : std::max(q * Y(first[number]), q * Y(second[number]));
    }
};

/// Adds keys. Rows are the blocks of a prompt of to.count tokens, or the rows of a step, which have a token each.
template <class X>
struct AddToPsaBlocks {
    PsaBlocks<Wide<X>> blocks;
    Heads<const X> k;
    NewKeys to;
    constexpr void operator()(unsigned row, int n) const {
        const int b = to.rows.sequence ? int(row) : 0, begin = to.rows.sequence ? 0 : int(row) * blocks.block;
        for (int t = begin; t < std::min(to.count, begin + blocks.block); t++)
            blocks.add(to.sequence_of(b), to.position(b, t), n, widened(k.data[(b + t) * k.row + n]));
    }
};

/// Counts of decode reads, over all tokens, layers and heads.
struct PsaCount {
    double visited = 0, cached = 0;       // pairs of query and key
    double rows = 0, retained = 0;        // sum over rows of V / (V + R): certified by `upper`, a guess by `mean`
    double least_retained = 1;

    constexpr void add(const PsaCount& other) {
        visited += other.visited, cached += other.cached, rows += other.rows, retained += other.retained;
        least_retained = std::min(least_retained, other.least_retained);
    }
};

/// log(exp(a) + exp(b))
inline double log_add(double a, double b) {
    if (std::max(a, b) == -std::numeric_limits<double>::infinity()) return a;
    return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

/// The estimates log E (G, blocks) of the query heads that read key head kv of a sequence of a.S tokens. In double, because an upper bound
/// must not be rounded down.
template <class X>
std::vector<double> psa_estimates(const AttentionForward<X>& a, const PsaBlocks<X>& blocks, int sequence, int kv) {
    const int G = a.NH / a.NKV;
    std::vector<double> estimates;
    for (int h = kv * G; h < (kv + 1) * G; h++)
        for (int c = 0; c < blocks.count(a.S); c++) {
            const X* const q = a.q.data + size_t(h) * a.HS;
            const int keys = blocks.keys(c, a.S);
            double product = 0;
            for (int d = 0; d < a.HS; d++) product += blocks.product(double(q[d]), blocks.at(sequence, kv, c) + d, keys);
            estimates.push_back(product / std::sqrt(double(a.HS)) + std::log(double(keys)));
        }
    return estimates;
}

/// Blocks in decreasing order of their estimated share of mass, summed over the heads of the group.
inline std::vector<int> psa_order(const std::vector<double>& estimates, int blocks) {
    std::vector<double> share(blocks);
    for (size_t head = 0; head < estimates.size(); head += blocks) {
        double total = -std::numeric_limits<double>::infinity();
        for (int c = 0; c < blocks; c++) total = log_add(total, estimates[head + c]);
        for (int c = 0; c < blocks; c++) share[c] += std::exp(estimates[head + c] - total);
    }
    std::vector<int> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int c, int other) { return share[c] > share[other]; });
    return order;
}

/// log R (G, blocks): the estimated mass left after the n-th block of the order, -infinity after the last.
inline std::vector<double> psa_rest(const std::vector<double>& estimates, const std::vector<int>& order) {
    const size_t blocks = order.size();
    std::vector<double> rest(estimates.size(), -std::numeric_limits<double>::infinity());
    for (size_t head = 0; head < estimates.size(); head += blocks)
        for (size_t n = blocks - 1; n > 0; n--) rest[head + n - 1] = log_add(rest[head + n], estimates[head + order[n]]);
    return rest;
}

/// The stopping rule of a head: V / (V + R) >= eps in logarithms, in a form that is never true for eps 1 while R > 0.
template <class W>
struct PsaStop {
    W log_eps, log_rest_allowed;   // log(eps), log(1 - eps)
    explicit PsaStop(double eps) : log_eps(W(std::log(eps))), log_rest_allowed(W(std::log(1 - eps))) {}
    constexpr bool satisfied(W log_visited, W log_rest) const { return log_rest_allowed + log_visited >= log_eps + log_rest; }
};

/// The query heads that read key head kv. keys(kv, first, count) are the cached ones.
template <class X, class Keys>
PsaCount psa_group(const Policy& causal, const AttentionForward<X>& a, const PsaBlocks<X>& blocks, int sequence, double eps, int kv,
                   Keys keys) {
    const int G = a.NH / a.NKV, N = blocks.count(a.S);
    const std::vector<double> estimates = psa_estimates(a, blocks, sequence, kv);
    const std::vector<int> order = psa_order(estimates, N);
    const std::vector<double> rest = psa_rest(estimates, order);
    const PsaStop<double> stop(eps);
    std::vector<QueryRow<X>> rows(G, QueryRow<X>(a.HS));

    PsaCount count;
    bool satisfied = false;
    int n = 0;
    for (; n < N && !satisfied; n++) {
        const KeySpan<X> span = keys(kv, order[n] * blocks.block, blocks.keys(order[n], a.S));
        satisfied = true;
        for (int g = 0; g < G; g++) {
            rows[g].visit(causal, Query<X>{a.q.data + size_t(kv * G + g) * a.HS, kv * G + g, a.S - 1}, span);
            satisfied = satisfied && stop.satisfied(rows[g].lse(), rest[g * N + n]);
        }
        count.visited += G * span.count;
    }
    for (int g = 0; g < G; g++) {
        rows[g].write(a.out + size_t(kv * G + g) * a.HS);
        a.lse[kv * G + g] = rows[g].lse();
        const double share = 1 / (1 + std::exp(rest[g * N + n - 1] - rows[g].lse()));
        count.retained += share, count.least_retained = std::min(count.least_retained, share);
    }
    count.cached = double(G) * a.S, count.rows = G;
    return count;
}

/// Computes out and lse of one row, the newest token's, from the blocks of the a.S keys that it needs; `blocks` has them all. Adds to
/// counts (NKV).
template <class X, class Keys>
void psa_row(const Policy& causal, const AttentionForward<X>& a, const PsaBlocks<X>& blocks, int sequence, double eps, PsaCount* counts,
             Keys keys) {
#pragma omp parallel for
    for (int kv = 0; kv < a.NKV; kv++) counts[kv].add(psa_group(causal, a, blocks, sequence, eps, kv, keys));
}

/// Computes out and lse of the T rows of one sequence, behind S - T keys: each reads the keys up to its own, as the newest token would.
template <class X>
PsaCount psa_rows(const Policy& causal, const AttentionForward<X>& a, const PsaOptions& how) {
    const LayerShape room{1, a.S, 0, a.NH, a.NKV, a.HS};
    Arena<CPU> arena;
    PsaBlocks<X>(arena, how, room);
    arena.allocate();
    const PsaBlocks<X> blocks(arena, how, room);
    const int before = a.S - a.T;
    const auto append = [&](int t) {
        for (int n = 0; n < a.NKV * a.HS; n++) blocks.add(0, t, n, a.k.data[t * a.k.row + n]);
    };
    for (int t = 0; t < before; t++) append(t);
    std::vector<X> lse(a.NH);
    std::vector<PsaCount> counts(a.NKV);
    AttentionForward<X> row = a;
    row.T = 1, row.lse = lse.data();
    for (int t = 0; t < a.T; t++) {
        append(before + t);
        row.S = before + t + 1;
        row.q.data = a.q.data + t * a.q.row, row.out = a.out + size_t(t) * a.NH * a.HS;
        psa_row(causal, row, blocks, 0, how.eps, counts.data(), [&](int kv, int first, int count) {
            const size_t head = size_t(kv) * a.HS;
            return KeySpan<X>{first, count, {a.k.data + first * a.k.row + head, a.k.row}, {a.v.data + first * a.v.row + head, a.v.row}};
        });
        for (int h = 0; h < a.NH; h++) a.lse[size_t(h) * a.T + t] = lse[h];
    }
    PsaCount count;
    for (const PsaCount& group : counts) count.add(group);
    return count;
}

// ---- decode

/// Counts of the rows' reads, and a GPU's scratch memory of a step, which all layers share.
struct PsaStep {
    static constexpr float VISITED = -1;   // in place of a share
    static constexpr int MOST_HEADS = 16;   // query heads on a key head, for which a thread block has warps

    int NH = 0, NKV = 0, most = 0;
    float* log_mass = nullptr;     // (rows, NH, most) log E
    float* shares = nullptr;       // (rows, NKV, most) of the heads' estimated mass, summed, or VISITED
    PsaCount* counts = nullptr;    // (rows, NKV)
    constexpr float* log_mass_of(int b, int h) const { return log_mass + (size_t(b) * NH + h) * most; }
    constexpr float* shares_of(int b, int kv) const { return shares + (size_t(b) * NKV + kv) * most; }

    /// For room.B rows of sequences of at most room.T tokens. Exit::usage if more than MOST_HEADS query heads share a key head on a GPU.
    template <class Device>
    static PsaStep take(BumpAllocator& memory, const PsaOptions& how, const LayerShape& room) {
        const int group = room.NH / room.NKV;
        PsaStep step{room.NH, room.NKV, (room.T + how.block - 1) / how.block};
        step.counts = memory.take<PsaCount>(size_t(room.B) * room.NKV);
        if (std::is_same_v<Device, CPU>) return step;
        if (group > MOST_HEADS)
            fail(Exit::usage, "psa on the GPU supports up to ", MOST_HEADS, " query heads per key head, and this model has ", group,
                 "; give --device cpu");
        step.log_mass = memory.take<float>(size_t(room.B) * room.NH * step.most);
        step.shares = memory.take<float>(size_t(room.B) * room.NKV * step.most);
        return step;
    }
};

/// A causal layer that decodes by PSA.
struct PsaLayer : Policy {
    static constexpr Traits traits{.own_passes = true};
    PsaOptions how;
    PsaStep step;
    explicit PsaLayer(const PsaOptions& how_) : Policy(Config{}, 0), how(how_) {}
};

/// Computes out and lse of the row from the blocks of cached keys that it needs.
template <class X>
void psa_attention(CPU, const PsaLayer& layer, const KVCache<CPU, X>& cache, const PsaBlocks<X>& blocks, const DecodeRows& rows,
                   AttentionForward<X> a) {
    const int sequence = rows.sequence[0];
    a.S = rows.position[0] + 1;
    psa_row(layer, a, blocks, sequence, layer.how.eps, layer.step.counts,
            [&](int kv, int first, int count) { return cache.tile(sequence, kv, first, count, nullptr); });
}

template <class Device, class X>
struct Decoding<PsaLayer, Device, X> {
    PsaBlocks<Wide<X>> blocks;
    Decoding(const PsaLayer& layer, BumpAllocator& memory, const CacheRoom& room) : blocks(memory, layer.how, room) {}

    void prefill(Device device, int sequence, const PsaLayer&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) const {
        each_element(device, blocks.count(in.T), in.NKV * in.HS, AddToPsaBlocks<X>{blocks, {in.k, in.qk_row}, {{}, sequence, 0, in.T}});
    }
    template <class Step>
    void decode(const Step& step, const PsaLayer& layer, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        append(step, step.keys, a, {step.rows});
        each_element(step, a.B, a.NKV * a.HS, AddToPsaBlocks<X>{blocks, a.k, {step.rows}});
        psa_attention(Device(step), layer, step.keys, blocks, step.rows, a);
    }
};
