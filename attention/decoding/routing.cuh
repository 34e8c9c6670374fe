// Decoding of routing attention (attention/routing.cuh): content vectors, the cluster of every token, and on a GPU the size of each
// cluster.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/routing.cuh"
#include "attention/scores/each_element.cuh"

/// One row of a routed head, in the order of the sequence: the earlier tokens of its cluster, or itself if there are none.
struct InCluster : Policy {
    const int* cluster;   // (tokens) of this head
    InCluster(const Policy& p, const int* cluster_) : Policy(p), cluster(cluster_) {}
    Tile tile(int, int i0, int, int j0, int j1) const {
        return std::find(cluster + j0, cluster + j1, cluster[i0]) == cluster + j1 ? Tile::hidden : Tile::mixed;
    }
    bool visible(int, int i, int j) const {
        return cluster[j] == cluster[i] && (j < i || std::find(cluster, cluster + i, cluster[i]) == cluster + i);
    }
};

template <class X>
struct Decoding<routing, CPU, X> {
    int room, tokens = 0;
    X* n;           // (NH - local, room, HS) content vectors
    int* cluster;   // (NH - local, room)
    Decoding(const routing& r, BumpAllocator& memory, const CacheRoom& s) : room(s.T) {
        const size_t rows = size_t(s.NH - r.local) * room;
        n = memory.take<X>(rows * s.HS), cluster = memory.take<int>(rows);
    }

    void prefill(const routing& r, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        for (int t = 0; t < in.T; t++) add(r, in, weights, t);
    }
    template <class Step>
    void decode(const Step& step, const routing& r, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const int position = step.keys.tokens();
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        add(r, in, weights, 0);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, KeySpan<X> keys) {
            if (h < r.local) return row.visit(WindowBranch(r.left), query_of(a, {}, h, position), keys);
            const size_t head = size_t(h - r.local) * room;
            const X* const content = n + head * in.HS;
            keys.k = {content + size_t(keys.first) * in.HS, size_t(in.HS)};
            row.visit(InCluster(r, cluster + head), {content + size_t(position) * in.HS, h, position}, keys);
        });
    }

private:
    void add(const routing& r, const LayerInputs<X>& in, const X* weights, int t) {
        for (int h = r.local; h < in.NH; h++) {
            const size_t at = size_t(h - r.local) * room + tokens;
            const X *q = in.query(in.q_pre, 0, t, h), *centroids = weights + r.mu.offset;
            layernorm_row(n + at * in.HS, q, in.HS, CLUSTER_EPS);
            cluster[at] = nearest_centroid<X>(q, centroids + r.shape(in).centroid(h, 0), r.clusters, in.HS);
        }
        tokens++;
    }
};

#ifdef WITH_GPU

/// The mask of the rows of a step: a window in local heads; in the others the earlier tokens of the row's cluster, or itself if
/// there are none.
struct ClustersOfSequences : Policy {
    const int *cluster, *members;   // (sequences, NH, room), (sequences, NH, clusters)
    int NH, room, clusters, local, left;
    constexpr ClustersOfSequences(const Policy& p, const int* cluster_, const int* members_, const ClusterShape& s, int left_)
        : Policy(p), cluster(cluster_), members(members_), NH(s.NH), room(s.T), clusters(s.clusters), local(s.local), left(left_) {}

    constexpr ClustersOfSequences of_row(int sequence) const {
        ClustersOfSequences row = *this;
        row.cluster += size_t(sequence) * NH * room, row.members += size_t(sequence) * NH * clusters;
        return row;
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (h < local) return window_tile(left, i0, i1, j0, j1);
        const int* const mine = cluster + size_t(h) * room;
        for (int j = j0; j < j1; j++)
            if (mine[j] == mine[i0]) return Tile::mixed;
        return Tile::hidden;
    }
    constexpr bool visible(int h, int i, int j) const {
        if (h < local) return j <= i && i - j <= left;
        const int c = cluster[size_t(h) * room + i];
        return cluster[size_t(h) * room + j] == c && (j < i || members[size_t(h) * clusters + c] == 1);
    }
};

