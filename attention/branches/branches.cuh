// Merged branches: several kernel calls, each over keys of its own, that make one softmax. A branch may have its rows in another
// order than the text, or only some of them (a `Rows`, rows.cuh). Its policy judges rows, not tokens, and hides padding, unless the
// rows have positions. Forward: begin() with a branch of all tokens in text order, or begin_with_none(); add() others; finish().
// Backward: every branch reads the merged out and log-sum-exp; its kernel then computes the contribution of its pairs to the
// gradients of the one softmax (algebra in merge.cuh), and these add up.
// On the CPU the kernel reads rows in place and resumes from the previous call's out and lse (cpu.h). On a GPU q, k and v are
// gathered, because its kernels copy tiles of contiguous rows; every branch has its own result, and the results are merged.
#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention/branches/merge.cuh"
#include "attention/kernel/cpu.h"
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"

/// Keys i - left .. i.
struct WindowBranch : Policy {
    int left;
    explicit WindowBranch(int left_) : Policy(Config{}, 0), left(left_) {}
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(left, i0, i1, j0, j1); }
    constexpr bool visible(int, int i, int j) const { return j <= i && i - j <= left; }
};

/// Arguments of a branch's call: q, k, v, out, lse and statistics of the text, R rows of the branch. The policy judges `positions`
/// (B, NH, R) of the rows; null: their indices; -1: padding.
template <class X, class Rows>
AttentionForward<X> branch_arguments(const LayerInputs<X>& in, const Rows& rows, const LayerState<X>& state,
                                     Statistics<X> statistics = {}, const int* positions = nullptr) {
    statistics.tile_max = nullptr;   // branches have different tiles
    AttentionForward<X> a = kernel_arguments(in, state, statistics);
    a.T = a.S = rows.count, a.gate = nullptr;
    a.q_position = a.k_position = positions;
    return a;
}
/// Memory for the result of a single branch, shaped like the layer's out and lse.
template <class X>
struct OwnResult {
    X* out = nullptr;         // (B, T, NH, HS)
    Wide<X>* lse = nullptr;   // (B, NH, T)
    OwnResult() = default;
    OwnResult(BumpAllocator& allocator, const LayerShape& s)
        : out(allocator.take<X>(size_t(s.B) * s.T * s.NH * s.HS)), lse(allocator.take<Wide<X>>(size_t(s.B) * s.NH * s.T)) {}
};

template <class Device, class X, class Rows>
class BranchesForward;
template <class Device, class X, class Rows>
class BranchesBackward;

// ---- CPU: rows are read in place

template <class X, class Rows>
class BranchesForward<CPU, X, Rows> {
public:
    /// Memory for branches with the rows `added`; `out` is the layer's.
    BranchesForward(BumpAllocator&, const LayerShape&, X* /*out*/, const std::vector<Rows>& /*added*/) {}

    /// `in_order`: row r is token r.
    template <class P>
    void begin(CPU device, const P& policy, const Rows& in_order, const LayerInputs<X>& in, const LayerState<X>& state,
               const Statistics<X>& statistics) {
        attention_forward(device, policy, branch_arguments(in, in_order, state, statistics));
    }
    void begin_with_none(CPU, const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
        const size_t rows = size_t(in.B) * in.NH * in.T;
        std::fill_n(state.out, rows * in.HS, X(0));
        std::fill_n(state.lse, rows, -std::numeric_limits<X>::infinity());
        if (statistics.entropy) std::fill_n(statistics.entropy, rows, X(0));
        if (statistics.pairs) std::fill_n(statistics.pairs, rows, X(0));
        if (statistics.tiles) std::fill_n(statistics.tiles, size_t(in.B) * in.NH * tiles_of(in.T), X(0));
    }
    /// `a` is branch_arguments().
    template <class P>
    void add(CPU, const P& policy, const Rows& rows, const AttentionForward<X>& a) {
        attention_rows_forward(policy, a, rows, rows, Write::add);
    }
    void finish(CPU, const LayerInputs<X>&, const LayerState<X>&, const Statistics<X>&) {}
};

