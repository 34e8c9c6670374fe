// What routing keeps of several texts that are being written on a GPU: keys of its own for every query head (the model's in local heads,
// content vectors in the others), the cluster of every token, and how many each cluster has.
#pragma once
#include "attention/kernel/next_rows.cuh"
#include "attention/masks/clusters.cuh"
#include "attention/scores/each_element.cuh"

#ifdef WITH_GPU

/// The mask of the rows of such texts: a window in local heads, in the others the earlier tokens of the row's cluster, or itself where
/// there are none.
struct ClustersOfTexts : Policy {
    const int *cluster, *members;   // (texts, NH, room), (texts, NH, clusters)
    int NH, room, clusters, local, left;
    constexpr ClustersOfTexts(const Policy& p, const int* cluster_, const int* members_, const ClusterShape& s, int left_)
        : Policy(p), cluster(cluster_), members(members_), NH(s.NH), room(s.T), clusters(s.clusters), local(s.local), left(left_) {}

    constexpr ClustersOfTexts of_row(int text) const {
        ClustersOfTexts row = *this;
        row.cluster += size_t(text) * NH * room, row.members += size_t(text) * NH * clusters;
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

/// One warp per head of a token: its key and value go to `content`, its query to q (B, T, NH, HS), which may be null.
template <class X>
__global__ void keep_content_kernel(const TextKeys<X> content, X* q, const __grid_constant__ LayerInputs<X> in, int local,
                                    const NewKeys to) {
    const int warp = int(blockIdx.x * blockDim.x + threadIdx.x) / WARP, h = warp % in.NH, t = warp / in.NH % in.T,
              b = warp / in.NH / in.T;
    if (b >= in.B) return;
    using Normed = clustering::Normed<X>;
    const Normed row(in.query(in.q_pre, b, t, h), in.HS);
    const X *query = in.query(in.q, b, t, h), *key = in.key(in.k, b, t, h), *value = in.value(b, t, h);
    const size_t at = content.head_at(to.text_of(b), h) + size_t(content.slots.slot(to.position(b, t))) * in.HS;
    for (int n = 0; n < clustering::MOST; n++) {
        if (!Normed::has(n, in.HS)) continue;
        const int d = Normed::index(n);
        const X normed = from_float<X>(row.n[n]);
        content.k[at + d] = h < local ? key[d] : normed, content.v[at + d] = value[d];
        if (q) q[(in.token(b, t) * in.NH + h) * in.HS + d] = h < local ? query[d] : normed;
    }
}

/// cluster (texts, NH, room) and members of tokens whose clusters are `nearest` (B, NH, T).
struct NoteClusters {
    int *cluster, *members;
    const int* nearest;
    int NH, T, room, clusters;
    NewKeys to;
    constexpr size_t head(unsigned row) const { return size_t(to.text_of(int(row) / NH)) * NH + row % NH; }
    constexpr void operator()(unsigned row, int t) const {
        cluster[head(row) * room + to.position(int(row) / NH, t)] = nearest[size_t(row) * T + t];
    }
    /// Cluster c of a text that begins.
    constexpr void count(unsigned row, int c) const {
        int tokens = 0;
        for (int t = 0; t < T; t++) tokens += nearest[size_t(row) * T + t] == c;
        members[head(row) * clusters + c] = tokens;
    }
};
struct CountClusters : NoteClusters {
    constexpr void operator()(unsigned row, int c) const { count(row, c); }
};
/// The only token of a row joins its cluster.
struct JoinCluster : NoteClusters {
    constexpr void operator()(unsigned row, int) const { members[head(row) * clusters + nearest[row]]++; }
};

template <class X>
struct ClusterTexts {
    ClusterShape s;   // of s.B texts of at most s.T tokens
    TextKeys<X> content;
    int *cluster, *members, *nearest;   // (texts, NH, room), (texts, NH, clusters), (max(texts, room), NH)
    X* q;                               // (texts, NH, HS) of the rows

    ClusterTexts(BumpAllocator& memory, const LayerShape& room, const ClusterShape& shape)
        : s(shape), content(memory, {s.B, s.T, room.C, s.NH, s.NH, s.HS}, 0, {}),
          cluster(memory.take<int>(size_t(s.B) * s.NH * s.T)), members(memory.take<int>(size_t(s.B) * s.NH * s.clusters)),
          nearest(memory.take<int>(size_t(std::max(s.B, s.T)) * s.NH)), q(memory.take<X>(size_t(s.B) * s.NH * s.HS)) {}

    /// The first in.T tokens of a text, or with to.rows one of each row.
    void keep(const GPU& device, const LayerInputs<X>& in, const X* centroids, const NewKeys& to) const {
        ClusterShape tokens = s;
        tokens.B = in.B, tokens.T = in.T;
        const int heads = in.B * s.NH;
        fill(device, nearest, size_t(heads) * in.T, 0);   // local heads have no clusters
        if (s.local < s.NH) nearest_centroids(device, nearest, in, centroids, tokens);
        launch(device, keep_content_kernel<X>, blocks_for(size_t(heads) * in.T, 4), 4 * WARP, 0, content, to.rows.sequence ? q : nullptr, in,
               s.local, to);
        const NoteClusters note{cluster, members, nearest, s.NH, in.T, s.T, s.clusters, to};
        each_element(device, heads, in.T, note);
        if (to.rows.sequence) each_element(device, heads, 1, JoinCluster{note});
        else each_element(device, heads, s.clusters, CountClusters{note});
    }
};

#endif
