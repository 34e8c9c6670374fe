// Sparse Transformer, strided pattern (Child et al. 2019, arXiv 1904.10509): the last l tokens, and every l-th token before them.
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and j in A1(i) or A2(i)
//     A1(i) = {j : i - j <= l}      A2(i) = {j : (i - j) mod l = 0}
// The paper names three ways of combining the two: alternating between layers, alternating between heads, or merged. This is the
// merged one, a single softmax over the union. (The released code's window has l keys, the paper's, and this one, l + 1.)
// In text order every tile has a few keys of A2, and nothing can be skipped. So two branches without a common key are merged
// (branches/branches.cuh): the window in text order, and what A2 adds in an order in which it is dense, sorted by (t mod l, t div
// l), as if the text were written in rows of l tokens and read in columns.
// The mask depends on distances alone, so a document of a packed row has the same pairs in the row's columns as in its own. The branch
// of columns treats a document's part of a column as the window treats a document (ColumnStarts).
#pragma once
#include "attention/branches/branches.cuh"
#include "attention/masks/pattern.h"

/// The text column by column: row n of column c is token n l + c. Columns are padded to the same length.
struct ColumnRows {
    static constexpr bool per_head = false;
    int count = 0, T = 0;
    Divisor stride{1}, length{1};   // l, and the rows of a column

    ColumnRows() = default;
    ColumnRows(int l, int T_) : T(T_), stride(std::min(l, T)), length((T + stride.divisor() - 1) / stride.divisor()) {
        count = stride.divisor() * length.divisor();
    }
    constexpr int token(int, int, int row) const {
        const int t = length.remainder(row) * stride.divisor() + length.quotient(row);
        return t < T ? t : -1;
    }
    constexpr int row(int, int, int token) const {
        return stride.remainder(token) * length.divisor() + stride.quotient(token);
    }
    constexpr int tokens_of(int column) const {
        return length.divisor() - ((length.divisor() - 1) * stride.divisor() + column >= T);
    }
};

/// Mask over rows: two tokens of a column more than one row apart (the window has the others). Padding is at the end of a column:
/// its keys have no queries after them, its queries have to be hidden. Rows of a document's part are judged as if it were column 0.
struct ColumnBranch : Policy {
    ColumnRows rows;
    explicit ColumnBranch(const ColumnRows& rows_) : Policy(Config{}, 0), rows(rows_) {}

    constexpr bool visible(int, int i, int j) const {
        return rows.token(0, 0, i) >= 0 && i - j >= 2 && i - j <= rows.length.remainder(i);
    }
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        const int length = rows.length.divisor(), first = rows.length.quotient(std::max(i0, j0)),
                  last = rows.length.quotient(std::min(i1, j1) - 1);   // columns that queries and keys share
        bool some = false;
        for (int c = first; c <= last && length >= 3 && !some; c++) {
            const int end = std::min(i1, c * length + rows.tokens_of(c)), begin = std::max(j0, c * length);
            some = end > i0 && end - 1 - begin >= 2;
        }
        if (!some) return Tile::hidden;
        const bool one_column = rows.length.quotient(std::min(i0, j0)) == rows.length.quotient(std::max(i1, j1) - 1);
        return one_column && i0 - (j1 - 1) >= 2 && rows.token(0, 0, i1 - 1) >= 0 ? Tile::full : Tile::mixed;
    }
};

/// Document starts in column order: start (B, rows.count) as in Documents. A document's part of a column counts as a document, and so
/// does each row of padding.
struct ColumnStarts {
    int32_t* start;
    ColumnRows rows;
    Documents of_text;
    constexpr void operator()(unsigned b, int row) const {
        const int token = rows.token(0, 0, row), begin = token < 0 ? 0 : of_text.at(b, token);
        start[size_t(b) * rows.count + row] = token < 0 ? row : rows.row(0, 0, begin + rows.stride.remainder(token - begin));
    }
};

struct strided : Policy {
    static constexpr const char* name = "strided";
    static constexpr Traits traits{.own_passes = true};
    int l;

    strided(const Config& config, int layer) : Policy(config, layer), l(int(config.setting("strided_stride"))) {}

