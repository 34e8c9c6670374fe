// Native Sparse Attention (Yuan et al. 2025, arXiv 2502.11089): three gated branches, each a softmax over its own keys and values:
//     cmp  compressed keys Kc_c = phi_k(k_{c d} .. k_{c d + l - 1}), values likewise; c is visible when c d + l - 1 <= i
//     slc  whole blocks of 64 tokens: the first, the query's own and the one before, and those that matter most by the attention to
//          the compressed keys of all query heads that share keys, n in total (nsa/importance.cuh); causal inside
//     win  the keys i - w .. i
//     out_i = sum_c g_c,i out_c,i,   g = sigmoid(Wg x_i), one per branch, head and token
// The choice of blocks has no gradient: its inputs are trained because cmp uses them too.
// Every token chooses, as in the paper, whose kernel takes one token's query heads at a time and needs 16 or more that share keys. Here
// tiles of queries take all blocks that any of theirs chose, however few heads there are (nsa/selection.cuh). --nsa-choice 1 is our
// own, cheaper form: the 64 queries of a tile share their first token's choice.
// The paper leaves open, and this file assumes:
//   - phi: one hidden layer of HS units, GELU in its tanh form, no bias at the output.
//   - Positions: cmp takes q and k before RoPE; pe encodes positions within a block, and the block's own position is not encoded.
//     (phi could not undo the rotation of rotated keys.) slc and win take q and k after RoPE.
//   - Projections: win uses the model's k and v. cmp and slc have linear ones of their own without bias, k without QK-norm.
//     nsa_shared_kv = 1: all three use the model's, as some implementations do; cmp then takes k after QK-norm.
//   - --window N reaches N keys back and includes the query's own: the paper's w = 512 keys are the default 511 here.
//   - A query that sees no complete block gets 0 from cmp. A sequence may be shorter than l.
// flash-linear-attention's form of nsa compresses by a mean; its choice, given these compressed keys, and its branches agree (README.md).
// Documents of packed rows: all blocks are a document's, counted from its first token (blocks/document_blocks.h). This requires
// l >= d, so that compressed blocks leave no gap, and a choice per token, because tiles of 64 queries belong to the row.
// state.lse is slc's; a monitor sees the statistics and the gate of each branch.
// Kept per token and layer, in elements: 3 NH HS outputs, 4 NKV HS projections, 4 NKV HS / d compressed keys, values and hidden
// units; in float32 5 NH gates and log-sum-exps; n - 3 integers for each of NKV heads, the choice.
#pragma once
#include <algorithm>
#include <climits>

#include "attention/gates/gated_sum.cuh"
#include "attention/kernel/layer.h"
#include "attention/nsa/naive_nsa.h"
#include "attention/nsa/selection.cuh"
#include "attention/scores/rotate_heads.cuh"

enum { CMP, SLC, WIN };   // the branches

/// Kept for the backward pass.
template <class X>
struct NsaKept {
    BumpAllocator allocator;
    LayerShape s;
    bool shared;
    size_t compressed, choices, tokens = size_t(s.B) * s.T, heads = tokens * s.NH;
    /// (B, T, 4, NKV, HS) k and v of cmp, k (rotated) and v of slc; null where the model's are shared
    X* projected = shared ? nullptr : allocator.take<X>(tokens * 4 * s.NKV * s.HS);
    X *k_hidden = allocator.take<X>(compressed), *v_hidden = allocator.take<X>(compressed);   // (B, R, NKV, HS) inside phi
    X *k = allocator.take<X>(compressed), *v = allocator.take<X>(compressed);                 // (B, R, NKV, HS) compressed
    GatedBranches<X> branches{allocator, heads, s.HS};
    /// (B, NH, T); slc's is the layer's own
    Wide<X>* lse[BRANCHES] = {allocator.take<Wide<X>>(heads), nullptr, allocator.take<Wide<X>>(heads)};
    int* choice = allocator.take<int>(choices);   // slc's (Selection::choice)
};

