// Native Sparse Attention (Yuan et al. 2025, arXiv 2502.11089): three gated branches, each a softmax over its own keys and values:
//     cmp  compressed keys Kc_c = phi_k(k_{c d} .. k_{c d + l - 1}), values likewise; c is visible when c d + l - 1 <= i
//     slc  whole blocks of 64 tokens: the first, the query's own and the one before, and those that matter most by the attention to
//          the compressed keys, n in total (nsa/importance.cuh); causal inside
//     win  the keys i - w .. i
//     out_i = sum_c g_c,i out_c,i,   g = sigmoid(Wg x_i), one per branch, head and token
// The choice of blocks has no gradient: its inputs are trained because cmp uses them too.
// The paper leaves open, and this file reads:
//   - Which queries share a choice. In the paper every token chooses, in groups of 16 or more query heads that fill a tile of the
//     tensor cores; with fewer heads a tile of 64 queries would have to visit the union of 64 choices. Here the queries of a tile
//     share their first token's choice, one for all heads of a key/value head, which depends on nothing later than any of them.
//   - phi: one hidden layer of HS units, GELU in its tanh form, no bias at the output.
//   - Positions: cmp takes q and k before RoPE; pe encodes positions within a block, and the block's own position is not encoded.
//     (phi could not undo the rotation of rotated keys.) slc and win take q and k after RoPE.
//   - Projections: win uses the model's k and v. cmp and slc have linear ones of their own without bias, k without QK-norm.
//     nsa_shared_kv = 1: all three use the model's, as some implementations do; cmp then takes k after QK-norm.
//   - --window N reaches N keys back and includes the query's own: the paper's w = 512 keys are the default 511 here.
//   - A query that sees no complete block gets 0 from cmp. A sequence may be shorter than l.
// state.lse is slc's; a monitor sees the statistics and the gate of each branch.
// Kept per token and layer, in elements: 3 NH HS outputs, 4 NKV HS projections, 4 NKV HS / d compressed keys, values and hidden
// units; in float32 5 NH gates and log-sum-exps; NH / 64 integers for every block of the sequence, the lists of blocks.
#pragma once
#include <algorithm>
#include <climits>

#include "attention/kernel/layer.h"
#include "attention/nsa/importance.cuh"
#include "attention/nsa/nsa_memory.cuh"
#include "attention/scores/rotate_heads.cuh"

/// The mask of all three: key j covers tokens j stride .. j stride + last, and is visible when all of them are in the past and
/// the first is at most `left` back.
struct NsaBranch : Policy {
    int stride, last, left;
    bool gates_output() const { return true; }

    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        if (j0 * stride + last > i1 - 1 || i0 - (j1 - 1) * stride > left) return Tile::hidden;
        return (j1 - 1) * stride + last <= i0 && i1 - 1 - j0 * stride <= left ? Tile::full : Tile::mixed;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j * stride + last <= i && i - j * stride <= left; }
};

struct nsa : Policy {
    static constexpr const char* name = "nsa";
    static constexpr bool own_passes = true, reads_x = true, reads_qk_pre = true;
    BlockGrid grid;     // of the compressed keys
    int selected;       // blocks that a query tile visits
    int left;           // reach of the window
    bool shared;        // whether all branches use the model's k and v
    int C, NH, NKV, HS;
    Slot projections;   // w_k_cmp, w_v_cmp, w_k_slc, w_v_slc, each (NKV HS, C), contiguous
    Slot w_g;           // (3 NH, C): the gates of cmp for all heads, then those of slc and win
    Compressor phi_k, phi_v;

    nsa(const Config& config, int layer)
        : Policy(config, layer), grid{int(config.setting("nsa_block")), int(config.setting("nsa_stride"))},
          selected(int(config.setting("nsa_selected"))), left(int(config.setting("attention_window"))),
          shared(config.setting("nsa_shared_kv") != 0), C(config.C), NH(config.NH), NKV(config.NKV), HS(config.HS) {}

