// LongNet, dilated attention (Ding et al. 2023, arXiv 2307.02486; the released torchscale code): all near keys, and ever fewer of
// the far ones. Branch n = 1 .. N cuts the text into segments of w_n tokens and keeps every r_n-th token of each, with a different
// offset per head; the kept tokens attend to each other, causally, within their segment.
//     w_n = w 2^(n-1)   r_n = 2^(n-1)   kept in head h: t mod r_n = h mod r_n
//     out = sum_n alpha_n out_n         alpha_n = exp(lse_n) / sum_m exp(lse_m)    over the branches that keep the token
// Branch 1 keeps every token. The mixture is exactly one softmax, in which a pair counts once for every branch that has it:
//     z_ij = q_i.k_j / sqrt(HS) + log(number of branches that have the pair)
// The paper gives alpha's formula, but not whether gradients pass through it; here they do, and --longnet-detach 1 is the released
// code, which treats alpha as a constant: then dz_ij = sum_n alpha_n P^n_ij (<dout_i, v_j> - <dout_i, out^n_i>).
// The released code gives consecutive groups of NH / r_n heads the same offset; here neighbouring heads differ. With two branches that is
// another order of heads; with more, no order makes them equal.
// A branch's rows are the tokens that it keeps (merged branches, branches/branches.cuh): it is dense causal attention in segments
// of w rows, whatever r_n, and costs 1 / r_n of the first. In text order nearly every tile would have a pair.
// Documents of a packed row have their own segments and kept tokens, counted from their first tokens. The number of a branch's rows then
// depends on the data, while memory and launches are planned. All branches are therefore computed in text order, and up to the longest
// segment a document costs N times as much as dense attention.
#pragma once
#include "attention/branches/branches.cuh"
#include "attention/masks/pattern.h"

/// Row n of head h is token 2^k n + (h mod 2^k).
struct DilatedRows {
    static constexpr bool per_head = true;
    int count = 0, T = 0, k = 0;
    DilatedRows() = default;
    constexpr DilatedRows(int T_, int k_) : count((T_ + (1 << k_) - 1) >> k_), T(T_), k(k_) {}
    constexpr int offset(int h) const { return h & ((1 << k) - 1); }
    constexpr int token(int, int h, int row) const {
        const int t = (row << k) + offset(h);
        return t < T ? t : -1;
    }
    constexpr int row(int, int h, int token) const { return (token & ((1 << k) - 1)) == offset(h) ? token >> k : -1; }
    constexpr int rows_before(int h, int token) const { return token <= offset(h) ? 0 : ((token - 1 - offset(h)) >> k) + 1; }
};

/// Mask over rows: causal within segments. Only the last row can be padding, which sees nothing and has nothing after it.
struct SegmentBranch : Policy {
    DilatedRows rows;
    Divisor segment;
    SegmentBranch(const DilatedRows& rows_, const Divisor& segment_) : Policy(Config{}, 0), rows(rows_), segment(segment_) {}

    constexpr bool visible(int h, int i, int j) const {
        return rows.token(0, h, i) >= 0 && j <= i && i - j <= segment.remainder(i);
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        const bool padding = rows.token(0, h, i1 - 1) < 0;
        if (padding) i1--;
        const int first = segment.quotient(std::max(i0, j0)), last = segment.quotient(std::min(i1, j1) - 1);   // shared segments
        if (i1 <= i0 || first > last || j0 > i1 - 1) return Tile::hidden;
        const bool one_segment = segment.quotient(std::min(i0, j0)) == segment.quotient(std::max(i1, j1) - 1);
        return one_segment && j1 - 1 <= i0 && !padding ? Tile::full : Tile::mixed;
    }
};

/// The same branch in text order: pairs of kept tokens within a segment. `rows` is unbounded.
struct BranchInText : Policy {
    static constexpr Traits traits{.long_visible = true};
    SegmentBranch branch;
    explicit constexpr BranchInText(const SegmentBranch& branch_) : Policy(branch_), branch(branch_) {}

    constexpr bool visible(int h, int i, int j) const {
        const int query = branch.rows.row(0, h, i), key = branch.rows.row(0, h, j);
        return j <= i && query >= 0 && key >= 0 && branch.segment.quotient(query) == branch.segment.quotient(key);
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        auto row = [&](int token) { return branch.rows.rows_before(h, token); };
        const Rectangle kept{row(i0), row(i1), row(j0), row(j1)};
        const Tile verdict = kept.empty() ? Tile::hidden : branch.tile(h, kept.i0, kept.i1, kept.j0, kept.j1);
        return verdict == Tile::full && branch.rows.k > 0 ? Tile::mixed : verdict;
    }
};

struct longnet : Policy {
    static constexpr const char* name = "longnet";
    static constexpr Traits traits{.own_passes = true};
    Divisor segment;   // w
    int branches;      // N
    bool detach;

    longnet(const Config& config, int layer)
        : Policy(config, layer), segment(int(config.setting("longnet_segment"))), branches(int(config.setting("longnet_branches"))),
          detach(config.setting("longnet_detach") != 0) {}

    static std::vector<Setting> settings() {
        return {{"--longnet-segment", "longnet_segment", 256, 1, 1e9, WHOLE, "tokens per segment of the first branch, w", true},
                {"--longnet-branches", "longnet_branches", 4, 1, MOST_BRANCHES, WHOLE,
                 "number of branches, N, each with longer and thinner segments"},
                {"--longnet-detach", "longnet_detach", 0, 0, 1, WHOLE, "gradient through the branches' weights: 1 detached, 0 kept"}};
    }
    /// With constant weights backward() computes the released code's gradient, which is not the derivative of the loss.
    Form form() const { return {.has_exact_gradients = !detach}; }