/// Scratch memory of either pass.
template <class X>
struct NsaWork {
    using W = Wide<X>;
    BumpAllocator allocator;
    LayerShape s;
    CompressShape blocks;
    const Selection& selection;
    size_t score_numbers, attention_bytes;
    size_t tokens = size_t(s.B) * s.T, heads = tokens * s.NH, keys = tokens * s.NKV * s.HS, compressed = blocks.keys() * s.HS;
    CompressWork<X> compress{allocator, blocks};
    X* logits = allocator.take<X>(BRANCHES * heads);                 // (B, T, 3, NH) of the gates; backward: their gradient
    W* scores = allocator.take<W>(score_numbers);                    // scores of blocks during the choice
    X* dprojected = allocator.take<X>(4 * keys);                     // (B, T, 4, NKV, HS)
    W *dq = allocator.take<W>(heads * s.HS), *dk = allocator.take<W>(keys);   // (B, T, NH, HS), (B, T, NKV, HS): slc's contribution
    X* dv = allocator.take<X>(keys);                                 // (B, T, NKV, HS)
    W* dk_compressed = allocator.take<W>(compressed);                // (B, R, NKV, HS)
    X *dk_narrow = allocator.take<X>(compressed), *dv_compressed = allocator.take<X>(compressed);
    W* dgate[BRANCHES] = {allocator.take<W>(heads), allocator.take<W>(heads), allocator.take<W>(heads)};   // (B, T, NH)
    SelectionMask mask{allocator, s, selection};
    std::byte* attention = allocator.take<std::byte>(attention_bytes);
    int* positions = allocator.take<int>(size_t(s.B) * s.NH * blocks.grid.rows(s.T));   // (B, NH, R) of packed documents' compressed keys
};

/// The mask of cmp and win, and of slc where it is causal attention.
struct NsaBranch : CompressedMask {
    static constexpr Traits traits{.gates_output = true};
};

struct nsa : Policy {
    static constexpr const char* name = "nsa";
    static constexpr Traits traits{.own_passes = true, .reads_x = true, .reads_qk_pre = true, .tokens_choose = true};
    BlockGrid grid;     // of the compressed keys
    Selection selection;
    int left;           // reach of the window
    bool shared;        // whether all branches use the model's k and v
    int C, NH, NKV, HS;
    Slot projections;   // w_k_cmp, w_v_cmp, w_k_slc, w_v_slc, each (NKV HS, C), contiguous
    Slot w_g;           // (3 NH, C): the gates of cmp for all heads, then those of slc and win
    Compressor phi_k, phi_v;

    nsa(const Config& config, int layer)
        : Policy(config, layer), grid{int(config.setting("nsa_block")), int(config.setting("nsa_stride"))},
          selection{int(config.setting("nsa_selected")), config.setting("nsa_choice") == 1 ? TILE : 1},
          left(int(config.setting("attention_window"))),
          shared(config.setting("nsa_shared_kv") != 0), C(config.C), NH(config.NH), NKV(config.NKV), HS(config.HS) {}