    static std::vector<Setting> settings() {
        return {{"--nsa-block", "nsa_block", 32, 1, 1024, WHOLE, "tokens that a compressed key stands for", true},
                {"--nsa-stride", "nsa_stride", 16, 1, 1024, WHOLE, "tokens from one compressed key to the next", true},
                {"--nsa-selected", "nsa_selected", 16, 3, 1e6, WHOLE, "blocks of 64 tokens that a query sees whole", true, TILE},
                {"--window", "attention_window", 511, 0, 1e9, WHOLE, "left reach: keys i-N..i are visible", true},
                {"--nsa-shared-kv", "nsa_shared_kv", 0, 0, 1, WHOLE, "1: one k and v for all branches"}};
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

    std::vector<std::string> branch_names() const { return {"cmp", "slc", "win"}; }   // in the order of CMP, SLC, WIN

    // ---- arguments of the three calls

    NsaBranch branch(int which) const {
        if (which == CMP) return {*this, grid.d, grid.l - 1, INT_MAX};
        return {*this, 1, 0, which == WIN ? left : INT_MAX};
    }

    template <class X>
    AttentionForward<X> arguments(int which, const LayerInputs<X>& in, const NsaKept<X>& kept, const LayerState<X>& state,
                                  const Statistics<X>& statistics = {}) const {
        AttentionForward<X> a{};
        a.B = in.B, a.T = in.T, a.S = which == CMP ? grid.rows(in.T) : in.T;
        a.NH = NH, a.NKV = NKV, a.HS = HS;
        a.q = {which == CMP ? in.q_pre : in.q, in.qk_row};
        a.k = {in.k, in.qk_row}, a.v = {in.v, in.v_row};
        if (which == CMP) a.k = {kept.k, kv()}, a.v = {kept.v, kv()};
        if (which == SLC && !shared) a.k = projected<const X>(kept.projected, 2), a.v = projected<const X>(kept.projected, 3);
        if (which == SLC) a.list = {kept.count, kept.tiles, tiles_of(in.T)};
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
    /// What phi compresses.
    template <class X>
    Heads<const X> keys(const LayerInputs<X>& in, const NsaKept<X>& kept) const {
        return shared ? Heads<const X>{in.k_pre, in.qk_row} : projected<const X>(kept.projected, 0);
    }
    template <class X>
    Heads<const X> values(const LayerInputs<X>& in, const NsaKept<X>& kept) const {
        return shared ? Heads<const X>{in.v, in.v_row} : projected<const X>(kept.projected, 1);
    }
    CompressShape blocks(const LayerShape& s) const { return {s.B, s.T, NKV, HS, HS, grid}; }

    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return NsaKept<X>(nullptr, s, grid, shared).bytes;
    }
    template <class X, class Device>
    NsaWork<X> work_in(Device device, std::byte* memory, const LayerShape& s) const {
        return {memory, s, blocks(s), attention_workspace(device, branch(WIN), s.B, s.T, s.T, NH)};
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return work_in<X>(device, nullptr, s).allocator.bytes();
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const NsaKept<X> kept(state.kept, in, grid, shared);
        const NsaWork<X> work = work_in<X>(device, workspace, in);
        const X* const no_bias = nullptr;
        const int BT = in.B * in.T;
        if (!shared) {
            projection_forward(device, kept.projected, in.x, weights + projections.offset, no_bias, BT, C, int(4 * kv()));
            const Heads<X> k = projected(kept.projected, 2);
            rotate_heads(device, k, Heads<const X>{k.data, k.row}, {in.cosine, in.sine}, in.B, in.T, NKV, HS, 1);
        }
        projection_forward(device, work.logits, in.x, weights + w_g.offset, no_bias, BT, C, BRANCHES * NH);
        each_element(device, BT, BRANCHES * NH, OpenGates<X>{kept.branches, work.logits, NH});

        compress_forward(device, kept.k, kept.k_hidden, keys(in, kept), weights, phi_k, blocks(in), work.compress);
        compress_forward(device, kept.v, kept.v_hidden, values(in, kept), weights, phi_v, blocks(in), work.compress);
        attention_forward(device, branch(CMP), arguments(CMP, in, kept, state, statistics));
        choose_blocks(device, in, kept, work);
        for (int which : {SLC, WIN}) attention_forward(device, branch(which), arguments(which, in, kept, state, statistics));
        gated_sum(device, state.out, kept.branches, size_t(BT) * NH, HS);
    }

    template <class Device, class X>
    void choose_blocks(Device device, const LayerInputs<X>& in, const NsaKept<X>& kept, const NsaWork<X>& work) const {
        const Importance<X> importance{in.B, in.T, NH, NKV, HS, grid, {in.q_pre, in.qk_row}, kept.k, kept.lse[CMP], work.shares};
        importance_of_blocks(device, work.scores, importance);
        TileChoice choice;
        choice.leading = 1, choice.local = 2, choice.top = selected - 3;
        choose_tiles(device, kept.count, kept.tiles, work.scores, {in.B, NH, NKV, tiles_of(in.T)}, choice);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const NsaKept<X> kept(state.kept, in, grid, shared);
        const NsaWork<X> work = work_in<X>(device, workspace, in);
        const int BT = in.B * in.T;
        auto branch_backward = [&](int which, Heads<Wide<X>> dq, Heads<Wide<X>> dk, Heads<X> dv) {
            AttentionForward<X> a = arguments(which, in, kept, state);
            a.gate = kept.branches.gate[which];
            AttentionBackward<X> g{};
            g.dout = dout, g.dq = dq, g.dk = dk, g.dv = dv;
            g.dgate = work.dgate[which], g.workspace = work.attention;
            attention_backward(device, branch(which), a, g);
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
                         in.T, NKV, HS, -1);
            phi_backward(device, projected(work.dprojected, 0), projected(work.dprojected, 1), Write::overwrite, in, weights, kept,
                         more, work);
            clear_heads(device, Heads<Wide<X>>{more.dk_pre, in.qk_row}, BT, NKV, HS);
            projection_backward(device, work.dprojected, projections, int(4 * kv()), in, weights, more);
        }
        each_element(device, BT, BRANCHES * NH,
                    OpenGatesBackward<X>{work.logits, kept.branches, {work.dgate[CMP], work.dgate[SLC], work.dgate[WIN]}, NH});
        projection_backward(device, work.logits, w_g, BRANCHES * NH, in, weights, more);
    }

