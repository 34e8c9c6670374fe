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

#include "attention/inference/options.h"
#include "attention/decoding/attend.cuh"

/// Metadata of the blocks of one layer's cached keys; grows as keys arrive.
template <class X>
class PsaBlocks {
public:
    PsaBlocks(const PsaOptions& how, int NKV, int HS) : how_(how), HS_(HS), row_(size_t(NKV) * HS) {}

    /// Maximum size for T keys: one row for each block, or two.
    static size_t bytes(const PsaOptions& how, int NKV, int HS, int T) { return 2 * sizeof(X) * NKV * HS * (size_t(T) / how.block + 1); }

    /// Adds the keys (NKV, HS) of the next token.
    void append(const X* k) {
        const bool upper = how_.bound == PsaBound::upper;
        if (keys_++ % how_.block == 0) {
            first_.insert(first_.end(), k, k + row_);
            if (upper) second_.insert(second_.end(), k, k + row_);
            return;
        }
        X *first = &first_[(count() - 1) * row_], *second = upper ? &second_[(count() - 1) * row_] : nullptr;
        for (size_t d = 0; d < row_; d++)
            if (upper) first[d] = std::min(first[d], k[d]), second[d] = std::max(second[d], k[d]);
            else first[d] += k[d];
    }

    int count() const { return (keys_ + how_.block - 1) / how_.block; }
    int begin(int c) const { return c * how_.block; }
    int end(int c) const { return std::min(keys_, (c + 1) * how_.block); }

    /// log E_c for query q (HS) of a head that reads key head kv. In double, because an upper bound must not be rounded down.
    double log_mass(const X* q, int kv, int c) const {
        const size_t at = c * row_ + size_t(kv) * HS_;
        const int keys = end(c) - begin(c);
        double product = 0;
        if (how_.bound == PsaBound::mean)
            for (int d = 0; d < HS_; d++) product += double(q[d]) * first_[at + d] / keys;
        else
            for (int d = 0; d < HS_; d++) product += std::max(double(q[d]) * first_[at + d], double(q[d]) * second_[at + d]);
        return product / std::sqrt(double(HS_)) + std::log(double(keys));
    }

private:
    PsaOptions how_;
    int HS_, keys_ = 0;
    size_t row_;
    std::vector<X> first_, second_;   // (blocks, NKV, HS): `mean` the sum of the keys; `upper` their minima and maxima
};

/// Counts of what decoding has read, over all tokens, layers and heads.
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

/// The estimates log E (G, blocks) of the query heads that read key head kv.
template <class X>
std::vector<double> psa_estimates(const AttentionForward<X>& a, const PsaBlocks<X>& blocks, int kv) {
    const int G = a.NH / a.NKV;
    std::vector<double> estimates;
    for (int h = kv * G; h < (kv + 1) * G; h++)
        for (int c = 0; c < blocks.count(); c++) estimates.push_back(blocks.log_mass(a.q.data + size_t(h) * a.HS, kv, c));
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

/// V / (V + R) >= eps in logarithms, in a form that is never true for eps 1 while R > 0.
inline bool psa_satisfied(double log_visited, double log_rest, double eps) {
    return std::log(1 - eps) + log_visited >= std::log(eps) + log_rest;
}

/// The query heads that read key head kv.
template <class X>
PsaCount psa_group(const Policy& causal, const AttentionForward<X>& a, const PsaBlocks<X>& blocks, double eps, int kv) {
    const int G = a.NH / a.NKV, N = blocks.count();
    const std::vector<double> estimates = psa_estimates(a, blocks, kv);
    const std::vector<int> order = psa_order(estimates, N);
    const std::vector<double> rest = psa_rest(estimates, order);
    std::vector<QueryRow<X>> rows(G, QueryRow<X>(a.HS));

    PsaCount count;
    bool satisfied = false;
    int n = 0;
    for (; n < N && !satisfied; n++) {
        satisfied = true;
        for (int g = 0; g < G; g++) {
            const int first = blocks.begin(order[n]), count = blocks.end(order[n]) - first;
            const size_t head = size_t(kv) * a.HS;
            rows[g].visit(causal, query_of(a, {}, kv * G + g, a.S - 1),
                          {first, count, {a.k.data + first * a.k.row + head, a.k.row}, {a.v.data + first * a.v.row + head, a.v.row}});
            satisfied = satisfied && psa_satisfied(rows[g].lse(), rest[g * N + n], eps);
        }
        count.visited += G * (blocks.end(order[n]) - blocks.begin(order[n]));
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

/// Computes out and lse of one row, the newest token's, from those of the a.S keys' blocks that it needs; `blocks` has them all.
template <class X>
PsaCount psa_attention(const Policy& causal, const AttentionForward<X>& a, const PsaBlocks<X>& blocks, double eps) {
    std::vector<PsaCount> groups(a.NKV);
#pragma omp parallel for
    for (int kv = 0; kv < a.NKV; kv++) groups[kv] = psa_group(causal, a, blocks, eps, kv);
    PsaCount count;
    for (const PsaCount& group : groups) count.add(group);
    return count;
}

/// Computes out and lse of the T rows of one sequence, behind S - T keys: each reads the keys up to its own, as the newest token would.
template <class X>
PsaCount psa_rows(const Policy& causal, const AttentionForward<X>& a, const PsaOptions& how) {
    const int before = a.S - a.T;
    PsaBlocks<X> blocks(how, a.NKV, a.HS);
    for (int j = 0; j < before; j++) blocks.append(a.k.data + j * a.k.row);
    std::vector<X> lse(a.NH);
    AttentionForward<X> row = a;
    row.T = 1, row.lse = lse.data();
    PsaCount count;
    for (int t = 0; t < a.T; t++) {
        blocks.append(a.k.data + (before + t) * a.k.row);
        row.S = before + t + 1;
        row.q.data = a.q.data + t * a.q.row, row.out = a.out + size_t(t) * a.NH * a.HS;
        count.add(psa_attention(causal, row, blocks, how.eps));
        for (int h = 0; h < a.NH; h++) a.lse[size_t(h) * a.T + t] = lse[h];
    }
    return count;
}
