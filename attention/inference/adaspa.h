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

/// W (N, N) of head h, zero above the diagonal, after attention_forward() has left its LSE in a.lse. One sequence, T == S.
template <class X, class P>
std::vector<double> adaspa_block_mass(const P& policy, const AttentionForward<X>& a, int h, int block) {
    const int blocks = (a.T + block - 1) / block;
    std::vector<double> mass(size_t(blocks) * blocks);
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
    return mass;
}

/// Number of `candidates` blocks that a row keeps: at least one, and not one too many because 1 - s is rounded.
inline int adaspa_kept(int candidates, double sparsity) {
    return std::max(1, int(std::ceil((1 - sparsity) * candidates - 1e-9)));
}

/// The choice of one head from its mass (N, N).
inline KeptBlocks adaspa_select(const std::vector<double>& mass, int blocks, double sparsity) {
    KeptBlocks rows(blocks);
    for (int p = 0; p < blocks; p++) {
        const double* row = &mass[size_t(p) * blocks];
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
inline double adaspa_recall(const std::vector<double>& mass, const KeptBlocks& rows, int T) {
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

/// The kernel's list, from the choice of every head: tiles_of(T) entries for each query tile.
struct AdaSpaTiles {
    std::vector<int> count, tiles;
    int stride = 0;

    void append(const KeptBlocks& rows, int T, int block) {
        const int per_block = block / TILE;
        stride = tiles_of(T);
        for (int t = 0; t < stride; t++) {
            const size_t begin = tiles.size();
            for (int c : rows[t / per_block])
                for (int tile = c * per_block; tile < std::min((c + 1) * per_block, stride); tile++) tiles.push_back(tile);
            count.push_back(int(tiles.size() - begin));
            tiles.resize(begin + stride, -1);
        }
    }
    TileList list() const { return {count.data(), tiles.data(), stride}; }
};

/// The blocks that all heads read.
struct AdaSpaChoice {
    AdaSpaTiles tiles;
    AdaSpaCount count;
};

/// Chooses from the mass (N, N) of every head of a prompt of T tokens.
inline AdaSpaChoice adaspa_choose(const std::vector<std::vector<double>>& mass, int T, const AdaSpaOptions& how) {
    const int NH = int(mass.size()), blocks = (T + how.block - 1) / how.block;
    std::vector<double> recall(NH);
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < NH; h++) recall[h] = adaspa_recall(mass[h], adaspa_select(mass[h], blocks, how.sparsity), T);
    const std::vector<double> sparsities = adaspa_sparsities(recall, how.sparsity);
    AdaSpaChoice chosen;
    for (int h = 0; h < NH; h++) {
        const KeptBlocks rows = adaspa_select(mass[h], blocks, sparsities[h]);
        chosen.tiles.append(rows, T, how.block);
        for (const std::vector<int>& row : rows) chosen.count.kept += double(row.size());
        chosen.count.candidates += blocks * (blocks + 1) / 2.0;
        chosen.count.recall += adaspa_recall(mass[h], rows, T);
        chosen.count.heads++;
    }
    return chosen;
}

/// Computes out and lse from the chosen blocks, for one sequence. Precondition: the policy hides no more than the future.
template <class X, class P>
AdaSpaCount adaspa_forward(CPU device, const P& policy, AttentionForward<X> a, const AdaSpaOptions& how) {
    attention_forward(device, policy, a);
    std::vector<std::vector<double>> mass(a.NH);
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < a.NH; h++) mass[h] = adaspa_block_mass(policy, a, h, how.block);
    const AdaSpaChoice chosen = adaspa_choose(mass, a.T, how);
    a.list = chosen.tiles.list();
    attention_forward(device, policy, a);
    return chosen.count;
}
