// Progressive sparse attention (psa.h) in decode steps of several sequences on a GPU. Estimates are computed for all blocks in parallel.
// Then one thread block for each row and key head visits blocks of keys one after the other: each visit decides whether there is another.
// Four of its warps share the keys of a block, for four query heads; more heads have more warps.
// Estimates and shares are float32 where the CPU has doubles: blocks whose shares are equal up to rounding may come in another order,
// and the certified share of `upper` is exact up to rounding. The warp that reads a key follows from the block alone: results are the
// same in every run and in every batch.
#pragma once
#include "attention/inference/psa.h"

#ifdef WITH_GPU

namespace psa_visits {

inline constexpr int MOST_HEADS = PsaStep::MOST_HEADS;
inline constexpr int ESTIMATES = 4;   // warps of a block

/// Warp w of block (n, kv, b): log E of block 4 n + w for row b's query heads of key head kv; no block has been visited.
template <class X>
__global__ void estimates_kernel(const PsaStep step, const PsaBlocks<float> blocks, const AttentionForward<X> a, const DecodeRows rows) {
    const int kv = blockIdx.y, b = blockIdx.z, tokens = rows.position[b] + 1, group = a.NH / a.NKV;
    const int c = int(blockIdx.x) * ESTIMATES + int(threadIdx.x) / WARP;
    if (c >= blocks.count(tokens)) return;
    const int keys = blocks.keys(c, tokens);
    const size_t at = blocks.at(rows.sequence[b], kv, c);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const X* const q = a.q.data + b * a.q.row + size_t(h) * a.HS;
        float product = 0;
        for (int d = lane_of(); d < a.HS; d += WARP) product += blocks.product(to_float(q[d]), at + d, keys);
        product = warp_sum(product);
        if (lane_of() == 0) step.log_mass_of(b, h)[c] = product * rsqrtf(float(a.HS)) + logf(float(keys));
    }
    if (lane_of() == 0) step.shares_of(b, kv)[c] = 0;
}

/// log of the sum of E over the blocks not yet visited, -infinity if there are none; on every lane of the warp. In logarithms throughout,
/// so that even the smallest rest is finite.
__device__ __forceinline__ float log_rest(const float* log_mass, const float* shares, int blocks) {
    float largest = -INFINITY, sum = 0;
    for (int c = lane_of(); c < blocks; c += WARP) {
        if (shares[c] == PsaStep::VISITED) continue;
        const float before = largest;
        largest = fmaxf(largest, log_mass[c]);
        sum = sum * expf(before - largest) + expf(log_mass[c] - largest);
    }
    const float peak = warp_max(largest);
    if (peak == -INFINITY) return peak;
    return peak + logf(warp_sum(sum * expf(largest - peak)));
}

/// A candidate for the next visit.
struct Best {
    int block = -1;   // -1: none
    float share = PsaStep::VISITED;
    /// Among equal shares the lower block wins.
    __device__ void take(const Best& other) {
        if (other.share > share || (other.share == share && other.block < block)) *this = other;
    }
};

template <class Shape>
struct Shared {
    DecodeShared<Shape> pieces[MOST_HEADS / Shape::HEADS];   // of the query heads
    float log_total[MOST_HEADS];                              // of the estimated mass of all blocks
    float retained[MOST_HEADS];                               // V / (V + R)
    bool satisfied[MOST_HEADS];
    Best best[MOST_HEADS / Shape::HEADS * Shape::WARPS];      // of each warp
};

/// The choice of blocks for one row's query heads that share a key head. Every thread of the block calls each function.
template <class Shape>
struct Search {
    Shared<Shape>& shared;
    const float* log_mass;   // (group, most)
    float* shares;
    int group, blocks, most;

    __device__ static int warp() { return int(threadIdx.x) / WARP; }
    __device__ static int warps() { return int(blockDim.x) / WARP; }
    __device__ const float* log_mass_of(int g) const { return log_mass + size_t(g) * most; }

    __device__ void compute_shares() {
        for (int g = warp(); g < group; g += warps()) {
            const float total = log_rest(log_mass_of(g), shares, blocks);
            if (lane_of() == 0) shared.log_total[g] = total;
        }
        __syncthreads();   // the shares have been read, too
        for (int c = threadIdx.x; c < blocks; c += int(blockDim.x)) {
            float share = 0;
            for (int g = 0; g < group; g++) share += expf(log_mass_of(g)[c] - shared.log_total[g]);
            shares[c] = share;
        }
        __syncthreads();
    }

    /// The block with the greatest share, the first of equal ones; negative when all have been visited.
    __device__ int next() {
        Best mine;
        for (int c = threadIdx.x; c < blocks; c += int(blockDim.x))
            if (shares[c] > mine.share) mine = {c, shares[c]};
        for (int distance = WARP / 2; distance > 0; distance /= 2)
            mine.take({__shfl_xor_sync(ALL_LANES, mine.block, distance), __shfl_xor_sync(ALL_LANES, mine.share, distance)});
        if (lane_of() == 0) shared.best[warp()] = mine;
        __syncthreads();
        Best best = shared.best[0];
        for (int w = 1; w < warps(); w++) best.take(shared.best[w]);
        return best.block;
    }