    // ---- the union of all branches in text order: for pictures and tests, and branch by branch for decoding

    static constexpr int UNBOUNDED = 1 << 30;   // length of a text without an end
    SegmentBranch branch(int n, int T) const { return {DilatedRows(T, n), segment}; }
    BranchInText in_text(int n) const { return BranchInText(branch(n, UNBOUNDED)); }

    bool visible(int h, int i, int j) const {
        for (int n = 0; n < branches && j <= i; n++)
            if (in_text(n).visible(h, i, j)) return true;
        return false;
    }
    Tile tile(int h, int i0, int i1, int j0, int j1) const {
        bool some = false;
        for (int n = 0; n < branches && !some; n++) {
            const Tile verdict = in_text(n).tile(h, i0, i1, j0, j1);
            if (verdict == Tile::full) return verdict;
            some = verdict != Tile::hidden;
        }
        return some ? Tile::mixed : Tile::hidden;
    }

    /// A row sees no further back than the longest segment that it can be in.
    constexpr KeptKeys kept_keys() const {
        const int64_t longest = int64_t(segment.divisor()) << (branches - 1);
        return {0, longest < UNBOUNDED ? int(longest) : UNBOUNDED};
    }

    /// The kernels visit a pair once per branch that has it.
    PairCount expected_pairs(int heads, int T) const {
        PairCount all;
        for (int n = 0; n < branches; n++) {
            const PairCount one = count_pairs(branch(n, T), heads, DilatedRows(T, n).count);
            all.pairs += one.pairs, all.tiles += one.tiles;
        }
        return all;
    }

    // ---- the branches: of kept tokens, or in text order where there are documents

    struct Dilated {
        using Rows = DilatedRows;
        static Rows rows(int T, int n) { return Rows(T, n); }
        static SegmentBranch policy(const longnet& of, int T, int n) { return of.branch(n, T); }
    };
    struct InText {
        using Rows = RowsInOrder;
        static Rows rows(int T, int /*n*/) { return {T}; }
        static BranchInText policy(const longnet& of, int /*T*/, int n) { return of.in_text(n); }
    };
    template <class Use>
    static void in_form(const Documents& documents, Use use) {
        if (documents) use(InText{});
        else use(Dilated{});
    }
    /// The rows of all branches but the first.
    template <class Form>
    std::vector<typename Form::Rows> added_rows(int T) const {
        std::vector<typename Form::Rows> rows;
        for (int n = 1; n < branches; n++) rows.push_back(Form::rows(T, n));
        return rows;
    }

    template <class X, class Device, class Form>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        bool detach;
        size_t kernel_bytes;
        OwnResult<X> own = detach ? OwnResult<X>(allocator, s) : OwnResult<X>();
        BranchesBackward<Device, X, typename Form::Rows> branches{allocator, s, Form::rows(s.T, 1), kernel_bytes};
    };
    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        return std::max(attention_workspace(device, branch(0, s.T), s.B, s.T, s.T, s.NH),
                        attention_workspace(device, in_text(0), s.B, s.T, s.T, s.NH));
    }
    template <class X, class Device, class Form>
    size_t bytes_of(Device device, const LayerShape& s) const {
        BumpAllocator forward(nullptr);
        BranchesForward<Device, X, typename Form::Rows>(forward, s, nullptr, added_rows<Form>(s.T));
        const BackwardScratch<X, Device, Form> backward{BumpAllocator(nullptr), s, detach, kernel_bytes(device, s)};
        return std::max(forward.bytes(), backward.allocator.bytes());
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return std::max(bytes_of<X, Device, Dilated>(device, s), bytes_of<X, Device, InText>(device, s));
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        in_form(in.documents, [&]<class Form>(Form) {
            BumpAllocator allocator(workspace);
            BranchesForward<Device, X, typename Form::Rows> all(allocator, in, state.out, added_rows<Form>(in.T));
            all.begin(device, branch(0, in.T), Form::rows(in.T, 0), in, state, statistics);   // branch 1 keeps every token
            for (int n = 1; n < branches; n++) {
                const auto rows = Form::rows(in.T, n);
                all.add(device, Form::policy(*this, in.T, n), rows, branch_arguments(in, rows, state, statistics));
            }
            all.finish(device, in, state, statistics);
        });
    }
    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        in_form(in.documents, [&]<class Form>(Form) {
            const BackwardScratch<X, Device, Form> memory{BumpAllocator(workspace), in, detach, kernel_bytes(device, in)};
            LayerState<X> first = state;
            if (detach) {
                first.out = memory.own.out, first.lse = memory.own.lse;
                attention_forward(device, branch(0, in.T), kernel_arguments(in, first, Statistics<X>{}));
                first.lse = state.lse;
            }
            attention_layer_backward(device, branch(0, in.T), in, weights, first, dout, to, more, memory.branches.kernel_workspace());
            for (int n = 1; n < branches; n++) {
                const auto rows = Form::rows(in.T, n);
                memory.branches.add(device, Form::policy(*this, in.T, n), rows, branch_arguments(in, rows, state),
                                    kernel_gradients(dout, to), Write::add, memory.own);
            }
        });
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto times = [&](int h, int i, int j) {
            int count = 0;
            for (int64_t n = 0, w = segment.divisor(), r = 1; n < branches; n++, w *= 2, r *= 2)
                count += j <= i && i / w == j / w && i % w % r == h % r && j % w % r == h % r;
            return count;
        };
        dense_softmax(
            in, out, [&](int, int h, int i, int j, X a) { return a + std::log(X(times(h, i, j))); },
            [&](int h, int i, int j) { return times(h, i, j) > 0; });
    }
};