/// One warp per head of a token: stores its key and value in `content`, its query in q (B, T, NH, HS), which may be null.
template <class X>
__global__ void keep_content_kernel(const KVCache<GPU, X> content, X* q, const __grid_constant__ LayerInputs<X> in, int local,
                                    const NewKeys to) {
    const int warp = int(blockIdx.x * blockDim.x + threadIdx.x) / WARP, h = warp % in.NH, t = warp / in.NH % in.T,
              b = warp / in.NH / in.T;
    if (b >= in.B) return;
    using Normed = clustering::Normed<X>;
    const Normed row(in.query(in.q_pre, b, t, h), in.HS);
    const X *query = in.query(in.q, b, t, h), *key = in.key(in.k, b, t, h), *value = in.value(b, t, h);
    const size_t at = content.head_at(to.sequence_of(b), h) + size_t(content.slots.slot(to.position(b, t))) * in.HS;
    for (int n = 0; n < clustering::MOST; n++) {
        if (!Normed::has(n, in.HS)) continue;
        const int d = Normed::index(n);
        const X normed = from_float<X>(row.n[n]);
        content.k[at + d] = h < local ? key[d] : normed, content.v[at + d] = value[d];
        if (q) q[(in.token(b, t) * in.NH + h) * in.HS + d] = h < local ? query[d] : normed;
    }
}

/// Stores the clusters `nearest` (B, NH, T) of tokens in cluster (sequences, NH, room).
struct StoreClusters {
    int *cluster, *members;
    const int* nearest;
    int NH, T, room, clusters;
    NewKeys to;
    constexpr size_t head(unsigned row) const { return size_t(to.sequence_of(int(row) / NH)) * NH + row % NH; }
    constexpr void operator()(unsigned row, int t) const {
        cluster[head(row) * room + to.position(int(row) / NH, t)] = nearest[size_t(row) * T + t];
    }
    /// Counts the members of cluster c of a new sequence.
    constexpr void count(unsigned row, int c) const {
        int tokens = 0;
        for (int t = 0; t < T; t++) tokens += nearest[size_t(row) * T + t] == c;
        members[head(row) * clusters + c] = tokens;
    }
};
struct CountClusters : StoreClusters {
    constexpr void operator()(unsigned row, int c) const { count(row, c); }
};
/// Counts the only token of a row in its cluster.
struct JoinCluster : StoreClusters {
    constexpr void operator()(unsigned row, int) const { members[head(row) * clusters + nearest[row]]++; }
};

template <class X>
struct Decoding<routing, GPU, X> {
    ClusterShape s;   // of s.B sequences of at most s.T tokens
    KVCache<GPU, X> content;            // per query head: the model's keys in local heads, else content vectors
    int *cluster, *members, *nearest;   // (sequences, NH, room), (sequences, NH, clusters), (max(sequences, room), NH)
    X* q;                               // (sequences, NH, HS) of the rows

    Decoding(const routing& r, BumpAllocator& memory, const CacheRoom& room)
        : s(r.shape(room)), content(memory, {s.B, s.T, room.C, s.NH, s.NH, s.HS}, 0, {}),
          cluster(memory.take<int>(size_t(s.B) * s.NH * s.T)), members(memory.take<int>(size_t(s.B) * s.NH * s.clusters)),
          nearest(memory.take<int>(size_t(std::max(s.B, s.T)) * s.NH)), q(memory.take<X>(size_t(s.B) * s.NH * s.HS)) {}

    void prefill(const GPU& device, int sequence, const routing& r, const LayerInputs<X>& in, const X* weights,
                 const LayerState<X>&) {
        add(device, in, weights + r.mu.offset, {{}, sequence});
    }
    template <class Step>
    void decode(const Step& step, const routing& r, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        add(step, in, weights + r.mu.offset, {step.rows});
        AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        a.NKV = in.NH;   // every query head has keys of its own
        DecodeSoftmax<X> softmax(step, content, step.rows, a, 1);
        softmax.add(ClustersOfSequences(r, cluster, members, s, r.left), {q, size_t(in.NH) * in.HS});
        softmax.finish();
    }

private:
    /// Adds the first in.T tokens of a sequence, or with to.rows one token of each row.
    void add(const GPU& device, const LayerInputs<X>& in, const X* centroids, const NewKeys& to) const {
        ClusterShape tokens = s;
        tokens.B = in.B, tokens.T = in.T;
        const int heads = in.B * s.NH;
        fill(device, nearest, size_t(heads) * in.T, 0);   // local heads have no clusters
        if (s.local < s.NH) nearest_centroids(device, nearest, in, centroids, tokens);
        launch(device, keep_content_kernel<X>, blocks_for(size_t(heads) * in.T, 4), 4 * WARP, 0, content,
               to.rows.sequence ? q : nullptr, in, s.local, to);
        const StoreClusters store{cluster, members, nearest, s.NH, in.T, s.T, s.clusters, to};
        each_element(device, heads, in.T, store);
        if (to.rows.sequence) each_element(device, heads, 1, JoinCluster{store});
        else each_element(device, heads, s.clusters, CountClusters{store});
    }
};

#endif
