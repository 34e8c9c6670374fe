// Tokens in clusters (Routing Transformer): content vectors n = LN(q), the nearest centroid of each, rows of tokens sorted by
// cluster, and the update of centroids from their members. q is before RoPE, so that content alone decides. Everything is per query
// head; the first `local` heads have no clusters. Clusters of equal size: balanced_clusters.cuh.
#pragma once
#include <algorithm>
#include <climits>
#include <cmath>

#include "attention/scores/each_element.cuh"
#ifdef WITH_GPU
#include "attention/kernel/features.cuh"
#endif

struct ClusterShape {
    int B, T, NH, HS;
    int local;      // heads without clusters
    int clusters;   // K of each other head
    int size;       // tokens per cluster, if a token may be in several clusters or none; 0: every token is in exactly one

    /// Rows of a head, R, and the number of them that are not padding in a routed head. Padding comes last.
    constexpr int rows() const { return std::max(T, clusters * size); }
    constexpr int filled() const { return size ? clusters * size : T; }
    constexpr int routed() const { return NH - local; }

    constexpr size_t list(int b, int h) const { return (size_t(b) * NH + h) * T; }                          // of (B, NH, T)
    constexpr size_t rows_of(int b, int h) const { return (size_t(b) * NH + h) * rows(); }                  // of (B, NH, R)
    constexpr size_t ends_of(int b, int h) const { return (size_t(b) * NH + h) * clusters; }                // of (B, NH, K)
    constexpr size_t cosines(int b, int h, int c) const {                                     // of (B, NH - local, K, T)
        return ((size_t(b) * routed() + h - local) * clusters + c) * T;
    }
    constexpr size_t vector(int b, int t, int h) const { return ((size_t(b) * T + t) * NH + h) * HS; }      // of (B, T, NH, HS)
    constexpr size_t row(int b, int r, int h) const { return ((size_t(b) * rows() + r) * NH + h) * HS; }    // of (B, R, NH, HS)
    constexpr size_t centroid(int h, int c) const { return (size_t(h - local) * clusters + c) * HS; }   // of (NH - local, K, HS)
};

/// Tokens sorted by (cluster, token), in groups that attend to each other: the tokens of a cluster or, in packed rows, those of one
/// document in a cluster. A local head is one cluster. Groups have ascending numbers. Positions encode the mask without a division
/// (ClusterPolicy): positions of different groups differ by more than R, those of one group by at most R. The first row of a routed group
/// has a query position one higher, and so sees itself, unlike the others.
struct ClusterRows {
    int* tokens;    // (B, NH, R) the token of each row
    int* queries;   // (B, NH, R) its position as a query: as a key, or one more
    int* keys;      // (B, NH, R) row + R x the number of its group; all are -1 in padding
    int* ends;      // (B, NH, K) routed heads: one past the last row of each cluster

    constexpr void put(const ClusterShape& s, int b, int h, int row, int token, int group, int first) const {
        tokens[s.rows_of(b, h) + row] = token;
        join(s, b, h, row, group, first);
    }
    constexpr void join(const ClusterShape& s, int b, int h, int row, int group, int first) const {
        const size_t at = s.rows_of(b, h) + row;
        keys[at] = row + group * s.rows(), queries[at] = keys[at] + (h >= s.local && row == first);
    }
    constexpr void put_padding(const ClusterShape& s, int b, int h, int row) const {
        const size_t at = s.rows_of(b, h) + row;
        tokens[at] = queries[at] = keys[at] = -1;
    }
};

/// The variance of q is about 1 after QK-norm: this only prevents a division by zero for constant vectors.
inline constexpr double CLUSTER_EPS = 1e-12;

/// n = (q - mean) rstd, by a team.
template <class W>
struct TeamNorm {
    W mean, rstd;
    template <class Team, class X>
    constexpr TeamNorm(const Team& team, const X* q, int HS) {
        W sum = 0, squares = 0;
        for (int d = team.first(); d < HS; d += team.step()) sum += widened(q[d]);
        mean = team.sum(sum) / W(HS);
        for (int d = team.first(); d < HS; d += team.step()) squares += (widened(q[d]) - mean) * (widened(q[d]) - mean);
        rstd = inverse_root(team.sum(squares) / W(HS) + W(CLUSTER_EPS));
    }
    constexpr W operator()(W q) const { return (q - mean) * rstd; }
};