template <class X, class Rows>
class BranchesBackward<CPU, X, Rows> {
public:
    /// Memory for one branch at a time, of at most the rows of `longest`.
    BranchesBackward(BumpAllocator&, const LayerShape&, const Rows& /*longest*/, size_t /*kernel_bytes*/) {}
    std::byte* kernel_workspace() const { return nullptr; }

    /// Overwrites g.dq, g.dk and g.dv or adds to them. With `own`, the branch is recomputed into it and its out replaces the merged
    /// one: the branches' weights then count as constants.
    template <class P>
    void add(CPU device, const P& policy, const Rows& rows, AttentionForward<X> a, const AttentionBackward<X>& g,
             Write write = Write::add, const OwnResult<X>& own = {}) const {
        if (write == Write::overwrite) {
            clear_heads(device, g.dq, a.B * rows.T, a.NH, a.HS);
            clear_heads(device, g.dk, a.B * rows.T, a.NKV, a.HS), clear_heads(device, g.dv, a.B * rows.T, a.NKV, a.HS);
        }
        if (own.out) {
            AttentionForward<X> alone = a;
            alone.out = a.out = own.out, alone.lse = own.lse;
            std::fill_n(own.lse, size_t(a.B) * a.NH * rows.T, -std::numeric_limits<X>::infinity());
            attention_rows_forward(policy, alone, rows, rows, Write::add);
        }
        attention_rows_backward(policy, a, g, rows, rows, Write::add);
    }
};

// ---- gathered branches: on a GPU, and in routing, where a token may have several rows

/// Memory for the inputs of a branch of R rows. Query heads of a group share keys and values where they have the same rows (KV =
/// NKV); otherwise each has its own (KV = NH).
template <class X>
struct BranchInputs {
    int KV;
    X *q, *k, *v;   // (B, R, NH, HS), (B, R, KV, HS) twice

    BranchInputs(BumpAllocator& allocator, const LayerShape& s, int R, int KV_) : KV(KV_) {
        const size_t row = size_t(s.B) * R * s.HS;
        q = allocator.take<X>(row * s.NH), k = allocator.take<X>(row * KV), v = allocator.take<X>(row * KV);
    }
};

#ifdef WITH_GPU

/// `a` with q, k and v in the order of the branch: the arguments of its kernel call, without the outputs.
template <class X, class Rows>
AttentionForward<X> gathered(GPU device, const BranchInputs<X>& to, const Rows& rows, AttentionForward<X> a) {
    if constexpr (std::is_same_v<Rows, RowsInOrder>) return a;
    const RowShape queries{a.B, rows.T, a.NH, a.NH, a.HS}, keys{a.B, rows.T, to.KV, a.NKV, a.HS};
    gather_rows(device, to.q, a.q, rows, queries);
    gather_rows(device, to.k, a.k, rows, keys);
    gather_rows(device, to.v, a.v, rows, keys);
    const size_t q_row = size_t(a.NH) * a.HS, k_row = size_t(to.KV) * a.HS;
    a.NKV = to.KV, a.q = {to.q, q_row}, a.k = {to.k, k_row}, a.v = {to.v, k_row};
    return a;
}

template <class Rows>
int most_rows(const std::vector<Rows>& all) {
    int most = 0;
    for (const Rows& rows : all) most = std::max(most, rows.count);
    return most;
}

template <class X, class Rows>
class BranchesForward<GPU, X, Rows> {
    static constexpr bool gathers = !std::is_same_v<Rows, RowsInOrder>;

public:
    BranchesForward(BumpAllocator& allocator, const LayerShape& s, X* out, const std::vector<Rows>& added)
        : first_(out, allocator, s, s.T), inputs_(allocator, s, gathers ? most_rows(added) : 0, Rows::per_head ? s.NH : s.NKV) {
        for (const Rows& rows : added) added_.push_back(BranchResults<X>(allocator, s, rows.count));
    }

    template <class P>
    void begin(GPU device, const P& policy, const Rows& in_order, const LayerInputs<X>& in, const LayerState<X>& state,
               const Statistics<X>& statistics) {
        run(device, policy, in_order, branch_arguments(in, in_order, state, statistics), first_);
    }
    void begin_with_none(GPU, const LayerInputs<X>&, const LayerState<X>&, const Statistics<X>&) {}