    /// Judges each head by its visited and its estimated remaining mass, after the warps' sums are written. Valid after the next barrier.
    __device__ void judge(const PsaStop<float>& stop) {
        for (int g = warp(); g < group; g += warps()) {
            const float visited = log_visited(g), rest = log_rest(log_mass_of(g), shares, blocks);
            if (lane_of() != 0) continue;
            shared.satisfied[g] = stop.satisfied(visited, rest);
            shared.retained[g] = 1 / (1 + expf(rest - visited));
        }
    }
    __device__ bool all_satisfied() const {
        bool all = true;
        for (int g = 0; g < group; g++) all = all && shared.satisfied[g];
        return all;
    }

private:
    /// log V of head g, from the parts of the warps that compute it.
    __device__ float log_visited(int g) const {
        const auto& piece = shared.pieces[g / Shape::HEADS];
        float largest = -INFINITY, sum = 0;
        for (int w = 0; w < Shape::WARPS; w++) largest = fmaxf(largest, piece.largest[w][g % Shape::HEADS]);
        for (int w = 0; w < Shape::WARPS; w++)
            sum += piece.sum[w][g % Shape::HEADS] * expf(piece.largest[w][g % Shape::HEADS] - largest);
        return largest + logf(sum);
    }
};

/// Block (kv, b): row b's query heads that read key head kv. Warps 4 p .. 4 p + 3 compute heads 4 p .. 4 p + 3 of them, and divide the
/// keys of a block among themselves.
template <class Shape, class P>
__global__ void __launch_bounds__(MOST_HEADS / Shape::HEADS * Shape::THREADS)
    visits_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                  const __grid_constant__ KVCache<GPU, typename Shape::X> keys, const DecodeRows rows, const PsaBlocks<float> blocks,
                  const PsaStep step, const RowParts parts, const PsaStop<float> stop) {
    constexpr int WARPS = Shape::WARPS;
    auto& shared = dynamic_shared<Shared<Shape>>();
    const int kv = blockIdx.x, b = blockIdx.y, group = a.NH / a.NKV, tokens = rows.position[b] + 1;
    const int warp = int(threadIdx.x) / WARP % WARPS, piece = int(threadIdx.x) / WARP / WARPS;
    const int h0 = kv * group + piece * Shape::HEADS, heads = min(Shape::HEADS, group - piece * Shape::HEADS);
    Search<Shape> search{shared, step.log_mass_of(b, kv * group), step.shares_of(b, kv), group, blocks.count(tokens), step.most};
    WarpOfRow<Shape, P, RingSlots> mine(policy, a, keys, b, rows.sequence[b], tokens - 1, h0, heads, shared.pieces[piece].z[warp]);

    const size_t head = mine.head_at();
    int visited = 0;
    search.compute_shares();
    int c = search.next();
    for (bool enough = false; c >= 0 && !enough;) {
        const int count = blocks.keys(c, tokens), of_warp = (count + WARPS - 1) / WARPS, begin = min(count, warp * of_warp);
        const int end = min(count, begin + of_warp);
        for (int n = begin; n < end; n += TILE) mine.visit_slots(head, c * blocks.block + n, min(TILE, end - n));
        mine.write_sums(shared.pieces[piece], warp);
        if (threadIdx.x == 0) search.shares[c] = PsaStep::VISITED;
        visited += count;
        __syncthreads();
        search.judge(stop);
        c = search.next();
        enough = search.all_satisfied();
    }
    mine.write(shared.pieces[piece], warp);
    __syncthreads();
    write_part(parts, shared.pieces[piece], size_t(b) * a.NH + h0, heads, 0, int(threadIdx.x) % Shape::THREADS);
    if (threadIdx.x != 0) return;
    PsaCount count;
    count.visited = double(group) * visited, count.cached = double(group) * tokens, count.rows = group;
    for (int g = 0; g < group; g++)
        count.retained += shared.retained[g], count.least_retained = std::min(count.least_retained, double(shared.retained[g]));
    step.counts[size_t(b) * a.NKV + kv].add(count);
}

}   // namespace psa_visits

/// Computes out and lse of the rows in `a` from the cached blocks that they need, and adds to their step.counts.
template <class X>
void psa_attention(const GPU& device, const PsaLayer& layer, const KVCache<GPU, X>& keys, const PsaBlocks<float>& blocks,
                   const DecodeRows& rows, const AttentionForward<X>& a) {
    using namespace psa_visits;
    const PsaStep& step = layer.step;
    launch(device, estimates_kernel<X>, Grid(blocks_for(step.most, ESTIMATES), a.NKV, a.B), ESTIMATES * WARP, 0, step, blocks, a, rows);
    const RowParts parts = take_parts(device, a, 1);
    for_head_size(a.HS, [&](auto HS) {
        using Shape = DecodeShape<X, HS>;
        launch(device, visits_kernel<Shape, Policy>, Grid(a.NKV, a.B), int(blocks_for(a.NH / a.NKV, Shape::HEADS)) * Shape::THREADS,
               sizeof(Shared<Shape>), Policy(layer), a, keys, rows, blocks, step, parts, PsaStop<float>(layer.how.eps));
    });
    merge_parts(device, a, parts);
}

#endif