/// Teams are (b, row, h).
template <class X>
struct ContentRows {
    using Number = Wide<X>;
    X *q, *k;
    LayerInputs<X> in;
    const int* tokens;
    ClusterShape s;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int h = int(n) % s.NH, r = int(n) / s.NH % s.rows(), b = int(n) / s.NH / s.rows(), t = tokens[s.rows_of(b, h) + r];
        X *const to_q = q + s.row(b, r, h), *const to_k = k + s.row(b, r, h);
        if (t < 0) {
            for (int d = team.first(); d < s.HS; d += team.step()) to_q[d] = to_k[d] = narrowed<X>(0);
        } else if (h < s.local) {
            const X *query = in.query(in.q, b, t, h), *key = in.key(in.k, b, t, h);
            for (int d = team.first(); d < s.HS; d += team.step()) to_q[d] = query[d], to_k[d] = key[d];
        } else {
            const X* const from = in.query(in.q_pre, b, t, h);
            const TeamNorm<Wide<X>> norm(team, from, s.HS);
            for (int d = team.first(); d < s.HS; d += team.step()) to_q[d] = to_k[d] = narrowed<X>(norm(widened(from[d])));
        }
    }
};
/// Replaces the kernel's q and k, both (B, R, NH, HS): q and k in local heads, n for both in the others, 0 in padding.
/// tokens (B, NH, R).
template <class Device, class X>
void content_rows(Device device, X* q, X* k, const LayerInputs<X>& in, const int* tokens, const ClusterShape& s) {
    each_team<1>(device, size_t(s.B) * s.rows() * s.NH, ContentRows<X>{q, k, in, tokens, s});
}

/// dx = (dn - mean(dn) - n mean(dn n)) rstd. Teams are (b, t, h).
template <class X>
struct ContentVectorsBackward {
    using Number = Wide<X>;
    Number* dq_pre;
    size_t row;
    const Number* dn;
    LayerInputs<X> in;
    ClusterShape s;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int h = int(n) % s.NH, t = int(n) / s.NH % s.T, b = int(n) / s.NH / s.T;
        const Number* const gradient = dn + s.vector(b, t, h);
        const X* const from = in.query(in.q_pre, b, t, h);
        Number* const to = dq_pre + in.token(b, t) * row + size_t(h) * s.HS;
        if (h < s.local) {
            for (int d = team.first(); d < s.HS; d += team.step()) to[d] = 0;
            return;
        }
        const TeamNorm<Number> norm(team, from, s.HS);
        Number mean = 0, product = 0;
        for (int d = team.first(); d < s.HS; d += team.step()) mean += gradient[d], product += gradient[d] * norm(widened(from[d]));
        mean = team.sum(mean) / Number(s.HS), product = team.sum(product) / Number(s.HS);
        for (int d = team.first(); d < s.HS; d += team.step())
            to[d] = (gradient[d] - mean - norm(widened(from[d])) * product) * norm.rstd;
    }
};
/// Computes dq_pre (token stride `row`) from dn (B, T, NH, HS); zero in local heads.
template <class Device, class X>
void content_vectors_backward(Device device, Wide<X>* dq_pre, size_t row, const Wide<X>* dn, const LayerInputs<X>& in,
                              const ClusterShape& s) {
    each_team<1>(device, size_t(s.B) * s.T * s.NH, ContentVectorsBackward<X>{dq_pre, row, dn, in, s});
}

/// n = (q - mean) rstd.
template <class W>
struct Standard {
    W mean = 0, rstd = 0;
    template <class X>
    constexpr Standard(const X* q, int HS) {
        W squares = 0;
        for (int d = 0; d < HS; d++) mean += widened(q[d]);
        mean /= W(HS);
        for (int d = 0; d < HS; d++) squares += (widened(q[d]) - mean) * (widened(q[d]) - mean);
        rstd = 1 / std::sqrt(squares / W(HS) + W(CLUSTER_EPS));
    }
};

/// mu.n / |mu|: the cosine times |n|, which is equal for all centroids. n is not rounded to X, because choices depend on it.
template <class W, class X, class M>
constexpr W centroid_cosine(const X* q, const Standard<W>& by, const M* centroid, int HS) {
    W product = 0, squares = 0;
    for (int d = 0; d < HS; d++) {
        const W mu = widened(centroid[d]);
        product += (widened(q[d]) - by.mean) * by.rstd * mu, squares += mu * mu;
    }
    return squares > 0 ? product / std::sqrt(squares) : W(0);
}

/// Index of the centroid (K, HS) with the largest cosine to n, the first of ties.
template <class W, class X, class M>
constexpr int nearest_centroid(const X* q, const M* centroids, int clusters, int HS) {
    const Standard<W> by(q, HS);
    int best = 0;
    W greatest = -1e30f;
    for (int c = 0; c < clusters; c++) {
        const W cosine = centroid_cosine<W>(q, by, centroids + c * HS, HS);
        if (cosine > greatest) greatest = cosine, best = c;
    }
    return best;
}