    template <class P>
    void add(GPU device, const P& policy, const Rows& rows, const AttentionForward<X>& a) {
        run(device, policy, rows, gathered(device, inputs_, rows, a), added_[next_++]);
    }
    void finish(GPU device, const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
        merge_forward(device, state.out, state.lse, all_, {in.B, in.T, in.NH, in.NH, in.HS}, statistics);
    }

private:
    template <class P>
    void run(GPU device, const P& policy, const Rows& rows, AttentionForward<X> a, const BranchResults<X>& to) {
        a.out = to.out, a.lse = to.lse, a.statistics = to.statistics_for(a.statistics);
        attention_forward(device, policy, a);
        all_.add(to.branch(rows));
    }

    BranchResults<X> first_;
    BranchInputs<X> inputs_;
    std::vector<BranchResults<X>> added_;
    Branches<X, Rows> all_;
    size_t next_ = 0;
};

template <class X, class Rows>
class BranchesBackward<GPU, X, Rows> {
    using W = Wide<X>;
    static constexpr bool gathers = !std::is_same_v<Rows, RowsInOrder>;

public:
    BranchesBackward(BumpAllocator& allocator, const LayerShape& s, const Rows& longest, size_t kernel_bytes)
        : inputs_(allocator, s, gathers ? longest.count : 0, Rows::per_head ? s.NH : s.NKV) {
        const size_t rows = size_t(s.B) * longest.count, queries = rows * s.NH * s.HS, keys = rows * inputs_.KV * s.HS;
        if (gathers) out_ = allocator.take<X>(queries), dout_ = allocator.take<X>(queries), lse_ = allocator.take<W>(rows * s.NH);
        dq_ = allocator.take<W>(queries), dk_ = allocator.take<W>(keys), dv_ = allocator.take<X>(keys);
        kernel_ = allocator.take<std::byte>(kernel_bytes);
    }
    /// kernel_bytes of memory, free for the caller's own kernel calls between calls of add().
    std::byte* kernel_workspace() const { return kernel_; }

    template <class P>
    void add(GPU device, const P& policy, const Rows& rows, const AttentionForward<X>& of_text, const AttentionBackward<X>& g,
             Write write = Write::add, const OwnResult<X>& own = {}) const {
        AttentionForward<X> a = gathered(device, inputs_, rows, of_text);
        const RowShape queries{a.B, rows.T, a.NH, a.NH, a.HS}, keys{a.B, rows.T, a.NKV, of_text.NKV, a.HS};
        const size_t q_row = size_t(a.NH) * a.HS, k_row = size_t(a.NKV) * a.HS;
        AttentionBackward<X> in_branch{};
        if constexpr (gathers) {
            a.out = out_, a.lse = lse_;
            if (own.out) attention_forward(device, policy, a);
            else gather_rows(device, out_, Heads<const X>{of_text.out, q_row}, rows, queries);
            gather_rows(device, dout_, Heads<const X>{g.dout, q_row}, rows, queries);
            gather_scalars(device, lse_, static_cast<const W*>(of_text.lse), rows, a.B, rows.T, a.NH, W(-INFINITY));
        } else if (own.out) {
            a.out = own.out, a.lse = own.lse;
            attention_forward(device, policy, a);
            a.lse = of_text.lse;
        }
        in_branch.dout = gathers ? dout_ : g.dout, in_branch.workspace = kernel_;
        in_branch.dq = {dq_, q_row}, in_branch.dk = {dk_, k_row}, in_branch.dv = {dv_, k_row};
        attention_backward(device, policy, a, in_branch);
        scatter_add_rows(device, g.dq, static_cast<const W*>(dq_), rows, queries, write);
        scatter_add_rows(device, g.dk, static_cast<const W*>(dk_), rows, keys, write);
        scatter_add_rows(device, g.dv, static_cast<const X*>(dv_), rows, keys, write);
    }

private:
    BranchInputs<X> inputs_;
    X *out_ = nullptr, *dout_ = nullptr;   // (B, R, NH, HS), where rows are gathered
    W* lse_ = nullptr;                     // (B, NH, R)
    W *dq_, *dk_;        // as q and k
    X* dv_;
    std::byte* kernel_;
};

#endif