    static std::vector<Setting> settings() {
        return {{"--nsa-block", "nsa_block", 32, 1, 1024, WHOLE, "tokens per compressed key", true},
                {"--nsa-stride", "nsa_stride", 16, 1, 1024, WHOLE, "stride between compressed keys in tokens", true},
                {"--nsa-selected", "nsa_selected", 16, 3, 1e6, WHOLE, "blocks of 64 tokens that each query sees in full", true, TILE},
                {"--nsa-choice", "nsa_choice", 0, 0, 1, WHOLE,
                 "selection of blocks: 0 per query; 1 shared by a tile of 64 queries, by its first token"},
                {"--window", "attention_window", 511, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true},
                {"--nsa-shared-kv", "nsa_shared_kv", 0, 0, 1, WHOLE, "keys and values: 0 of each branch, 1 shared by all branches"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        const auto matrix = normal(0.02);
        for (const char* which : {"w_k_cmp", "w_v_cmp", "w_k_slc", "w_v_slc"}) {
            if (shared) break;
            const Slot slot = list.add(prefix + "nsa." + which, {NKV * HS, C}, matrix, Decay::yes);
            if (!projections) projections.offset = slot.offset;
            projections.size += slot.size;
        }
        for (auto [phi, which] : {std::pair(&phi_k, "phi_k."), std::pair(&phi_v, "phi_v.")}) {
            const std::string own = prefix + "nsa." + which;
            phi->pe = list.add(own + "pe", {grid.l, HS}, matrix, Decay::yes);
            phi->w1 = list.add(own + "w1", {HS, grid.l * HS}, matrix, Decay::yes);
            phi->b1 = list.add(own + "b1", {HS}, zeros(), Decay::no);
            phi->w2 = list.add(own + "w2", {HS, HS}, matrix, Decay::yes);
        }
        w_g = list.add(prefix + "nsa.w_g", {BRANCHES * NH, C}, matrix, Decay::yes);
    }

    Form form() const { return {.keeps_documents_apart = grid.l >= grid.d && selection.every == 1}; }
    std::vector<std::string> branch_names() const { return {"cmp", "slc", "win"}; }   // in the order of CMP, SLC, WIN

    // ---- arguments of the three calls

    /// Compressed keys of packed documents are at the positions of their first tokens.
    NsaBranch branch(int which, const Documents& documents = {}) const {
        if (which == CMP) return {{*this, documents ? 1 : grid.d, grid.l - 1, INT_MAX}};
        return {{*this, 1, 0, which == WIN ? left : INT_MAX}};
    }
    /// Calls use(policy, arguments) for a branch. The choice has been made.
    template <class Device, class X, class Use>
    void with_mask(Device device, int which, AttentionForward<X> a, const NsaKept<X>& kept, const NsaWork<X>& work, Use use) const {
        if (which != SLC || selection.sees_all(a.T)) return use(branch(which, a.documents), a);
        const SelectedBlocks policy = work.mask.apply(device, *this, a, kept.choice);
        use(policy, a);
    }

    template <class X>
    AttentionForward<X> arguments(int which, const LayerInputs<X>& in, const NsaKept<X>& kept, const LayerState<X>& state,
                                  const Statistics<X>& statistics = {}, const int* compressed_positions = nullptr) const {
        AttentionForward<X> a{};
        a.documents = in.documents;
        a.B = in.B, a.T = in.T, a.S = which == CMP ? grid.rows(in.T) : in.T;
        a.NH = NH, a.NKV = NKV, a.HS = HS;
        a.q = {which == CMP ? in.q_pre : in.q, in.qk_row};
        a.k = {in.k, in.qk_row}, a.v = {in.v, in.v_row};
        if (which == CMP) a.k = {kept.k, kv()}, a.v = {kept.v, kv()}, a.k_position = in.documents ? compressed_positions : nullptr;
        if (which == SLC && !shared) a.k = projected<const X>(kept.projected, 2), a.v = projected<const X>(kept.projected, 3);
        a.out = kept.branches.out[which];
        a.lse = which == SLC ? state.lse : kept.lse[which];
        a.statistics = statistics.of_branch(which, size_t(in.B) * NH * in.T, size_t(in.B) * NH * tiles_of(in.T));
        return a;
    }

    size_t kv() const { return size_t(NKV) * HS; }
    template <class X>
    Heads<X> projected(X* all, int part) const {
        return {all + part * kv(), 4 * kv()};
    }
    /// The inputs of phi.
    template <class X>
    Heads<const X> keys(const LayerInputs<X>& in, const NsaKept<X>& kept) const {
        return shared ? Heads<const X>{in.k_pre, in.qk_row} : projected<const X>(kept.projected, 0);
    }
    template <class X>
    Heads<const X> values(const LayerInputs<X>& in, const NsaKept<X>& kept) const {
        return shared ? Heads<const X>{in.v, in.v_row} : projected<const X>(kept.projected, 1);
    }
    CompressShape blocks(const LayerShape& s, const Documents& documents = {}) const { return {s.B, s.T, NKV, HS, grid, documents}; }

    template <class X>
    NsaKept<X> kept_in(const LayerState<X>& state, const LayerShape& s) const {
        return {BumpAllocator(state.kept), s, shared, size_t(s.B) * grid.rows(s.T) * kv(), selection.choice(s).size()};
    }
    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return kept_in(LayerState<X>{}, s).allocator.bytes();
    }
    template <class X, class Device>
    NsaWork<X> work_in(Device device, std::byte* memory, const LayerShape& s) const {
        return {BumpAllocator(memory), s, blocks(s), selection, importance_scratch(device, selection.choice(s), s.T),
                attention_workspace(device, branch(WIN), s.B, s.T, s.T, NH)};
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return work_in<X>(device, nullptr, s).allocator.bytes();
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const NsaKept<X> kept = kept_in(state, in);
        const NsaWork<X> work = work_in<X>(device, workspace, in);
        project(device, in, weights, kept, work.logits, {.documents = in.documents});

        const CompressShape shape = blocks(in, in.documents);
        compress_forward(device, kept.k, kept.k_hidden, keys(in, kept), weights, phi_k, shape, work.compress);
        compress_forward(device, kept.v, kept.v_hidden, values(in, kept), weights, phi_v, shape, work.compress);
        place_compressed(device, work.positions, shape, NH);
        for (int which : {CMP, SLC, WIN}) {
            if (which == SLC) choose_blocks(device, in, kept, work.scores);   // by cmp's results
            with_mask(device, which, arguments(which, in, kept, state, statistics, work.positions), kept, work,
                      [&](const auto& policy, const auto& a) { attention_forward(device, policy, a); });
        }
        gated_sum(device, state.out, kept.branches, size_t(in.B) * in.T * NH, HS);
    }

    /// Keys and values of cmp and slc, where they have their own, and the gates; `logits` (B, T, 3, NH) is scratch memory. Keys of slc are
    /// rotated to `position`.
    template <class Device, class X>
    void project(Device device, const LayerInputs<X>& in, const X* weights, const NsaKept<X>& kept, X* logits,
                 const RowPositions& position) const {
        const int BT = in.B * in.T;
        if (!shared) {
            projection_forward(device, kept.projected, in.x, weights + projections.offset, nullptr, BT, C, int(4 * kv()));
            const Heads<X> k = projected(kept.projected, 2);
            rotate_heads(device, k, Heads<const X>{k.data, k.row}, {in.cosine, in.sine}, in.B, in.T, NKV, HS, 1, position);
        }
        projection_forward(device, logits, in.x, weights + w_g.offset, nullptr, BT, C, BRANCHES * NH);
        each_element(device, BT, BRANCHES * NH, OpenGates<X>{kept.branches, logits, NH});
    }

    template <class Device, class X>
    void choose_blocks(Device device, const LayerInputs<X>& in, const NsaKept<X>& kept, Wide<X>* scores) const {
        const Importance<X> importance{in.B,   in.T,           NH, NKV, HS, grid, selection.every, {in.q_pre, in.qk_row},
                                       kept.k, kept.lse[CMP], scores, in.documents};
        const BlockChoice choice = selection.choice(in);
        if (choice.slots > 0) choose_by_importance(device, kept.choice, importance, choice, selection.rule(in.T));
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const NsaKept<X> kept = kept_in(state, in);
        const NsaWork<X> work = work_in<X>(device, workspace, in);
        const int BT = in.B * in.T;
        place_compressed(device, work.positions, blocks(in, in.documents), NH);
        auto branch_backward = [&](int which, Heads<Wide<X>> dq, Heads<Wide<X>> dk, Heads<X> dv) {
            AttentionForward<X> a = arguments(which, in, kept, state, {}, work.positions);
            a.gate = kept.branches.gate[which];
            AttentionBackward<X> g = kernel_gradients(dout, {dq, dk, dv}, work.attention);
            g.dgate = work.dgate[which];
            with_mask(device, which, a, kept, work, [&](const auto& policy, const auto& of) { attention_backward(device, policy, of, g); });
        };
        branch_backward(WIN, to.q, to.k, to.v);
        branch_backward(SLC, {work.dq, size_t(NH) * HS}, {work.dk, kv()},
                        shared ? Heads<X>{work.dv, kv()} : projected(work.dprojected, 3));
        branch_backward(CMP, {more.dq_pre, in.qk_row}, {work.dk_compressed, kv()}, {work.dv_compressed, kv()});
        add_heads(device, to.q, Heads<const Wide<X>>{work.dq, size_t(NH) * HS}, BT, NH, HS);

        if (shared) {
            add_heads(device, to.k, Heads<const Wide<X>>{work.dk, kv()}, BT, NKV, HS);
            add_heads(device, to.v, Heads<const X>{work.dv, kv()}, BT, NKV, HS);
            phi_backward(device, Heads<Wide<X>>{more.dk_pre, in.qk_row}, to.v, Write::add, in, weights, kept, more, work);
        } else {
            rotate_heads(device, projected(work.dprojected, 2), Heads<const Wide<X>>{work.dk, kv()}, {in.cosine, in.sine}, in.B,
                         in.T, NKV, HS, -1, {.documents = in.documents});
            phi_backward(device, projected(work.dprojected, 0), projected(work.dprojected, 1), Write::overwrite, in, weights, kept,
                         more, work);
            clear_heads(device, Heads<Wide<X>>{more.dk_pre, in.qk_row}, BT, NKV, HS);
            input_projection_backward(device, more, work.dprojected, projections, int(4 * kv()), in, weights);
        }
        each_element(device, BT, BRANCHES * NH,
                    OpenGatesBackward<X>{work.logits, kept.branches, {work.dgate[CMP], work.dgate[SLC], work.dgate[WIN]}, NH});
        input_projection_backward(device, more, work.logits, w_g, BRANCHES * NH, in, weights);
    }

    // ---- accounting, and queries of a monitor

    template <class X>
    std::vector<const Wide<X>*> branch_gates(const LayerShape& s, const LayerState<X>& state) const {
        const NsaKept<X> kept = kept_in(state, s);
        return {kept.branches.gate, kept.branches.gate + BRANCHES};
    }

    /// Pairs of the three calls, for one sequence; of tiles the most: in slc, queries that agree visit fewer.
    bool expects_at_most() const { return selection.every == 1 && selection.blocks > 3; }
    PairCount expected_pairs(int heads, int T) const {
        PairCount count = selection.expected_pairs(*this, T);
        for (int which : {CMP, WIN}) {
            const NsaBranch policy = branch(which);
            const int S = which == CMP ? grid.complete(T) : T;
            for (int i0 = 0; i0 < T; i0 += TILE)
                for (int j0 = 0; j0 < S; j0 += TILE)
                    count.tiles += policy.tile(0, i0, std::min(T, i0 + TILE), j0, std::min(S, j0 + TILE)) != Tile::hidden;
        }
        for (int i = 0; i < T; i++) count.pairs += double(grid.complete(i + 1)) + std::min(i, left) + 1;
        return {count.pairs * heads, count.tiles * heads};
    }

    constexpr KeptKeys kept_keys() const { return shared ? KeptKeys{} : KeptKeys{0, left + 1}; }

    /// Keys (with values) of one key/value head for generating token T + 1: all of slc's, the window's, the compressed ones, and
    /// those of the incomplete block. Shared keys include the window's, but not those before RoPE.
    double cached_keys(int T) const {
        const int window = shared ? 0 : std::min(T, left), open = std::min(T, grid.l);
        return double(T) + window + grid.complete(T) + open;
    }

    /// For the picture of the mask: whether query i of head h, in the first sequence, read key j in slc or win in the last forward().
    /// cmp sees complete blocks as compressed keys.
    template <class X>
    bool sees(const LayerInputs<X>& in, const LayerState<X>& state, int h, int i, int j) const {
        const int* chosen = kept_in(state, in).choice + selection.choice(in).of_token(0, h / (NH / NKV), i / selection.every);
        const DocumentBlocks blocks{TILE, TILE, in.T, in.documents};
        const int inside = blocks.inside(0, i), of_key = j - (i - inside);
        return j <= i && of_key >= 0 &&
               (i - j <= left || selection.sees(chosen, in.T, blocks.first(0, i), inside / TILE, of_key / TILE));
    }

    // ---- the paper's formulas in dense loops

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        for (int b = 0; b < in.B; b++) {
            const NaiveNsa<nsa, X> sequence(*this, in, weights, b);
            for (int t = 0; t < in.T; t++)
                for (int h = 0; h < NH; h++) {
                    X* o = out + (in.token(b, t) * NH + h) * HS;
                    std::fill_n(o, HS, X(0));
                    const auto gates = sequence.gates.begin() + size_t(t) * BRANCHES * NH + h;
                    const size_t at = size_t(h / (NH / NKV)) * HS;
                    const X *q = in.query(in.q, b, t, h), *q_pre = in.query(in.q_pre, b, t, h);
                    const std::vector<bool> chosen = sequence.choice(h / (NH / NKV), t);
                    auto add = [&](X gate, const std::vector<X>& p, const std::vector<X>& v) {
                        for (size_t j = 0; j < p.size(); j++)
                            for (int d = 0; d < HS; d++) o[d] += gate * p[j] * v[j * kv() + at + d];
                    };
                    auto complete = [&](int c) { return c * grid.d + grid.l - 1 <= t; };
                    auto selected = [&](int j) { return j <= t && chosen[j / TILE]; };
                    auto in_window = [&](int j) { return j <= t && t - j <= left; };
                    add(gates[0], sequence.softmax(q_pre, sequence.k_cmp, at, complete), sequence.v_cmp);
                    add(gates[NH], sequence.softmax(q, sequence.k_slc, at, selected), sequence.v_slc);
                    add(gates[2 * NH], sequence.softmax(q, sequence.k_win, at, in_window), sequence.v_win);
                }
        }
    }

private:
    /// dk, dv (B, T, NKV, HS) from the gradients of the compressed keys and values.
    template <class Device, class Y, class X>
    void phi_backward(Device device, Heads<Y> dk, Heads<X> dv, Write write_v, const LayerInputs<X>& in, const X* weights,
                      const NsaKept<X>& kept, ScoreInputGradients<X>& more, const NsaWork<X>& work) const {
        const size_t row = kv();
        each_element(device, size_t(in.B) * grid.rows(in.T), int(row),
                    AddHeads<X, Wide<X>>{{work.dk_narrow, row}, {work.dk_compressed, row}, false});
        compress_backward(device, dk, more.dweights, work.dk_narrow, kept.k_hidden, keys(in, kept), weights, phi_k,
                          blocks(in, in.documents), work.compress, Write::overwrite);
        compress_backward(device, dv, more.dweights, work.dv_compressed, kept.v_hidden, values(in, kept), weights, phi_v,
                          blocks(in, in.documents), work.compress, write_v);
    }
};