    // ---- accounting, and queries of a monitor

    template <class X>
    std::vector<const Wide<X>*> branch_gates(const LayerShape& s, const LayerState<X>& state) const {
        const NsaKept<X> kept(state.kept, s, grid, shared);
        return {kept.branches.gate, kept.branches.gate + BRANCHES};
    }

    /// Pairs and tiles of the three calls, for one sequence.
    PairCount expected_pairs(int heads, int T) const {
        PairCount count;
        for (int which : {CMP, WIN}) {
            const NsaBranch policy = branch(which);
            const int S = which == CMP ? grid.complete(T) : T;
            for (int i0 = 0; i0 < T; i0 += TILE)
                for (int j0 = 0; j0 < S; j0 += TILE)
                    count.tiles += policy.tile(0, i0, std::min(T, i0 + TILE), j0, std::min(S, j0 + TILE)) != Tile::hidden;
        }
        for (int i = 0; i < T; i++) {
            const int before = i / TILE;   // blocks before the query's own
            const int whole = std::min(before, selected - 1);
            count.pairs += double(grid.complete(i + 1)) + std::min(i, left) + 1 + double(whole) * TILE + i % TILE + 1;
            if (i % TILE == 0) count.tiles += whole + 1;
        }
        return {count.pairs * heads, count.tiles * heads};
    }

    /// Keys (with values) of one key/value head for generating token T + 1: all of slc's, the window's, the compressed ones, and
    /// those of the incomplete block. Shared keys include the window's, but not those before RoPE.
    bool keeps_documents_apart() const { return false; }   // compressed keys lie across their borders
    double cached_keys(int T) const {
        const int window = shared ? 0 : std::min(T, left), open = std::min(T, grid.l);
        return double(T) + window + grid.complete(T) + open;
    }

