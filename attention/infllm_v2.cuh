// InfLLM-V2 (Zhao et al. 2025, arXiv 2509.24663; code OpenBMB/infllmv2_cuda_impl, MiniCPM4.1): NSA's choice of blocks without NSA's
// branches and parameters. Keys and values are the model's, and one softmax is over all chosen blocks:
//     Kc_c = mean of k over tokens c d .. c d + l - 1        p_hc = softmax over c of q_h.Kc_c / sqrt(HS), complete c in the past
//     s_j  = max over the c that overlap block j of sum_h p_hc, h the query heads that share keys
//     out_i = sum_j P_ij v_j   over the keys j <= i of the first block, the `local` last ones up to its own, and the `top - 1` others
//                              with the greatest s
// The choice has no gradient. It is one per token and key/value head; ties go to earlier blocks.
// As there are no tensors, train_causal's checkpoints continue in train_infllm_v2 and back: the paper's switch from short to long texts.
// Rows below 64 (top_k + local) see everything.
// Assumptions: q and k are after RoPE, as in the code. The softmax over c is exact; the code takes its denominator from coarser means
// (4 l, 4 d) to save a pass. The code runs texts below dense_len (8192) dense; a row would then depend on the length of its text, and that
// switch is left out. Published sizes are l 32, d 16, 64 chosen blocks of 64 and 32 local ones for texts of 32768; defaults here are in
// proportion to 2048.
// Documents of packed rows (varlen) have their own blocks, counted from their first token, if l >= d (blocks/document_blocks.h).
// Kept per token, key/value head and layer: top_k - 1 integers, the choice.
#pragma once
#include <algorithm>
#include <climits>
#include <vector>

#include "attention/blocks/mean_gate.cuh"
#include "attention/blocks/naive_choice.h"
#include "attention/blocks/token_blocks.cuh"
#include "attention/kernel/layer.h"
#include "attention/nsa/importance.cuh"

struct infllm_v2 : AttentionByChoice<infllm_v2> {
    static constexpr const char* name = "infllm_v2";
    static constexpr Traits traits{.own_passes = true, .tokens_choose = true};
    BlockGrid grid;   // of the compressed keys
    int top, local;

    infllm_v2(const Config& config, int layer)
        : AttentionByChoice(config, layer), grid{int(config.setting("infllm_v2_kernel")), int(config.setting("infllm_v2_stride"))},
          top(int(config.setting("infllm_v2_top_k"))), local(int(config.setting("infllm_v2_local"))) {}

    static std::vector<Setting> settings() {
        return {{"--infllm-v2-kernel", "infllm_v2_kernel", 32, 1, 1024, WHOLE, "tokens per compressed key", true},
                {"--infllm-v2-stride", "infllm_v2_stride", 16, 1, 1024, WHOLE, "stride between compressed keys in tokens", true},
                {"--infllm-v2-top-k", "infllm_v2_top_k", 5, 1, 1e6, WHOLE,
                 "blocks of 64 tokens that each token selects, the first block included", true, TILE},
                {"--infllm-v2-local", "infllm_v2_local", 2, 1, 1e6, WHOLE, "last blocks of 64 tokens that each token sees", true, TILE}};
    }

    Form form() const { return {.keeps_documents_apart = grid.l >= grid.d}; }

    ForcedBlocks forced_blocks() const { return {*this, TILE, 1, local}; }
    TileChoice rule(const LayerShape& s) const { return {.top = slots_of(s), .leading = 1, .local = local}; }
    BlockChoice block_choice(const LayerShape& s) const {
        const BlockChoice c{s.B, s.T, s.NH, s.NKV, TILE, forced(s.T).slots(top - 1, s.T)};
        require_countable(c, "--infllm-v2-top-k", "infllm_v2_top_k", "lower it");
        return c;
    }
    CompressShape compressed(const LayerShape& s, const Documents& documents = {}) const {
        return {s.B, s.T, s.NKV, s.HS, grid, documents};
    }
    /// Compressed keys of packed documents are at the positions of their first tokens.
    CompressedMask mask(const Documents& documents = {}) const { return {*this, documents ? 1 : grid.d, grid.l - 1, INT_MAX}; }