/// Teams are (b, h); one cluster after the other.
struct SortByCluster {
    using Number = float;
    ClusterRows rows;
    const int* nearest;
    ClusterShape s;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned bh) const {
        const int h = int(bh) % s.NH, b = int(bh) / s.NH;
        const bool left_out = h >= s.local && !nearest;
        int taken = left_out ? s.filled() : 0;
        for (int c = 0; !left_out && c < (h < s.local ? 1 : s.clusters); c++) {
            const int first = taken;
            for (int t0 = 0; t0 < s.T; t0 += team.step()) {
                const int t = t0 + team.first();
                const bool take = t < s.T && (h < s.local || nearest[s.list(b, h) + t] == c);
                const int row = team.place(take, taken);
                if (take) rows.put(s, b, h, row, t, c, first);
            }
            if (h >= s.local && team.first() == 0) rows.ends[s.ends_of(b, h) + c] = taken;
        }
        for (int row = taken + team.first(); row < s.rows(); row += team.step()) rows.put_padding(s, b, h, row);
    }
};
/// `nearest` (B, NH, T) has the clusters. If it is null, only local heads and the padding of routed ones are written, and
/// take_greatest() writes the rest.
template <class Device>
void sort_by_cluster(Device device, const ClusterRows& rows, const int* nearest, const ClusterShape& s) {
    each_team<8>(device, size_t(s.B) * s.NH, SortByCluster{rows, nearest, s});
}

/// One token of one routed head: the query, before RoPE, of element n of (B, NH - local, T).
template <class X>
struct RoutedToken {
    int b, h, t;
    const X* q;
    constexpr RoutedToken(const ClusterShape& s, const Heads<const X>& of, unsigned n)
        : b(int(n / s.T) / s.routed()), h(s.local + int(n / s.T) % s.routed()), t(int(n % s.T)),
          q(of.data + (size_t(b) * s.T + t) * of.row + size_t(h) * s.HS) {}
};

template <class X>
struct NearestCentroids {
    int* nearest;
    Heads<const X> q;
    const X* centroids;
    ClusterShape s;
    constexpr void operator()(unsigned n, int) const {
        const RoutedToken<X> at(s, q, n);
        nearest[s.list(at.b, at.h) + at.t] = nearest_centroid<Wide<X>>(at.q, centroids + s.centroid(at.h, 0), s.clusters, s.HS);
    }
};
/// Writes nearest (B, NH, T), except for local heads.
template <class X>
void nearest_centroids(CPU device, int* nearest, const LayerInputs<X>& in, const X* centroids, const ClusterShape& s) {
    each_element(device, size_t(s.B) * s.routed() * s.T, 1, NearestCentroids<X>{nearest, {in.q_pre, in.qk_row}, centroids, s});
}

#ifdef WITH_GPU

template <class X, int HS>
struct NearestShared {
    SharedTile<X, TILE, HS> q, centroids;
    float mean[TILE], sum[TILE], inverse[TILE];   // of the queries; of the centroids, and 1 / |mu|

    /// What the cosines need besides the products, of row `r` of either tile.
    __device__ void describe(int r) {
        float of_query = 0, total = 0, squares = 0;
        for (int d = 0; d < HS; d++) {
            const float mu = to_float(*centroids.at(r, d));
            of_query += to_float(*q.at(r, d)), total += mu, squares += mu * mu;
        }
        mean[r] = of_query / HS, sum[r] = total, inverse[r] = squares > 0 ? rsqrtf(squares) : 0;
    }
};