    /// For the picture of the mask: whether in the last forward() query i of head h, in the first sequence, read key j itself, in
    /// slc or win. cmp sees complete blocks as compressed keys.
    template <class X>
    bool sees(const LayerInputs<X>& in, const LayerState<X>& state, int h, int i, int j) const {
        const NsaKept<X> kept(state.kept, in, grid, shared);
        const size_t row = size_t(h) * tiles_of(in.T) + i / TILE;
        const int *first = kept.tiles + row * tiles_of(in.T), *end = first + kept.count[row];
        return j <= i && (i - j <= left || std::find(first, end, j / TILE) != end);
    }

    // ---- the paper's formulas in dense loops

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        for (int b = 0; b < in.B; b++) {
            const NaiveKeys<X> keys(*this, in, weights, b);
            for (int t = 0; t < in.T; t++)
                for (int h = 0; h < NH; h++) {
                    X* o = out + (in.token(b, t) * NH + h) * HS;
                    std::fill_n(o, HS, X(0));
                    const auto gates = keys.gates.begin() + size_t(t) * BRANCHES * NH + h;
                    const size_t at = size_t(h / (NH / NKV)) * HS;
                    const X *q = in.query(in.q, b, t, h), *q_pre = in.query(in.q_pre, b, t, h);
                    const std::vector<bool> chosen = naive_choice(in, keys, b, h / (NH / NKV), t);
                    auto add = [&](X gate, const std::vector<X>& p, const std::vector<X>& v) {
                        for (size_t j = 0; j < p.size(); j++)
                            for (int d = 0; d < HS; d++) o[d] += gate * p[j] * v[j * kv() + at + d];
                    };
                    auto complete = [&](int c) { return c * grid.d + grid.l - 1 <= t; };
                    auto selected = [&](int j) { return j <= t && chosen[j / TILE]; };
                    auto in_window = [&](int j) { return j <= t && t - j <= left; };
                    add(gates[0], naive_softmax(q_pre, keys.k_cmp, at, complete), keys.v_cmp);
                    add(gates[NH], naive_softmax(q, keys.k_slc, at, selected), keys.v_slc);
                    add(gates[2 * NH], naive_softmax(q, keys.k_win, at, in_window), keys.v_win);
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
                          blocks(in), work.compress, Write::overwrite);
        compress_backward(device, dv, more.dweights, work.dv_compressed, kept.v_hidden, values(in, kept), weights, phi_v,
                          blocks(in), work.compress, write_v);
    }

    /// From the gradient of `rows` projections of x to those of their weights and of x.
    template <class Device, class X>
    void projection_backward(Device device, const X* dout, const Slot& weight, int rows, const LayerInputs<X>& in, const X* weights,
                             ScoreInputGradients<X>& more) const {
        Wide<X>* const no_bias = nullptr;
        const int BT = in.B * in.T;
        projection_backward_weight(device, more.dweights + weight.offset, no_bias, dout, in.x, BT, C, rows);
        projection_backward_input(device, more.dx, dout, weights + weight.offset, BT, C, rows, Write::add);
    }

    // ---- naive()'s parts

    /// Keys and values (tokens, NKV HS) of one sequence as each branch sees them, and the gates (T, 3, NH).
    template <class X>
    struct NaiveKeys {
        std::vector<X> k_cmp, v_cmp, k_slc, v_slc, k_win, v_win, gates;

        NaiveKeys(const nsa& a, const LayerInputs<X>& in, const X* weights, int b) {
            std::vector<X> k, v;   // inputs of cmp's compression
            for (int t = 0; t < in.T; t++) {
                const X *x = in.x + in.token(b, t) * a.C, *rotated = in.key(in.k, b, t, 0), *value = in.value(b, t, 0);
                auto append = [&](std::vector<X>& to, const X* from) { to.insert(to.end(), from, from + a.kv()); };
                auto project = [&](std::vector<X>& to, int part) {
                    for (size_t o = 0; o < a.kv(); o++)
                        to.push_back(dot(x, weights + a.projections.offset + (part * a.kv() + o) * a.C, a.C));
                };
                append(k_win, rotated), append(v_win, value);
                if (a.shared) {
                    append(k, in.key(in.k_pre, b, t, 0)), append(v, value), append(k_slc, rotated), append(v_slc, value);
                } else {
                    project(k, 0), project(v, 1), project(k_slc, 2), project(v_slc, 3);
                    rotate(&k_slc[t * a.kv()], a, in, t);
                }
                for (int n = 0; n < BRANCHES * a.NH; n++)
                    gates.push_back(1 / (1 + std::exp(-dot(x, weights + a.w_g.offset + size_t(n) * a.C, a.C))));
            }
            for (int c = 0; c * a.grid.d + a.grid.l <= in.T; c++)
                for (int kv = 0; kv < a.NKV; kv++) {
                    compress(k_cmp, k, a, weights, a.phi_k, c, kv);
                    compress(v_cmp, v, a, weights, a.phi_v, c, kv);
                }
        }

