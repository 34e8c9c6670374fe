// AdaSpa (arXiv 2502.21079), for the prefill of a prompt only: every layer searches for the blocks of its attention matrix with the
// largest attention mass, and reads no others. Nothing is trained.
//     pass 1    dense attention, for LSE_i
//     pass 2    W_pc = sum_{i in block p, j in block c} exp(z_ij - LSE_i)     (printed in the paper as Log(qk - LSE): Exp is meant)
//     choice    of the p + 1 blocks c <= p of block row p, the ceil((1 - s_h) (p + 1)) with the largest W_pc
//     heads     recall_h = share of the mass that s keeps; n heads have recall > 0.8; the n best get s_h = (1 + s) / 2, the n worst
//               (3 s - 1) / 2, the others s, so that the mean stays s
// NOT CAUSAL: whether row i reads a block depends on later queries of its own block of rows and, through the recall of heads, on
// the whole prompt. That is valid if the whole prompt is known, and wrong in training. A perplexity of the prompt itself would be of
// rows that have looked ahead. The paper is about denoising video, where all tokens attend to all others.
// Assumptions: the row-wise uniform choice, which the paper uses in practice, on the lower triangle; a block row always keeps its own
// block, so that every row sees something; 2 n <= NH; below s = 1/3, where (3 s - 1) / 2 is negative, heads get 0 and 2 s.
// The paper searches at a few denoising steps and reuses the blocks (or an old LSE) in between, which is the source of its speed. A
// prompt is read once and layers do not share blocks, so here every layer searches, and a prefill costs more than a dense one. It
// shows the effect of the sparsity on the text.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "attention/inference/options.h"
#include "attention/kernel/cpu.h"

inline constexpr double ADASPA_GOOD_RECALL = 0.8;

/// Sums over layers and heads.
struct AdaSpaCount {
    double kept = 0, candidates = 0;   // block pairs
    double heads = 0, recall = 0;
    void add(const AdaSpaCount& other) {
        kept += other.kept, candidates += other.candidates, heads += other.heads, recall += other.recall;
    }
};

/// The key blocks that each block row reads: [row] in ascending order.
using KeptBlocks = std::vector<std::vector<int>>;

/// sum_j exp(z_j - lse) over the visible ones of a row's `width` keys. (Inside the lambda below, nvcc would compile it for the GPU.)
template <class X>
X mass_of_row(const X* z, int width, X lse) {
    using N = Pack<X>;
    N sums{};
    for (int j = 0; j < width; j += LANES<X>) {
        const N value = load<N>(z + j);
        sums += value > X(HIDDEN / 2) ? exp_of(value - lse) : N{};
    }
    return sum<X>(sums);
}

/// mass (N, N) = W of head h, zero above the diagonal, after attention_forward() has left its LSE in a.lse. One sequence, T == S.
template <class X, class P>
void adaspa_block_mass(double* mass, const P& policy, const AttentionForward<X>& a, int h, int block) {
    const int blocks = (a.T + block - 1) / block;
    std::fill_n(mass, size_t(blocks) * blocks, 0.0);
    std::vector<X> z(TILE * TILE);
    KeyTiles<X, RowsInOrder> keys(a, RowsInOrder(), Pass::forward);
    keys.start(0, h);
    const TileWalk<X, P> walk(policy, a, 0, h);
    for (int i0 = 0; i0 < a.T; i0 += TILE)
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            const int width = whole_packs<X>(at.columns);
            const X* q = a.q.data + i0 * a.q.row + size_t(h) * a.HS;
            band_scores(z.data(), policy, a, walk, at, verdict, q, a.q.row, keys.tile(at.j0 / TILE).k_transposed);
            double& total = mass[size_t(i0 / block) * blocks + at.j0 / block];
            for (int r = 0; r < at.rows; r++) total += mass_of_row(&z[r * TILE], width, a.lse[size_t(h) * a.T + i0 + r]);
        });
}

/// Number of `candidates` blocks that a row keeps: at least one, and not one too many because 1 - s is rounded.
inline int adaspa_kept(int candidates, double sparsity) {
    return std::max(1, int(std::ceil((1 - sparsity) * candidates - 1e-9)));
}

/// The choice of one head from its mass (N, N).
inline KeptBlocks adaspa_select(const double* mass, int blocks, double sparsity) {
    KeptBlocks rows(blocks);
    for (int p = 0; p < blocks; p++) {
        const double* row = mass + size_t(p) * blocks;
        std::vector<int>& chosen = rows[p];
        chosen.resize(p + 1);
        std::iota(chosen.begin(), chosen.end(), 0);
        std::stable_sort(chosen.begin(), chosen.end(), [&](int c, int other) {
            if ((c == p) != (other == p)) return c == p;   // its own block first
            return row[c] > row[other];
        });
        chosen.resize(adaspa_kept(p + 1, sparsity));
        std::sort(chosen.begin(), chosen.end());
    }
    return rows;
}

/// The share of a head's attention mass in the chosen blocks; each of the T rows has mass 1.
inline double adaspa_recall(const double* mass, const KeptBlocks& rows, int T) {
    double kept = 0;
    for (size_t p = 0; p < rows.size(); p++)
        for (int c : rows[p]) kept += mass[p * rows.size() + c];
    return kept / T;
}

