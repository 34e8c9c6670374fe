// Adaptive Sparse Transformer Block: a learned gate on blocks of keys, heads that switch themselves off, a few dense heads.
//     z_ij = a_ij + log sigmoid(score_h,r(i),c(j))   j <= i, c(j) among the chosen blocks of r(i);   z_ij = a_ij in i's own block
//     score_h,r,c: from pooled q and k before RoPE, with a RoPE of its own (blocks/block_gate.cuh), for past blocks c < r
//     O_ih = g_ih sum_j P_ij v_j,   s_ih = sigmoid(w_h.[q_i; k_i] + b_h),   g_ih = s_ih where s_ih >= theta, else 0
// Where the source is open, this file assumes:
// - The query of a block is q of its first token (or the mean over the previous block, adaptive_sparse_query 1): with the mean over
//   the block itself, as printed, a row's mask would depend on later tokens, and with a query for each token a tile of 64 queries
//   would visit the union of 64 choices.
// - A row's own block contains keys after the row, so it has no score: it is always visited with no bias, and is not a candidate.
// - The choice is of the top_k largest scores or, with a threshold, of all whose share in the softmax over the candidates is above
//   it. It has no gradient; the gate learns through the modulator of the chosen blocks (mask 2, as in a mixture of experts; mask 0
//   visits every block), through distillation from the dense map (blocks/distil.cuh), or both.
// - "Modulator applied to the attention scores": its logarithm is added. As a factor of the score, 0 would mean weight e^0.
// - With a sink, block 0 is visited in addition to the top_k and is not a candidate; its modulator stays.
// - Heads are switched off per token (per sequence would need future tokens), from q and k before RoPE. The gradient is exact, 0
//   where a head is off; adaptive_sparse_ste 1 passes it through there too (gates/head_gate.cuh).
// - The first heads are dense and have no gate of either kind. By default four, but at most half of the heads, and whole groups of
//   heads that share keys.
// - Distillation includes the first quarter of the rows unless distil_skip (published: 0.25) is set. With distil 2 attention is
//   dense, has no head gate, and only w_gq and w_gk are trained. That is the published recipe for a trained or imported model. An
//   imported one needs head_threshold -1: otherwise its heads start out halved when the mask is switched on.
// - --sigma-reparam (a setting of every model; model/operations/sigma_reparam.cuh) divides the model's linear layers by their
//   spectral norms, but not those of the gates.
// A document of a packed row has its own blocks, counted from its first token (blocks/block_documents.cuh). It trains the gate as if
// it were alone in the row.
#pragma once
#include "attention/blocks/block_sparse.cuh"

struct adaptive_sparse : BlockSparse {
    static constexpr const char* name = "adaptive_sparse";

    adaptive_sparse(const Config& config, int layer) : BlockSparse(config, layer, name) {
        auto value = [&](const char* key) { return config.setting(std::string("adaptive_sparse_") + key); };
        mask = BlockMask(int(value("mask")));
        choice.dense_heads = dense_heads(int(value("dense_heads")));
        head_threshold = float(value("head_threshold")), straight_through = value("ste") != 0;
    }

    static std::vector<Setting> settings() {
        return {   // thresholds are below 1, which no share and no gate reaches
            {"--adaptive-sparse-block", "adaptive_sparse_block", 64, TILE, LARGEST_BLOCK, TILE,
             "tokens per block, a multiple of 64", true},
            {"--adaptive-sparse-query", "adaptive_sparse_query", 0, 0, 1, WHOLE,
             "gate query of a block: 0 its first token, 1 the mean of the block before"},
            {"--adaptive-sparse-mask", "adaptive_sparse_mask", 2, 0, 2, WHOLE,
             "use of the gate: 0 modulates all blocks, 1 selects blocks, 2 both"},
            {"--adaptive-sparse-top-k", "adaptive_sparse_top_k", 8, 0, 1e6, WHOLE, "past blocks selected per block of queries",
             true, 1, "adaptive_sparse_block"},
            {"--adaptive-sparse-threshold", "adaptive_sparse_threshold", 0, 0, 0.99, REAL,
             "share of the gate above which a block is selected, in place of top-k; 0: use top-k"},
            {"--adaptive-sparse-sink", "adaptive_sparse_sink", 0, 0, 1, WHOLE, "first block of the row: 1 always selected, 0 as any other"},
            {"--adaptive-sparse-dense-heads", "adaptive_sparse_dense_heads", -1, -1, 1e6, WHOLE,
             "heads without a gate, in whole key/value groups; -1: four, at most half of them"},
            {"--adaptive-sparse-head-threshold", "adaptive_sparse_head_threshold", 0.3, -1, 0.99, REAL,
             "gate value below which a head is off for a token; negative: no head gate"},
            {"--adaptive-sparse-ste", "adaptive_sparse_ste", 0, 0, 1, WHOLE,
             "gradients of heads that are off: 1 straight-through, 0 none"},
            {"--adaptive-sparse-distil", "adaptive_sparse_distil", 0, 0, 2, WHOLE,
             "gate training on the dense map: 0 off, 1 joint with the model, 2 gate only, with dense attention"},
            {"--adaptive-sparse-distil-weight", "adaptive_sparse_distil_weight", 1, 0, 1e6, REAL, "weight of the distillation loss"},
            {"--adaptive-sparse-distil-skip", "adaptive_sparse_distil_skip", 0, 0, 0.99, REAL,
             "share of the first rows to leave out of the distillation loss"},
        };
    }

    void declare(TensorList& list, const std::string& prefix) {
        BlockSparse::declare(list, prefix + name);
        if (head_threshold < 0) return;
        head_weight = list.add(prefix + "adaptive_sparse.head.weight", {NH, 2 * HS}, zeros(), Decay::yes);
        head_bias = list.add(prefix + "adaptive_sparse.head.bias", {NH}, zeros(), Decay::no);
    }

private:
    /// The setting's value, or for -1 the default for this number of heads.
    int dense_heads(int value) const {
        const int group = NH / NKV;
        if (value < 0) return std::min(4, NH / 2) / group * group;
        if (value > NH || value % group)
            fail(Exit::usage, "--adaptive-sparse-dense-heads is ", value, "; it must be a multiple of ", group,
                 " (the heads that share keys) from 0 to ", NH, ", or -1 for the default");
        return value;
    }
};
