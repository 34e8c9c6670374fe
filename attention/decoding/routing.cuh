// Decoding of routing attention (attention/routing.cuh): content vectors, the cluster of every token, and the size of each cluster.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/routing.cuh"

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

/// The clusters of all tokens.
template <class X>
struct RoutedTokens {
    ClusterShape s;   // of s.B sequences of at most s.T tokens
    int *cluster, *members, *nearest;   // (sequences, NH, room), (sequences, NH, clusters), (B, NH, T) of new ones

    RoutedTokens(const routing& r, BumpAllocator& memory, const CacheRoom& room)
        : s(r.shape(room)), cluster(memory.take<int>(size_t(s.B) * s.NH * s.T)), members(memory.take<int>(size_t(s.B) * s.NH * s.clusters)),
          nearest(memory.take<int>(size_t(std::max(s.B, s.T)) * s.NH)) {}

    /// Adds the first in.T tokens of a sequence, or with to.rows one token of each row.
    template <class Device>
    void add(Device device, const LayerInputs<X>& in, const X* centroids, const NewKeys& to) const {
        ClusterShape tokens = s;
        tokens.B = in.B, tokens.T = in.T;
        const int heads = in.B * s.NH;
        fill(device, nearest, size_t(heads) * in.T, 0);   // local heads have no clusters
        if (s.local < s.NH) nearest_centroids(device, nearest, in, centroids, tokens);
        const StoreClusters store{cluster, members, nearest, s.NH, in.T, s.T, s.clusters, to};
        each_element(device, heads, in.T, store);
        if (to.rows.sequence) each_element(device, heads, 1, JoinCluster{store});
        else each_element(device, heads, s.clusters, CountClusters{store});
    }
};

/// Content vectors of routed heads beside the model's keys and values.
template <class X>
struct Decoding<routing, CPU, X> {
    RoutedTokens<X> routed;
    X* n;   // (sequences, NH - local, room, HS)
    Decoding(const routing& r, BumpAllocator& memory, const CacheRoom& s)
        : routed(r, memory, s), n(memory.take<X>(size_t(s.B) * (s.NH - r.local) * s.T * s.HS)) {}

    void prefill(CPU device, int sequence, const routing& r, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) const {
        add(device, r, in, weights, {{}, sequence});
    }
    void decode(const DecodeStep<CPU, X>& step, const routing& r, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const int sequence = step.rows.sequence[0], position = step.rows.position[0];
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        append(step, step.keys, a, {step.rows});
        add(step, r, in, weights, {step.rows});
        std::vector<X> q(in.q, in.q + in.NH * in.HS);
        for (int h = r.local; h < in.NH; h++)
            std::copy_n(content(in, r, sequence, h) + size_t(position) * in.HS, in.HS, &q[size_t(h) * in.HS]);
        DecodeSoftmax softmax(step, step.keys, step.rows, a, 1);
        softmax.add(ClustersOfSequences(r, routed.cluster, routed.members, routed.s, r.left), {q.data(), q.size()},
                    [&](int h, KeySpan<X>& keys) {
                        if (h >= r.local) keys.k = {content(in, r, sequence, h) + size_t(keys.first) * in.HS, size_t(in.HS)};
                    });
        softmax.finish();
    }

private:
    X* content(const LayerShape& s, const routing& r, int sequence, int h) const {
        return n + (size_t(sequence) * (s.NH - r.local) + h - r.local) * routed.s.T * s.HS;
    }
    void add(CPU device, const routing& r, const LayerInputs<X>& in, const X* weights, const NewKeys& to) const {
        routed.add(device, in, weights + r.mu.offset, to);
#pragma omp parallel for if (in.T > 1)
        for (int t = 0; t < in.T; t++)
            for (int h = r.local; h < in.NH; h++)
                layernorm_row(content(in, r, to.sequence_of(0), h) + size_t(to.position(0, t)) * in.HS, in.query(in.q_pre, 0, t, h), in.HS,
                              CLUSTER_EPS);
    }
};

#ifdef WITH_GPU

/// One warp per head of a token: stores its key and value in `content`, its query in q (B, T, NH, HS), which may be null.
template <class X>
__global__ void keep_content_kernel(const KVCache<GPU, X> content, X* q, const __grid_constant__ LayerInputs<X> in, int local,
                                    const NewKeys to) {
    const int warp = int(blockIdx.x * blockDim.x + threadIdx.x) / WARP, h = warp % in.NH, t = warp / in.NH % in.T,
              b = warp / in.NH / in.T;
    if (b >= in.B) return;
    const X* const from = in.query(in.q_pre, b, t, h);
    const TeamNorm<float> norm(BlockTeam<1>(), from, in.HS);
    const X *query = in.query(in.q, b, t, h), *key = in.key(in.k, b, t, h), *value = in.value(b, t, h);
    const size_t at = content.head_at(to.sequence_of(b), h) + size_t(content.slots.slot(to.position(b, t))) * in.HS;
    for (int d = int(threadIdx.x) % WARP; d < in.HS; d += WARP) {
        const X normed = from_float<X>(norm(to_float(from[d])));
        content.k[at + d] = h < local ? key[d] : normed, content.v[at + d] = value[d];
        if (q) q[(in.token(b, t) * in.NH + h) * in.HS + d] = h < local ? query[d] : normed;
    }
}

template <class X>
struct Decoding<routing, GPU, X> {
    RoutedTokens<X> routed;
    KVCache<GPU, X> content;   // per query head: the model's keys in local heads, else content vectors
    X* q;                      // (sequences, NH, HS) of the rows

    Decoding(const routing& r, BumpAllocator& memory, const CacheRoom& s)
        : routed(r, memory, s), content(memory, {{s.B, s.T, s.C, s.NH, s.NH, s.HS}}, 0, {}),
          q(memory.take<X>(size_t(s.B) * s.NH * s.HS)) {}

    void prefill(GPU device, int sequence, const routing& r, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) const {
        add(device, r, in, weights, {{}, sequence});
    }
    template <class Step>
    void decode(const Step& step, const routing& r, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        add(step, r, in, weights, {step.rows});
        AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        a.NKV = in.NH, a.q = {q, size_t(in.NH) * in.HS};   // every query head has keys of its own
        attend(step, content, step.rows, a, ClustersOfSequences(r, routed.cluster, routed.members, routed.s, r.left));
    }

private:
    void add(const GPU& device, const routing& r, const LayerInputs<X>& in, const X* weights, const NewKeys& to) const {
        const bool is_step = to.rows.sequence;
        routed.add(device, in, weights + r.mu.offset, to);
        launch(device, keep_content_kernel<X>, blocks_for(size_t(in.B) * in.NH * in.T, 4), 4 * WARP, 0, content, is_step ? q : nullptr, in,
               r.local, to);
    }
};

#endif