/// The sparsity of each head, from its recall under the common sparsity.
inline std::vector<double> adaspa_sparsities(const std::vector<double>& recall, double sparsity) {
    const int NH = int(recall.size());
    std::vector<int> best_first(NH);
    std::iota(best_first.begin(), best_first.end(), 0);
    std::stable_sort(best_first.begin(), best_first.end(), [&](int h, int other) { return recall[h] > recall[other]; });
    const auto good = std::count_if(recall.begin(), recall.end(), [](double r) { return r > ADASPA_GOOD_RECALL; });
    const int n = std::min(int(good), NH / 2);
    const double step = std::min((1 - sparsity) / 2, sparsity);
    std::vector<double> own(NH, sparsity);
    for (int rank = 0; rank < n; rank++) own[best_first[rank]] += step, own[best_first[NH - 1 - rank]] -= step;
    return own;
}

/// The blocks that all heads read, as the kernel's list: tiles_of(T) entries for each query tile.
struct AdaSpaChoice {
    std::vector<int> tile_count, tiles;
    AdaSpaCount count;

    /// Adds the choice of the next head of a prompt of T tokens.
    void append(const KeptBlocks& rows, int T, int block) {
        const int per_block = block / TILE, stride = tiles_of(T);
        for (int t = 0; t < stride; t++) {
            const size_t begin = tiles.size();
            for (int c : rows[t / per_block])
                for (int tile = c * per_block; tile < std::min((c + 1) * per_block, stride); tile++) tiles.push_back(tile);
            tile_count.push_back(int(tiles.size() - begin));
            tiles.resize(begin + stride, -1);
        }
    }
};

/// Chooses from the masses (NH, N, N) of the heads of a prompt of T tokens.
inline AdaSpaChoice adaspa_choose(const std::vector<double>& masses, int NH, int T, const AdaSpaOptions& how) {
    const int blocks = (T + how.block - 1) / how.block;
    const auto mass = [&](int h) { return &masses[size_t(h) * blocks * blocks]; };
    std::vector<double> recall(NH);
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < NH; h++) recall[h] = adaspa_recall(mass(h), adaspa_select(mass(h), blocks, how.sparsity), T);
    const std::vector<double> sparsities = adaspa_sparsities(recall, how.sparsity);
    AdaSpaChoice chosen;
    for (int h = 0; h < NH; h++) {
        const KeptBlocks rows = adaspa_select(mass(h), blocks, sparsities[h]);
        chosen.append(rows, T, how.block);
        for (const std::vector<int>& row : rows) chosen.count.kept += double(row.size());
        chosen.count.candidates += blocks * (blocks + 1) / 2.0;
        chosen.count.recall += adaspa_recall(mass(h), rows, T);
        chosen.count.heads++;
    }
    return chosen;
}

/// The masses of all heads and the kernel's list.
template <class Device>
struct AdaSpaMemory {
    using Mass = std::conditional_t<std::is_same_v<Device, CPU>, double, float>;
    Mass* mass;          // (NH, N, N)
    int *count, *tiles;  // (NH, tiles), (NH, tiles, tiles)

    /// For prompts of at most T tokens.
    AdaSpaMemory(BumpAllocator& memory, const AdaSpaOptions& how, int NH, int T) {
        const size_t blocks = (T + how.block - 1) / how.block, query_tiles = size_t(NH) * tiles_of(T);
        mass = memory.take<Mass>(NH * blocks * blocks);
        count = memory.take<int>(query_tiles), tiles = memory.take<int>(query_tiles * tiles_of(T));
    }
};

/// mass (NH, N, N): adaspa_block_mass() of every head.
template <class X, class P>
void adaspa_block_masses(CPU, double* mass, const P& policy, const AttentionForward<X>& a, int block) {
    const size_t blocks = (a.T + block - 1) / block;
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < a.NH; h++) adaspa_block_mass(mass + h * blocks * blocks, policy, a, h, block);
}

/// Computes out and lse from the chosen blocks, for one sequence of at most the tokens of `memory`. Precondition: the policy hides the
/// future and no more. The choice is made on the host, as a prefill is no CUDA graph.
template <class Device, class X, class P>
AdaSpaCount adaspa_forward(Device device, const P& policy, AttentionForward<X> a, const AdaSpaOptions& how,
                           const AdaSpaMemory<Device>& memory) {
    attention_forward(device, policy, a);
    adaspa_block_masses(device, memory.mass, policy, a, how.block);
    const size_t blocks = (a.T + how.block - 1) / how.block;
    std::vector<typename AdaSpaMemory<Device>::Mass> masses(a.NH * blocks * blocks);
    to_host(device, masses.data(), memory.mass, masses.size());
    const AdaSpaChoice chosen = adaspa_choose({masses.begin(), masses.end()}, a.NH, a.T, how);
    to_device(device, memory.count, chosen.tile_count.data(), chosen.tile_count.size());
    to_device(device, memory.tiles, chosen.tiles.data(), chosen.tiles.size());
    a.list = {memory.count, memory.tiles, tiles_of(a.T)};
    attention_forward(device, policy, a);
    return chosen.count;
}

/// The same on the CPU, in memory of its own.
template <class X, class P>
AdaSpaCount adaspa_forward(CPU device, const P& policy, const AttentionForward<X>& a, const AdaSpaOptions& how) {
    Arena<CPU> arena;
    AdaSpaMemory<CPU>(arena, how, a.NH, a.T);
    arena.allocate();
    return adaspa_forward(device, policy, a, how, AdaSpaMemory<CPU>(arena, how, a.NH, a.T));
}
