// SeerAttention (Gao et al. 2024, arXiv 2410.13276; code microsoft/SeerAttention): a gate learns from the model's own dense
// attention which blocks of keys matter, and attention then visits only those.
//     z_ij = a_ij   j <= i, block c(j) chosen by row r(i) or its own          the choice: blocks/block_gate.cuh, masks/select.cuh
//     L = mean_r KL(pooled dense map of row r || softmax of the scores)       the gate's only gradient: blocks/distil.cuh
// The choice is a mask: the language model's loss has no gradient for the gate.
// The source trains the gate alone, after the model: --seer-distil 2, in which attention is dense and everything but w_gq and w_gk
// is frozen; the checkpoint then runs sparse with seer_distil 0. From scratch (the default, 1) both are trained at once: attention
// is sparse, in training as in evaluation and generation, and an additional dense forward pass teaches the gate, at the cost of
// dense attention's forward pass; once the gate is good enough, continue with 0.
// Assumptions, and differences from the source:
// - The published gate query is the mean over the block itself (query 2). A ROW'S MASK THEN DEPENDS ON TOKENS AFTER IT. It is
//   trained only while attention is dense (distil 2), and used sparse only on a complete text, such as a prompt. By default the
//   first token of the block represents it; 1 is the mean of the previous block. A gate query for each token, as in the source's
//   later form for decoding, is left out: a tile of 64 queries would visit the union of 64 choices.
// - --seer-query 3 is not in the source: the pooled dense map selects in place of a gate, as a gate would that matched its teacher
//   exactly. It costs as much as dense attention and is for --evaluate.
// - A block's own keys have no score and are always visited; teacher and student are over past blocks only.
// - top_k past blocks, or a threshold on the shares (published: 5e-4 to 5e-3).
// - The published loss skips the first quarter of the rows (distil_skip 0.25) and is a mean over all entries of the map, about 1/N
//   of the mean over rows used here: learning rates differ by that factor.
// A document of a packed row has its own blocks, counted from its first token (blocks/block_documents.cuh). It trains the gate as if
// it were alone in the row. Forms that look ahead do not keep documents apart.
#pragma once
#include "attention/blocks/block_sparse.cuh"

struct seer : BlockSparse {
    static constexpr const char* name = "seer";

    seer(const Config& config, int layer) : BlockSparse(config, layer, name) {
        mask = BlockMask::hard;
        if (query == GateQuery::oracle && gate_training != GateTraining::off)
            fail(Exit::usage, "--seer-query 3 (seer_query) replaces the gate, so that there is nothing to train; give --seer-distil 0 ",
                 "(seer_distil)");
    }

    static constexpr const char* options_to_train = "--seer-query from 0 to 1, or --seer-distil 2";

    static std::vector<Setting> settings() {
        return {   // a threshold is below 1, which no share exceeds
            {"--seer-block", "seer_block", 64, TILE, LARGEST_BLOCK, TILE, "tokens per block, a multiple of 64", true},
            {"--seer-query", "seer_query", 0, 0, 3, WHOLE,
             "gate query of a block: 0 its first token, 1 the mean of the block before, 2 its own mean (needs --seer-distil 2 to "
             "train); 3 no gate: the dense map selects (inference only)"},
            {"--seer-top-k", "seer_top_k", 8, 0, 1e6, WHOLE, "past blocks selected per block of queries", true, 1, "seer_block"},
            {"--seer-threshold", "seer_threshold", 0, 0, 0.99, REAL,
             "share of the gate above which a block is selected, in place of top-k; 0: use top-k"},
            {"--seer-sink", "seer_sink", 0, 0, 1, WHOLE, "first block of the row: 1 always selected, 0 as any other"},
            {"--seer-distil", "seer_distil", 1, 0, 2, WHOLE,
             "gate training on the dense map: 0 off, 1 joint with the model, 2 gate only, with dense attention"},
            {"--seer-distil-weight", "seer_distil_weight", 1, 0, 1e6, REAL, "weight of the distillation loss"},
            {"--seer-distil-skip", "seer_distil_skip", 0, 0, 0.99, REAL, "share of the first rows to leave out of the distillation loss"},
        };
    }

    void declare(TensorList& list, const std::string& prefix) { BlockSparse::declare(list, prefix + name); }
};
