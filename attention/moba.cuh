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
#include "attention/blocks/token_blocks.cuh"

struct moba : Policy {
    static constexpr const char* name = "moba";
    static constexpr Traits traits{.own_passes = true, .tokens_choose = true};
    int block, top, NH;

    moba(const Config& config, int layer)
        : Policy(config, layer), block(int(config.setting("moba_block"))), top(int(config.setting("moba_top_k"))), NH(config.NH) {}

    static std::vector<Setting> settings() {
        return {{"--moba-block", "moba_block", 128, TILE, 1 << 20, TILE, "tokens per block, a multiple of 64", true},
                {"--moba-top-k", "moba_top_k", 3, 1, 1e6, WHOLE, "blocks that each token sees, including its own", true, 1,
                 "moba_block"}};
    }

    ForcedBlocks own_block() const { return {*this, block, 0, 1}; }
    ForcedBlocks forced(int T) const { return own_block().in_text(top - 1, T); }
    /// Maximum number of blocks that a token selects in a text of s.T tokens.
    int slots_of(const LayerShape& s) const { return own_block().slots(top - 1, s.T); }
    BlockChoice block_choice(const LayerShape& s) const {
        const BlockChoice c{s.B, s.T, s.NH, s.NH, block, forced(s.T).slots(top - 1, s.T)};
        require_countable(c, "--moba-top-k", "moba_top_k", "lower it, or raise --moba-block");
        return c;
    }

    PairCount expected_pairs(int heads, int T) const { return expected_block_pairs(forced(T), top - 1, heads, T); }

    /// Keys, values, and the mean key of every past block, which is half of a key/value pair.
    double cached_keys(int T) const { return T + 0.5 * ((T - 1) / block); }

    // ---- memory

    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return block_choice(s).size() * sizeof(int);
    }
    template <class X, class Device>
    struct Scratch {
        BumpAllocator allocator;
        Wide<X>* means;   // (B, NKV, blocks, HS)
        TokenBlocks<Device, X> blocks;
        Scratch(Device device, const moba& a, std::byte* memory, const LayerShape& s)
            : allocator(memory),
              means(allocator.take<Wide<X>>(size_t(s.B) * s.NKV * a.block_choice(s).blocks() * s.HS)),
              blocks(device, allocator, s, a.block_choice(s), a) {}
    };
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return Scratch<X, Device>(device, *this, nullptr, s).allocator.bytes();
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const Scratch<X, Device> scratch(device, *this, workspace, in);
        int* const choice = reinterpret_cast<int*>(state.kept);
        if (block_choice(in).slots > 0)
            choose_by_means(device, choice, {scratch.means, in.k, in.qk_row, in, block, in.documents}, in, block_choice(in));
        scratch.blocks.forward(device, forced(in.T), token_block_arguments(in, state, statistics), choice);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& /*more*/, std::byte* workspace) const {
        const Scratch<X, Device> scratch(device, *this, workspace, in);
        scratch.blocks.backward(device, forced(in.T), token_block_arguments(in, state, Statistics<X>{}), branch_gradients(dout, to),
                                reinterpret_cast<const int*>(state.kept));
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto chosen = [&](int b, int h, int i, int n) {   // fewer than top - 1 past blocks are better
            auto score = [&](int m) {
                X sum = 0;
                for (int j = m * block; j < (m + 1) * block; j++) sum += dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS);
                return sum;
            };
            int better = 0;
            const X mine = score(n);
            for (int m = 0; m < i / block; m++) better += score(m) > mine || (score(m) == mine && m < n);
            return better < top - 1;
        };
        for (int b = 0; b < in.B; b++) {
            const int N = in.T / block + 1;
            std::vector<char> sees(size_t(in.NH) * in.T * N);
            for (int h = 0; h < in.NH; h++)
                for (int i = 0; i < in.T; i++)
                    for (int n = 0; n <= i / block; n++)
                        sees[(size_t(h) * in.T + i) * N + n] = n == i / block || chosen(b, h, i, n);
            dense_softmax_of_sequence(
                in, b, out, [](int, int, int, int, X a) { return a; },
                [&](int h, int i, int j) { return j <= i && sees[(size_t(h) * in.T + i) * N + j / block]; });
        }
    }
};
