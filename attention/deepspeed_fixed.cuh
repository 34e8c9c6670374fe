// DeepSpeed Sparse Attention, the `Fixed` layout in its unidirectional form (microsoft/DeepSpeed,
// sparsity_config.py; after the fixed pattern of Child et al. 2019). Tokens are grouped into blocks, and L blocks
// make a chunk. With r = block(i) and c = block(j):
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and (floor(r / L) = floor(c / L) or c is global)
//     c is global  if  L - (p + 1) G <= c mod L < L - p G
// A query sees its own chunk up to itself, and G blocks of every earlier chunk: the last G (p = 0), visible from their own rows on.
// With a different layout per head, head h has p = h mod (L / G), so that the heads together see every block of the past; the
// source has an option for the number of such patterns; here it is the maximum. G must divide L, as in the source.
// Blocks are 64 tokens, the kernel's tile; the source's are 16. The source's layout has whole blocks, with G > 1 some above the
// diagonal, and moves the global blocks of a short last chunk; under j <= i neither makes a difference.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"
#include "model/base/error.h"

struct deepspeed_fixed : Policy {
    static constexpr const char* name = "deepspeed_fixed";
    int block, local, globals;   // tokens of a block, L, G
    Divisor patterns;            // that heads cycle through
    Chunks chunks;

    deepspeed_fixed(const Config& config, int layer)
        : Policy(config, layer), block(int(config.setting("deepspeed_fixed_block"))),
          local(int(config.setting("deepspeed_fixed_local"))), globals(int(config.setting("deepspeed_fixed_globals"))),
          patterns(config.setting("deepspeed_fixed_per_head") ? std::max(1, local / globals) : 1), chunks(block * local) {
        if (local % globals != 0)
            fail(Exit::usage, "--deepspeed-fixed-globals (deepspeed_fixed_globals) is ", globals,
                 ", but must be from 1 to ", local, " and divide ", local, ", the blocks of a chunk (--deepspeed-fixed-local)");
    }

    static std::vector<Setting> settings() {
        return {{"--deepspeed-fixed-block", "deepspeed_fixed_block", 64, 1, 1e4, WHOLE, "tokens per block", true},
                {"--deepspeed-fixed-local", "deepspeed_fixed_local", 4, 1, 1e4, WHOLE, "blocks per chunk, L", true, 1,
                 "deepspeed_fixed_block"},
                {"--deepspeed-fixed-globals", "deepspeed_fixed_globals", 1, 1, 1e4, WHOLE,
                 "blocks per chunk that all later rows see, G", true, 1, "deepspeed_fixed_block"},
                {"--deepspeed-fixed-per-head", "deepspeed_fixed_per_head", 0, 0, 1, WHOLE,
                 "choice of the G blocks: 1 rotates over the heads, 0 is the same for all"}};
    }

    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        const int first = first_global(h);
        return chunks.tile(first, first + globals * block, {i0, i1, j0, j1});
    }
    constexpr bool visible(int h, int i, int j) const {
        const int first = first_global(h);
        return chunks.visible(first, first + globals * block, i, j);
    }

    /// With a layout per head, the heads together see all of a chunk.
    constexpr KeptChunks kept_keys() const { return chunks.kept_keys(seen_later()); }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto sees = [&](int h, int i, int j) {
            const int r = i / block, c = j / block, p = h % patterns.divisor();
            const bool same_chunk = r / local == c / local;
            const bool global = c % local >= local - (p + 1) * globals && c % local < local - p * globals;
            return j <= i && (same_chunk || global);
        };
        dense_softmax(in, out, sees);
    }

private:
    /// Tokens at the end of a chunk that at least one head sees from later chunks.
    constexpr int seen_later() const { return patterns.divisor() * globals * block; }
    /// The first token of a chunk's global blocks, counted from the chunk's start.
    constexpr int first_global(int h) const {
        return (local - (patterns.remainder(h) + 1) * globals) * block;
    }
};
