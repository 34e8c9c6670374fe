// Sparse Transformer, fixed pattern (Child et al. 2019, arXiv 1904.10509): the text is cut into chunks of l tokens, whose last c
// tokens are read by everything after them and so have to summarise the chunk.
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and j in A1(i) or A2(i)
//     A1(i) = {j : floor(j / l) = floor(i / l)}      A2(i) = {j : j mod l >= l - c}
// The paper names three ways of combining the two: alternating between layers, alternating between heads, or merged. This is the
// merged one, a single softmax over the union, as in the paper's enwik8 model (l = 128, c = 32). The paper also lets heads use
// different parts of a chunk; here every head reads the last c, and deepspeed_fixed has the other form.
// With c below 64 a tile of summaries is visited for a part of its columns only: multiples of 64 (and l >= 256) waste nothing.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"
#include "model/base/error.h"

struct fixed_factorized : Policy {
    static constexpr const char* name = "fixed_factorized";
    int length, summary;   // l, c
    Chunks chunks;

    fixed_factorized(const Config& config, int layer)
        : Policy(config, layer), length(int(config.setting("fixed_factorized_chunk"))),
          summary(int(config.setting("fixed_factorized_summary"))), chunks(length) {
        if (summary > length)
            fail(Exit::usage, "--fixed-factorized-summary (fixed_factorized_summary) is ", summary, ", but must be from 0 to ",
                 length, ", the length of a chunk (--fixed-factorized-chunk)");
    }

    static std::vector<Setting> settings() {
        return {{"--fixed-factorized-chunk", "fixed_factorized_chunk", 128, 1, 1e6, WHOLE, "tokens per chunk, l", true},
                {"--fixed-factorized-summary", "fixed_factorized_summary", 32, 0, 1e6, WHOLE,
                 "tokens at the end of a chunk that all later ones see, c"}};
    }

    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        return chunks.tile(length - summary, length, {i0, i1, j0, j1});
    }
    constexpr bool visible(int, int i, int j) const { return chunks.visible(length - summary, length, i, j); }
    constexpr KeptChunks kept_keys() const { return chunks.kept_keys(summary); }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto sees = [&](int, int i, int j) { return j <= i && (j / length == i / length || j % length >= length - summary); };
        dense_softmax(in, out, sees);
    }
};