    static std::vector<Setting> settings() {
        return {{"--stride", "strided_stride", 128, 1, 1e9, WHOLE,
                 "stride l in tokens: a query sees the last l tokens and every l-th one before them", true}};
    }

    // ---- the union in text order: for pictures and tests, no kernel calls it

    constexpr bool visible(int, int i, int j) const { return j <= i && (i - j <= l || (i - j) % l == 0); }
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        const int nearest = std::max(0, i0 - (j1 - 1)), farthest = (i1 - 1) - j0;   // every distance between occurs
        if (farthest < 0 || (nearest > l && farthest / l * l < nearest)) return Tile::hidden;
        return j1 - 1 <= i0 && (farthest <= l || l == 1) ? Tile::full : Tile::mixed;
    }

    /// Pairs and tiles that the kernels visit.
    PairCount expected_pairs(int NH, int T) const {
        const ColumnRows rows(l, T);
        const PairCount window = count_pairs(WindowBranch(l), NH, T), columns = count_pairs(ColumnBranch(rows), NH, rows.count);
        return {window.pairs + columns.pairs, window.tiles + columns.tiles};
    }

    // ---- the two branches

    template <class X, class Device>
    struct ForwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ColumnRows columns;
        X* out;
        BranchesForward<Device, X, ColumnRows> branches{allocator, s, out, {columns}};
        int32_t* starts = allocator.take<int32_t>(size_t(s.B) * columns.count);   // (B, columns.count), of packed documents
    };
    template <class X, class Device>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ColumnRows columns;
        size_t kernel_bytes;
        BranchesBackward<Device, X, ColumnRows> branches{allocator, s, columns, kernel_bytes};
        int32_t* starts = allocator.take<int32_t>(size_t(s.B) * columns.count);
    };
    template <class Device>
    static size_t kernel_bytes(Device device, const LayerShape& s, const ColumnRows& columns) {
        return std::max(attention_workspace(device, WindowBranch(0), s.B, s.T, s.T, s.NH),
                        attention_workspace(device, ColumnBranch(columns), s.B, columns.count, columns.count, s.NH));
    }

    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        const BumpAllocator none(nullptr);
        const ColumnRows columns(l, s.T);
        const ForwardScratch<X, Device> forward{none, s, columns, nullptr};
        const BackwardScratch<X, Device> backward{none, s, columns, kernel_bytes(device, s, columns)};
        return std::max(forward.allocator.bytes(), backward.allocator.bytes());
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const ColumnRows columns(l, in.T), in_order(1, in.T);
        ForwardScratch<X, Device> memory{BumpAllocator(workspace), in, columns, state.out};
        memory.branches.begin(device, WindowBranch(l), in_order, in, state, statistics);
        AttentionForward<X> a = branch_arguments(in, columns, state, statistics);
        a.documents = in_columns(device, in, columns, memory.starts);
        memory.branches.add(device, ColumnBranch(columns), columns, a);
        memory.branches.finish(device, in, state, statistics);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const ColumnRows columns(l, in.T);
        const BackwardScratch<X, Device> memory{BumpAllocator(workspace), in, columns, kernel_bytes(device, in, columns)};
        attention_layer_backward(device, WindowBranch(l), in, weights, state, dout, to, more, memory.branches.kernel_workspace());
        AttentionForward<X> a = branch_arguments(in, columns, state);
        a.documents = in_columns(device, in, columns, memory.starts);
        memory.branches.add(device, ColumnBranch(columns), columns, a, kernel_gradients(dout, to));
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        dense_softmax(in, out, [&](int, int i, int j) { return j <= i && (j >= i - l || (i - j) % l == 0); });
    }

private:
    /// The documents of `in` in the order of columns, written to `starts`.
    template <class Device, class X>
    static Documents in_columns(Device device, const LayerInputs<X>& in, const ColumnRows& columns, int32_t* starts) {
        if (!in.documents) return {};
        each_element(device, in.B, columns.count, ColumnStarts{starts, columns, in.documents});
        return {starts, columns.count};
    }
};
