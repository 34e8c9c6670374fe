// Mixture of Sparse Attention (Piekos et al. 2025, arXiv 2505.00315): every sparse head chooses its tokens, and only those attend
// to each other; the first heads stay dense.
//     r_th = sigmoid(w_h . x_t), x the block's normed input;   S_h = the tokens that head h chooses
//     O'_th = r_th sum_{j in S_h, j <= t} P_tj v_j   for t in S_h,   0 for the others;   P the softmax of q_t.k_j / sqrt(HS) over
//     those j
// The paper uses expert choice: the T / rho tokens of the whole sequence with the largest r. WHETHER A TOKEN IS CHOSEN THEN DEPENDS
// ON THE TOKENS AFTER IT: training sees the future, and so do the paper's perplexities (as its section 5 says). --mosa-choice 1 is
// this form, for comparison; a model trained with it cannot generate text.
// The default is a threshold, which each token meets or not on its own: r_th > tau_h. tau_h follows the data so that one token in
// rho is chosen: it moves by rate (share chosen - 1 / rho) per step (Robbins and Monro's estimate of a quantile) and is not part of
// the loss. The first token of a sequence is always chosen, so that no head is empty. Assumptions: queries, keys and values come
// from the model's projections, with keys shared in groups as everywhere, instead of matrices per head; RoPE uses the token's position
// in the text. The choice has no gradient; the router learns through r. A chosen row costs at most T / rho keys: a head's rows are its
// chosen tokens, so that tiles without any are never visited. The released code (piotrpiekos/MoSA) rotates half of each head and does
// not force the first token, unless rotate_fraction and include_first are set.
// A document of a packed row has its first token chosen too; thresholds follow the share of all tokens.
#pragma once
#include <algorithm>

#include "attention/branches/branches.cuh"
#include "attention/gates/row_gate.cuh"
#include "attention/gates/token_linear.cuh"
#include "attention/masks/choose_tokens.cuh"

struct mosa : Policy {
    static constexpr const char* name = "mosa";
    static constexpr Traits traits{.own_passes = true, .reads_x = true, .gates_output = true, .tokens_choose = true};
    int NH, C, dense_heads;
    double rho, rate;
    bool expert_choice;
    InputLinear router;   // w_r (NH - dense_heads, C)
    Slot tau;             // (NH - dense_heads), a statistic

    mosa(const Config& config, int layer)
        : Policy(config, layer), NH(config.NH), C(config.C), dense_heads(int(config.setting("mosa_dense_heads"))),
          rho(config.setting("mosa_rho")), rate(config.setting("mosa_rate")), expert_choice(config.setting("mosa_choice") == 1) {
        if (dense_heads > NH)
            fail(Exit::usage, "--mosa-dense-heads is ", dense_heads, "; with ", NH, " heads it must be from 0 to ", NH, ", or -1");
        if (dense_heads < 0) dense_heads = std::min(4, NH / 2);
    }

