// Clusters of equal size (Routing Transformer as published): every centroid takes the nearest tokens of the whole sequence. A token may
// be in several clusters or in none, depending on later tokens.
#pragma once
#include <numeric>
#include <vector>

#include "attention/masks/clusters.cuh"
#include "attention/masks/choice.cuh"

template <class X>
struct CentroidCosines {
    Wide<X>* cosines;
    Heads<const X> q;
    const X* centroids;
    ClusterShape s;
    constexpr void operator()(unsigned n, int) const {
        const RoutedToken<X> at(s, q, n);
        const Standard<Wide<X>> by(at.q, s.HS);
        for (int c = 0; c < s.clusters; c++) {
            const Wide<X> cosine = centroid_cosine<Wide<X>>(at.q, by, centroids + s.centroid(at.h, c), s.HS), least = -1e30f;
            cosines[s.cosines(at.b, at.h, c) + at.t] = cosine > least ? cosine : least;
        }
    }
};
/// Writes cosines (B, NH - local, K, T) of every token with every centroid. NaN, in a diverged run, counts as the smallest.
template <class Device, class X>
void centroid_cosines(Device device, Wide<X>* cosines, const LayerInputs<X>& in, const X* centroids, const ClusterShape& s) {
    each_element(device, size_t(s.B) * s.routed() * s.T, 1, CentroidCosines<X>{cosines, {in.q_pre, in.qk_row}, centroids, s});
}

/// Teams are (b, routed head, cluster).
template <class X>
struct TakeGreatest {
    using Number = X;
    ClusterRows rows;
    const X* cosines;
    ClusterShape s;

    void operator()(const ThreadTeam<X>&, unsigned n) const {
        const int c = int(n) % s.clusters, h = s.local + int(n) / s.clusters % s.routed(), b = int(n) / s.clusters / s.routed();
        const X* mine = cosines + s.cosines(b, h, c);
        std::vector<int> order(s.T);
        std::iota(order.begin(), order.end(), 0);
        std::nth_element(order.begin(), order.begin() + s.size - 1, order.end(),
                         [&](int t, int u) { return mine[t] > mine[u] || (mine[t] == mine[u] && t < u); });
        std::sort(order.begin(), order.begin() + s.size);
        const int first = c * s.size;
        for (int place = 0; place < s.size; place++) rows.put(s, b, h, first + place, order[place], c, first);
        rows.ends[s.ends_of(b, h) + c] = first + s.size;
    }
#ifdef WITH_GPU
    /// The threshold is the largest key that at least `size` cosines reach, found bit by bit.
    template <int WARPS>
    __device__ void operator()(const BlockTeam<WARPS>& team, unsigned n) const {
        const int c = int(n) % s.clusters, h = s.local + int(n) / s.clusters % s.routed(), b = int(n) / s.clusters / s.routed();
        const X* mine = cosines + s.cosines(b, h, c);
        const auto reach = [&](unsigned key) {
            int count = 0;
            for (int t = team.first(); t < s.T; t += team.step()) count += choosing::ordered(mine[t]) >= key;
            return team.sum(count);
        };
        unsigned least = 0;
        for (unsigned bit = 1u << 31; bit; bit >>= 1)
            if (reach(least | bit) >= s.size) least |= bit;
        const int of_equals = s.size - reach(least + 1), first = c * s.size;
        team.sync();   // the counts have been read
        for (int t0 = 0, equals = 0, taken = 0; t0 < s.T; t0 += team.step()) {
            const int t = t0 + team.first();
            const unsigned key = t < s.T ? choosing::ordered(mine[t]) : 0;
            const int equal = team.place(key == least, equals);
            const bool take = key > least || (key == least && equal < of_equals);
            const int place = team.place(take, taken);
            if (take) rows.put(s, b, h, first + place, t, c, first);
        }
        if (team.first() == 0) rows.ends[s.ends_of(b, h) + c] = first + s.size;
    }
#endif
};
/// Rows c size .. (c + 1) size - 1 of a routed head get the tokens with the largest cosines to centroid c, ties going to earlier
/// tokens, in ascending order. sort_by_cluster() must run first.
template <class Device, class X>
void take_greatest(Device device, const ClusterRows& rows, const X* cosines, const ClusterShape& s) {
    each_team<8>(device, size_t(s.B) * s.routed() * s.clusters, TakeGreatest<X>{rows, cosines, s});
}