/// A block has TILE tokens of a routed head, and all centroids in tiles: <n, mu> / rstd = <q, mu> - mean(q) sum(mu), and rstd decides
/// nothing. Grid (tiles, routed heads, B).
template <class X, int HS>
__global__ void __launch_bounds__(2 * TILE)
    nearest_centroids_kernel(int* nearest, const Heads<const X> q, const X* centroids, const ClusterShape s) {
    constexpr int THREADS = 2 * TILE;
    auto& shared = dynamic_shared<NearestShared<X, HS>>();
    const int t0 = int(blockIdx.x) * TILE, h = s.local + int(blockIdx.y), b = int(blockIdx.z);
    float greatest[2] = {-1e30f, -1e30f};
    int best[2] = {};
    copy_rows<THREADS>(shared.q, q.data + h * HS, int(q.row), b * s.T + t0, s.T - t0);
    for (int c0 = 0; c0 < s.clusters; c0 += TILE) {
        copy_rows<THREADS>(shared.centroids, centroids + s.centroid(h, 0), HS, c0, s.clusters - c0);
        wait_for_copies();
        __syncthreads();
        if (threadIdx.x < TILE) shared.describe(int(threadIdx.x));
        Accumulator<1, TILE / 8> products;
        rows_times_rows(products, shared.q, warp_row(), shared.centroids, 0);
        __syncthreads();
        products.for_each_of_lane([&](float product, int n, int tile, int side) {
            const int c = 8 * tile + lane_column() + side;
            const float cosine = (product - shared.mean[warp_row() + 8 * n + lane_row()] * shared.sum[c]) * shared.inverse[c];
            if (c0 + c < s.clusters && cosine > greatest[n]) greatest[n] = cosine, best[n] = c0 + c;
        });
        __syncthreads();   // the tile has been used
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, greatest[n], lanes);
            const int index = __shfl_xor_sync(ALL_LANES, best[n], lanes);
            if (other > greatest[n] || (other == greatest[n] && index < best[n])) greatest[n] = other, best[n] = index;
        }
        const int t = t0 + warp_row() + 8 * n + lane_row();
        if (lane_column() == 0 && t < s.T) nearest[s.list(b, h) + t] = best[n];
    }
}

template <class X>
void nearest_centroids(GPU device, int* nearest, const LayerInputs<X>& in, const X* centroids, const ClusterShape& s) {
    for_head_size(s.HS, [&](auto HS) {
        launch(device, nearest_centroids_kernel<X, HS>, Grid(tiles_of(s.T), s.routed(), s.B), 2 * TILE, sizeof(NearestShared<X, HS>),
               nearest, Heads<const X>{in.q_pre, in.qk_row}, centroids, s);
    });
}

#endif

/// Number of n ascending numbers less than `bound`.
constexpr int count_less(const int* ascending, int n, int bound) {
    int first = 0, last = n;
    while (first < last) {
        const int middle = (first + last) / 2;
        if (ascending[middle] < bound) first = middle + 1;
        else last = middle;
    }
    return first;
}

/// Divides groups that are clusters by document. The number of one in cluster c that begins with row r is then c + r.
struct DivideByDocument {
    ClusterRows rows;
    ClusterShape s;
    Documents documents;
    /// Whether positions fit an int.
    static constexpr bool fits(const ClusterShape& s) { return int64_t(s.clusters + s.rows() + 1) * s.rows() <= INT_MAX; }

    constexpr void operator()(unsigned bh, int row) const {
        const int b = int(bh) / s.NH, h = int(bh) % s.NH;
        const int* const tokens = rows.tokens + s.rows_of(b, h);
        if (tokens[row] < 0) return;
        const int cluster = rows.keys[s.rows_of(b, h) + row] / s.rows();
        const int begin = cluster > 0 ? rows.ends[s.ends_of(b, h) + cluster - 1] : 0;
        const int first = begin + count_less(tokens + begin, row - begin, documents.at(b, tokens[row]));
        rows.join(s, b, h, row, cluster + first, first);
    }
};

/// Rows are (routed head, centroid).
template <class X>
struct PullCentroids {
    using W = Wide<X>;
    W* dmu;
    const X* sorted;
    const int* ends;
    const X* mu;
    ClusterShape s;
    W dloss;
    constexpr void operator()(unsigned centroid, int d) const {
        const int h = s.local + int(centroid) / s.clusters, c = int(centroid) % s.clusters;
        const size_t at = s.centroid(h, c) + d;
        const W own = widened(mu[at]), scale = W(1) / std::sqrt(W(s.HS));
        W sum = 0;
        for (int b = 0; b < s.B; b++) {
            const int* const end = ends + s.ends_of(b, h) + c;
            for (int row = c > 0 ? end[-1] : 0; row < *end; row++) sum += own - scale * widened(sorted[s.row(b, row, h) + d]);
        }
        dmu[at] += dloss * (sum * W(s.clusters));
    }
};
/// dmu (NH - local, K, HS) += dloss K times the sum over a centroid's members of mu - r, r = n / sqrt(HS) on the unit sphere. With
/// clusters of equal size the step's K / tokens makes that a mean. `sorted` (B, R, NH, HS) has n in the order of rows.
template <class Device, class X>
void pull_centroids(Device device, Wide<X>* dmu, const X* sorted, const int* ends, const X* mu, const ClusterShape& s, Wide<X> dloss) {
    each_element(device, size_t(s.routed()) * s.clusters, s.HS, PullCentroids<X>{dmu, sorted, ends, mu, s, dloss});
}
