// Clusters of equal size (Routing Transformer as published): every centroid takes the nearest tokens of the whole sequence. A token may
// be in several clusters or in none, depending on later tokens.
#pragma once
#include <numeric>

#include "attention/masks/clusters.cuh"
#include "attention/masks/select.cuh"

/// Writes cosines (B, NH - local, K, T) of one token with every centroid. NaN, in a diverged run, counts as the smallest.
template <class W, class X, class M>
constexpr void cosines_of_token(W* cosines, const X* q, const M* centroids, const ClusterShape& s, int b, int h, int t) {
    const Standard<W> by(q, s.HS);
    for (int c = 0; c < s.clusters; c++) {
        const W cosine = centroid_cosine<W>(q, by, centroids + s.centroid(h, c), s.HS), least = -1e30f;
        cosines[s.cosines(b, h, c) + t] = cosine > least ? cosine : least;
    }
}
template <class X>
void centroid_cosines(CPU, X* cosines, const LayerInputs<X>& in, const X* centroids, const ClusterShape& s) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.T; t++)
            for (int h = s.local; h < s.NH; h++) cosines_of_token(cosines, in.query(in.q_pre, b, t, h), centroids, s, b, h, t);
}

/// Rows c size .. (c + 1) size - 1 of a routed head get the tokens with the largest cosines to centroid c, ties going to earlier
/// tokens, in ascending order. sort_by_cluster() must run first.
template <class X>
void take_greatest(CPU, const ClusterRows& rows, const X* cosines, const ClusterShape& s) {
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int h = s.local; h < s.NH; h++)
            for (int c = 0; c < s.clusters; c++) {
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
}

#ifdef WITH_GPU

template <class X>
__global__ void centroid_cosines_kernel(float* cosines, const __grid_constant__ LayerInputs<X> in, const X* centroids,
                                        const ClusterShape s) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x, h = s.local + blockIdx.y, b = blockIdx.z;
    if (t < s.T) cosines_of_token(cosines, in.query(in.q_pre, b, t, h), centroids, s, b, h, t);
}

/// One block per cluster, head and sequence; THREADS tokens at a time. The threshold is the largest key that at least `size`
/// cosines reach, found bit by bit.
template <class W>
__global__ void __launch_bounds__(clustering::THREADS)
    take_greatest_kernel(const ClusterRows rows, const W* cosines, const ClusterShape s) {
    auto& shared = dynamic_shared<clustering::Shared>();
    const int c = blockIdx.x, h = s.local + blockIdx.y, b = blockIdx.z;
    const W* mine = cosines + s.cosines(b, h, c);
    const auto reach = [&](unsigned key) {
        int count = 0;
        for (int t = threadIdx.x; t < s.T; t += clustering::THREADS) count += choosing::ordered(mine[t]) >= key;
        return block_sum<clustering::WARPS>(count, shared.counts);
    };
    unsigned least = 0;
    for (unsigned bit = 1u << 31; bit; bit >>= 1)
        if (reach(least | bit) >= s.size) least |= bit;
    const int of_equals = s.size - reach(least + 1);
    const int first = c * s.size;
    __syncthreads();   // the counts have been read
    for (int t0 = 0, equals = 0, taken = 0; t0 < s.T; t0 += clustering::THREADS) {
        const int t = t0 + int(threadIdx.x);
        const unsigned key = t < s.T ? choosing::ordered(mine[t]) : 0;
        int equal = equals, place = taken;
        equal += clustering::place_among(key == least, equals, shared);
        const bool take = key > least || (key == least && equal < of_equals);
        place += clustering::place_among(take, taken, shared);
        if (take) rows.put(s, b, h, first + place, t, c, first);
    }
    if (threadIdx.x == 0) rows.ends[s.ends_of(b, h) + c] = first + s.size;
}

template <class X>
void centroid_cosines(GPU device, float* cosines, const LayerInputs<X>& in, const X* centroids, const ClusterShape& s) {
    launch(device, centroid_cosines_kernel<X>, Grid(blocks_for(s.T, 128), s.NH - s.local, s.B), 128, 0, cosines, in, centroids, s);
}
inline void take_greatest(GPU device, const ClusterRows& rows, const float* cosines, const ClusterShape& s) {
    launch(device, take_greatest_kernel<float>, Grid(s.clusters, s.NH - s.local, s.B), clustering::THREADS,
           sizeof(clustering::Shared), rows, cosines, s);
}

#endif
