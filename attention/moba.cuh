// Mixture of Block Attention (Lu et al. 2025, arXiv 2502.13189): every token and head chooses the blocks of keys it attends to, as
// a mixture of experts chooses experts, without a parameter:
//     s_i,n = <q_i, mean of k_j over block n>     n a block before the token's own
//     out_i = sum_j P_ij v_j   over the keys j <= i of its own block and of the k - 1 blocks with the greatest s
// The selection has no gradient. Every query head selects independently, also if heads share keys.
// Assumptions: q and k are taken after RoPE, where the released code replaces transformers' attention function; the own block is one of
// the k, as in the paper's experiments; ties go to earlier blocks. The paper trains with blocks of 512 and k = 3 at 8192 tokens, and with
// 4096 and 12 for long texts; the default keeps the share of the first, 3 blocks of 16, at 2048 tokens. --dense-layers keeps some layers
// dense.
// A document of a packed row (varlen) has its own blocks, counted from its first token (blocks/document_blocks.h).
// State per token, head and layer: k - 1 integers, the selection.
#pragma once
#include "attention/blocks/mean_gate.cuh"
#include "attention/blocks/naive_choice.h"
#include "attention/blocks/token_blocks.cuh"

struct moba : AttentionByChoice<moba> {
    static constexpr const char* name = "moba";
    static constexpr Traits traits{.own_passes = true, .tokens_choose = true};
    int block, top, NH;

    moba(const Config& config, int layer)
        : AttentionByChoice(config, layer), block(int(config.setting("moba_block"))), top(int(config.setting("moba_top_k"))),
          NH(config.NH) {}

    static std::vector<Setting> settings() {
        return {{"--moba-block", "moba_block", 128, TILE, 1 << 20, TILE, "tokens per block, a multiple of 64", true},
                {"--moba-top-k", "moba_top_k", 3, 1, 1e6, WHOLE, "blocks that each token sees, including its own", true, 1,
                 "moba_block"}};
    }

    ForcedBlocks forced_blocks() const { return {*this, block, 0, 1}; }
    BlockChoice block_choice(const LayerShape& s) const {
        const BlockChoice c{s.B, s.T, s.NH, s.NH, block, forced(s.T).slots(top - 1, s.T)};
        require_countable(c, "--moba-top-k", "moba_top_k", "lower it, or raise --moba-block");
        return c;
    }

    /// Keys, values, and the mean key of every past block, which is half of a key/value pair.
    double cached_keys(int T) const { return T + 0.5 * ((T - 1) / block); }

    template <class X, class Device>
    struct Scratch {
        BumpAllocator allocator;
        Wide<X>* means;   // (B, blocks, NKV, HS)
        TokenBlocks<Device, X> blocks;
        Scratch(Device device, const moba& a, std::byte* memory, const LayerShape& s)
            : allocator(memory),
              means(allocator.take<Wide<X>>(size_t(s.B) * s.NKV * a.block_choice(s).blocks() * s.HS)),
              blocks(device, allocator, s, a.block_choice(s), a) {}
    };
    template <class Device, class X>
    void choose(Device device, int* choice, const LayerInputs<X>& in, const Scratch<X, Device>& scratch) const {
        choose_by_means(device, choice, MeanGate<X>{block_choice(in), in, scratch.means});
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        dense_softmax_of_blocks(in, out, block, in.NH, [&](int b, int h, int i) {
            std::vector<X> sums(i / block + 1);   // ranked as the means are
            for (int j = 0; j < i / block * block; j++) sums[j / block] += dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS);
            return naive_choice(sums.data(), {.top = top - 1}, i / block);
        });
    }
};