    static std::vector<Setting> settings() {
        return {
            {"--mosa-rho", "mosa_rho", 8, 1, 1e6, REAL, "sparsity of sparse heads: each selects one token in rho", true},
            {"--mosa-dense-heads", "mosa_dense_heads", -1, -1, 1e6, WHOLE,
             "number of leading heads that are dense; -1: four, at most half of them"},
            {"--mosa-rate", "mosa_rate", 0.05, 1e-6, 1, REAL, "update rate of the thresholds towards one token in rho, per step"},
            {"--mosa-choice", "mosa_choice", 0, 0, 1, WHOLE,
             "selection of tokens: 0 by threshold; 1 expert choice, as published, WHICH LOOKS INTO THE FUTURE"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        if (sparse_heads() == 0) return;
        router = {list.add(prefix + "mosa.w_r", {sparse_heads(), C}, normal(0.02), Decay::yes), {}, sparse_heads()};
        tau = list.add_statistic(prefix + "mosa.tau", {sparse_heads()}, constant(0.5), rate);
    }

    int sparse_heads() const { return NH - dense_heads; }
    Form form() const { return {.is_causal = !expert_choice || rho == 1 || sparse_heads() == 0}; }

    /// Dense heads see all pairs, sparse heads those of T / rho chosen tokens.
    PairCount expected_pairs(int heads, int T) const {
        const PairCount dense = count_pairs(static_cast<const Policy&>(*this), 1, T);
        const double chosen = std::min(double(T), std::max(2.0, T / rho)), tiles = std::ceil(chosen / TILE);
        const int sparse = heads - dense_heads;
        return {dense_heads * dense.pairs + sparse * chosen * (chosen + 1) / 2,
                dense_heads * dense.tiles + sparse * tiles * (tiles + 1) / 2};
    }

    /// Sparse heads keep their chosen keys; a key shared by a group of heads is counted once per head.
    double cached_keys(int T) const { return (dense_heads * double(T) + sparse_heads() * std::min(double(T), T / rho)) / NH; }

    // ---- memory

    template <class X>
    struct Kept {
        BumpAllocator allocator;
        LayerShape s;
        int* tokens = allocator.take<int>(size_t(s.B) * s.NH * s.T);   // (B, NH, T) the token of each row
        int* rows = allocator.take<int>(size_t(s.B) * s.NH * s.T);     // (B, NH, T) the row of each token, or -1
        ListedRows listed() const { return {s.T, s.T, s.NH, tokens, rows}; }
    };
    template <class X, class Device>
    struct ForwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ListedRows chosen;
        X* out;
        Wide<X>* u = allocator.take<Wide<X>>(size_t(s.B) * s.T * s.NH);   // (B, T, NH - dense_heads)
        BranchesForward<Device, X, ListedRows> branches{allocator, s, out, {chosen}};
    };
    template <class X, class Device>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ListedRows chosen;
        size_t kernel_bytes;
        X* dout = allocator.take<X>(size_t(s.B) * s.T * s.NH * s.HS);      // (B, T, NH, HS) before the gate
        Wide<X>* du = allocator.take<Wide<X>>(size_t(s.B) * s.T * s.NH);   // (B, T, NH - dense_heads)
        BranchesBackward<Device, X, ListedRows> branches{allocator, s, chosen, kernel_bytes};
    };
    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        return attention_workspace(device, static_cast<const Policy&>(*this), s.B, s.T, s.T, s.NH);
    }
    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return Kept<X>{BumpAllocator(nullptr), s}.allocator.bytes();
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        const BumpAllocator none(nullptr);
        const ListedRows chosen = Kept<X>{none, s}.listed();
        const ForwardScratch<X, Device> forward{none, s, chosen, nullptr};
        const BackwardScratch<X, Device> backward{none, s, chosen, kernel_bytes(device, s)};
        return std::max(forward.allocator.bytes(), backward.allocator.bytes());
    }

    // ---- the layer

    TokenChoice choice(const LayerShape& s, const Documents& documents = {}) const {
        const int count = std::min(s.T, std::max(2, int(s.T / rho)));
        return {s.B, s.T, NH, dense_heads, expert_choice, count, float(1 / rho), 0, documents};
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const Kept<X> kept{BumpAllocator(state.kept), in};
        const ListedRows rows = kept.listed();
        ForwardScratch<X, Device> scratch{BumpAllocator(workspace), in, rows, state.out};
        if (sparse_heads()) token_linear_forward(device, scratch.u, router.of(in, weights));
        choose_tokens(device, state.score_inputs.gate, kept.tokens, kept.rows, scratch.u, weights + tau.offset,
                      choice(in, in.documents));
        scratch.branches.begin_with_none(device, in, state, statistics);
        scratch.branches.add(device, static_cast<const Policy&>(*this), rows,
                             branch_arguments(in, rows, state, statistics, kept.tokens));
        scratch.branches.finish(device, in, state, statistics);
        gate_rows_forward(device, state.gated_out, state.out, state.score_inputs.gate, size_t(in.B) * in.T * NH, in.HS);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const Kept<X> kept{BumpAllocator(state.kept), in};
        const ListedRows rows = kept.listed();
        BackwardScratch<X, Device> scratch{BumpAllocator(workspace), in, rows, kernel_bytes(device, in)};
        gate_rows_backward(device, scratch.dout, more.of.gate, dout, state.out, state.score_inputs.gate, size_t(in.B) * in.T * NH,
                           in.HS);
        scratch.branches.add(device, static_cast<const Policy&>(*this), rows,
                             branch_arguments(in, rows, state, Statistics<X>{}, kept.tokens),
                             kernel_gradients<X>(scratch.dout, to), Write::overwrite);
        if (!sparse_heads()) return;
        router_backward(device, scratch.du, more.of.gate, state.score_inputs.gate, choice(in));
        router.backward(device, more, scratch.du, in, weights);
        move_thresholds(device, more.dweights + tau.offset, kept.rows, choice(in), more.dloss);
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        std::vector<X> r(size_t(in.B) * NH * in.T, X(1));
        std::vector<char> chosen(r.size(), 1);
        for (int b = 0; b < in.B; b++)
            for (int h = dense_heads; h < NH; h++) {
                X* mine = &r[(size_t(b) * NH + h) * in.T];
                const X* const w = weights + router.weight.offset + size_t(h - dense_heads) * C;
                for (int t = 0; t < in.T; t++) mine[t] = 1 / (1 + std::exp(-dot(w, in.x + in.token(b, t) * C, C)));
                std::vector<X> sorted(mine + 1, mine + in.T);   // the first token is always chosen
                std::sort(sorted.rbegin(), sorted.rend());
                const int others = std::min(in.T, choice(in).count) - 1;
                const X least = others > 0 ? sorted[others - 1] : X(2);
                for (int t = 1; t < in.T; t++)
                    chosen[(size_t(b) * NH + h) * in.T + t] =
                        expert_choice ? mine[t] >= least : mine[t] > weights[tau.offset + h - dense_heads];
            }
        for (int b = 0; b < in.B; b++)   // one sequence at a time: their masks differ
            dense_softmax_of_sequence(
                in, b, out, [](int, int, int, int, X a) { return a; },
                [&](int h, int i, int j) {
                    const char* mine = &chosen[(size_t(b) * NH + h) * in.T];
                    return j <= i && mine[i] && mine[j];
                });
        for (int b = 0; b < in.B; b++)
            for (int t = 0; t < in.T; t++)
                for (int h = 0; h < NH; h++)
                    for (int d = 0; d < in.HS; d++)
                        out[(in.token(b, t) * NH + h) * in.HS + d] *= r[(size_t(b) * NH + h) * in.T + t];
    }
};