    /// Every visible compressed key takes three products: two for the denominator of its softmax, one for the choice.
    double further_pairs(int heads, int T) const {
        return forced_blocks().candidates(T) < top ? 0 : 1.5 * heads * T / 2 * (double(T) / grid.d);
    }

    double cached_keys(int T) const { return T + 0.5 * grid.complete(T); }

    template <class X, class Device>
    struct Scratch {
        BumpAllocator allocator;
        X *means, *out;       // (B, R, NKV, HS); (B, T, NH, HS), not read
        Wide<X>*lse, *scores;   // (B, NH, T); scores of blocks during the choice
        int* positions;       // (B, NH, R) of the compressed keys of packed documents
        TokenBlocks<Device, X> blocks;
        Scratch(Device device, const infllm_v2& a, std::byte* memory, const LayerShape& s)
            : allocator(memory), means(allocator.take<X>(a.compressed(s).keys() * s.HS)),
              out(allocator.take<X>(size_t(s.B) * s.T * s.NH * s.HS)), lse(allocator.take<Wide<X>>(size_t(s.B) * s.NH * s.T)),
              scores(allocator.take<Wide<X>>(importance_scratch(device, a.block_choice(s), s.T))),
              positions(allocator.take<int>(size_t(s.B) * s.NH * a.grid.rows(s.T))),
              blocks(device, allocator, s, a.block_choice(s), a) {}
    };
    template <class Device, class X>
    void choose(Device device, int* choice, const LayerInputs<X>& in, const Scratch<X, Device>& scratch) const {
        const CompressShape s = compressed(in, in.documents);
        const int R = grid.rows(in.T);
        each_element(device, size_t(in.B) * R * in.NKV, in.HS,
                     MeanKeys<X, X>{scratch.means, {in.k, in.qk_row}, R, in.NKV, in.HS, s.blocks()});
        place_compressed(device, scratch.positions, s, in.NH);
        AttentionForward<X> a{};
        a.B = in.B, a.T = in.T, a.S = R, a.NH = in.NH, a.NKV = in.NKV, a.HS = in.HS, a.documents = in.documents;
        a.q = {in.q, in.qk_row}, a.k = a.v = {scratch.means, size_t(in.NKV) * in.HS};
        a.k_position = in.documents ? scratch.positions : nullptr;
        a.out = scratch.out, a.lse = scratch.lse;
        attention_forward(device, mask(in.documents), a);
        const Importance<X> importance{in.B, in.T, in.NH, in.NKV, in.HS, grid, 1, {in.q, in.qk_row}, scratch.means, scratch.lse,
                                       scratch.scores, in.documents, Pool::largest};
        choose_by_importance(device, choice, importance, block_choice(in), rule(in));
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        const int G = in.NH / in.NKV;
        const auto score_of_mean = [&](int b, int i, int h, int c) {
            X sum = 0;
            for (int j = c * grid.d; j < c * grid.d + grid.l; j++) sum += dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS);
            return sum / grid.l / std::sqrt(X(in.HS));
        };
        dense_softmax_of_blocks(in, out, TILE, in.NKV, [&](int b, int kv, int i) {
            std::vector<X> shares(grid.complete(i + 1)), of_blocks(i / TILE + 1);
            for (int h = kv * G; h < (kv + 1) * G; h++) {
                std::vector<X> p(shares.size());
                X total = 0;
                for (size_t c = 0; c < p.size(); c++) total += p[c] = std::exp(score_of_mean(b, i, h, int(c)));
                for (size_t c = 0; c < p.size(); c++) shares[c] += p[c] / total;
            }
            for (size_t c = 0; c < shares.size(); c++)
                for (int t = int(c) * grid.d; t < int(c) * grid.d + grid.l; t++)
                    of_blocks[t / TILE] = std::max(of_blocks[t / TILE], shares[c]);
            return naive_choice(of_blocks.data(), {.top = top - 1, .leading = 1, .local = local}, i / TILE);
        });
    }
};