        static void rotate(X* token, const nsa& a, const LayerInputs<X>& in, int t) {
            for (int kv = 0; kv < a.NKV; kv++)
                for (int d = 0; d < a.HS / 2; d++) {
                    X &x1 = token[kv * a.HS + d], &x2 = token[kv * a.HS + d + a.HS / 2];
                    rotate_pair(x1, x2, in.cosine[size_t(t) * (a.HS / 2) + d], in.sine[size_t(t) * (a.HS / 2) + d]);
                }
        }

        static void compress(std::vector<X>& to, const std::vector<X>& from, const nsa& a, const X* weights, const Compressor& phi,
                             int c, int kv) {
            const int l = a.grid.l, HS = a.HS;
            std::vector<X> hidden(HS);
            for (int u = 0; u < HS; u++) {
                X y = weights[phi.b1.offset + u];
                for (int n = 0; n < l * HS; n++)
                    y += weights[phi.w1.offset + size_t(u) * l * HS + n] *
                         (from[(c * a.grid.d + n / HS) * a.kv() + kv * HS + n % HS] + weights[phi.pe.offset + n]);
                hidden[u] = X(0.5) * y * (1 + std::tanh(std::sqrt(X(2 / M_PI)) * (y + X(0.044715) * y * y * y)));
            }
            for (int d = 0; d < HS; d++) to.push_back(dot(weights + phi.w2.offset + size_t(d) * HS, hidden.data(), HS));
        }
    };

    /// Softmax of q against the keys that are visible, 0 for the others; all 0 where none is.
    template <class X, class Visible>
    std::vector<X> naive_softmax(const X* q, const std::vector<X>& keys, size_t at, Visible visible) const {
        const int count = int(keys.size() / kv());
        std::vector<X> p(count);
        X largest = -INFINITY, total = 0;
        for (int j = 0; j < count; j++)
            if (visible(j)) largest = std::max(largest, p[j] = dot(q, &keys[j * kv() + at], HS) / std::sqrt(X(HS)));
        for (int j = 0; j < count; j++) total += p[j] = visible(j) ? std::exp(p[j] - largest) : X(0);
        for (X& share : p) share /= total > 0 ? total : X(1);
        return p;
    }

    /// Which blocks token t sees: what its tile's first token chooses.
    template <class X>
    std::vector<bool> naive_choice(const LayerInputs<X>& in, const NaiveKeys<X>& keys, int b, int kv_head, int t) const {
        const int own = t / TILE, first = own * TILE;
        std::vector<X> score(own + 1);
        for (int h = kv_head * (NH / NKV); h < (kv_head + 1) * (NH / NKV); h++) {
            const std::vector<X> p = naive_softmax(in.query(in.q_pre, b, first, h), keys.k_cmp, size_t(kv_head) * HS,
                                                   [&](int c) { return c * grid.d + grid.l - 1 <= first; });
            for (int c = 0; c < int(p.size()); c++)
                for (int token = c * grid.d; token < c * grid.d + grid.l && token < (own + 1) * TILE; token++)
                    score[token / TILE] += p[c];
        }
        score[0] = score[own] = score[std::max(own - 1, 0)] = INFINITY;
        std::vector<bool> chosen(own + 1);
        for (int n = 0; n < std::min(selected, own + 1); n++) {
            const auto best = std::max_element(score.begin(), score.end());   // of ties the first
            chosen[best - score.begin()] = true;
            *best = -INFINITY;
        }
        return chosen;
    }
};
