// StreamingLLM with positions in the cache (Xiao et al. 2023, arXiv 2309.17453, and its code): the mask of sinks.cuh, but RoPE uses
// a key's position in the cache, not in the text. The cache holds s sinks and the last w = left + 1 keys at positions from 0, so
// that no distance exceeds s + w - 1 however long the text gets. Within the window distances are those of the text; only the
// distance to a sink that has left the window stops growing:
//     z_ij = q_i.k_j / sqrt(HS)     for i - left <= j <= i
//     z_ij = q'_i.k_j / sqrt(HS)    for j < s, j < i - left,    q'_i = RoPE(q_pre_i, min(i, s + w - 1)), k_j = RoPE(k_pre_j, j)
// The published models were trained with positions in the text and used these in generation only; a model trained with them
// sees the same in both. Two branches without a common key, the window with q and the sinks with q', are merged into one
// softmax (branches/branches.cuh). Each document of a packed row has a cache of its own: sinks and positions in the cache count from
// its first token.
#pragma once
#include "attention/branches/branches.cuh"
#include "attention/masks/pattern.h"
#include "attention/scores/rotate_heads.cuh"
#include "attention/sinks.cuh"

/// The sinks that have left the window.
struct SinkBranch : Policy {
    int first, left;
    SinkBranch(int first_, int left_) : Policy(Config{}, 0), first(first_), left(left_) {}
    constexpr bool visible(int, int i, int j) const { return j < first && i - j > left; }
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        if (j0 >= first || i1 - 1 - j0 <= left) return Tile::hidden;
        return j1 <= first && i0 - (j1 - 1) > left ? Tile::full : Tile::mixed;
    }
};

struct sinks_cache : sinks {
    static constexpr const char* name = "sinks_cache";
    static constexpr Traits traits{.own_passes = true, .reads_qk_pre = true};
    using sinks::sinks;

    PairCount expected_pairs(int NH, int T) const {
        const PairCount window = count_pairs(WindowBranch(left), NH, T), rest = count_pairs(SinkBranch(leading, left), NH, T);
        return {window.pairs + rest.pairs, window.tiles + rest.tiles};
    }

    template <class X, class Device>
    struct ForwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        X* out;
        BranchesForward<Device, X, RowsInOrder> branches{allocator, s, out, {RowsInOrder{s.T}}};
        X* q = allocator.take<X>(size_t(s.B) * s.T * s.NH * s.HS);   // (B, T, NH, HS) q'
    };
    template <class X>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        size_t kernel_bytes, queries = size_t(s.B) * s.T * s.NH * s.HS, keys = size_t(s.B) * s.T * s.NKV * s.HS;
        X *q = allocator.take<X>(queries), *dv = allocator.take<X>(keys);   // (B, T, NH, HS) q', (B, T, NKV, HS)
        Wide<X>*dq = allocator.take<Wide<X>>(queries), *dk = allocator.take<Wide<X>>(keys);   // of q', the sinks' part of k's
        std::byte* kernel = allocator.take<std::byte>(kernel_bytes);        // used by both branches
    };
    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        return std::max(attention_workspace(device, WindowBranch(left), s.B, s.T, s.T, s.NH),
                        attention_workspace(device, SinkBranch(leading, left), s.B, s.T, s.T, s.NH));
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        const BumpAllocator none(nullptr);
        const ForwardScratch<X, Device> forward{none, s, nullptr};
        const BackwardScratch<X> backward{none, s, kernel_bytes(device, s)};
        return std::max(forward.allocator.bytes(), backward.allocator.bytes());
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        ForwardScratch<X, Device> memory{BumpAllocator(workspace), in, state.out};
        const RowsInOrder rows{in.T};
        memory.branches.begin(device, WindowBranch(left), rows, in, state, statistics);
        rotate_queries(device, memory.q, in);
        memory.branches.add(device, SinkBranch(leading, left), rows, sink_arguments(memory.q, in, state, statistics));
        memory.branches.finish(device, in, state, statistics);
    }

    /// s + w - 1, the last position in the cache.
    int last_position() const { return int(std::min(int64_t(leading) + left, int64_t(END))); }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const BackwardScratch<X> memory{BumpAllocator(workspace), in, kernel_bytes(device, in)};
        attention_layer_backward(device, WindowBranch(left), in, weights, state, dout, to, more, memory.kernel);
        const size_t q_row = size_t(in.NH) * in.HS, k_row = size_t(in.NKV) * in.HS;
        const QkvGradients<X> of_sinks{{memory.dq, q_row}, {memory.dk, k_row}, {memory.dv, k_row}};
        rotate_queries(device, memory.q, in);
        attention_backward(device, SinkBranch(leading, left), sink_arguments(memory.q, in, state, Statistics<X>{}),
                           kernel_gradients(dout, of_sinks, memory.kernel));

        add_heads(device, to.k, Heads<const W>{memory.dk, k_row}, in.B * in.T, in.NKV, in.HS);
        add_heads(device, to.v, Heads<const X>{memory.dv, k_row}, in.B * in.T, in.NKV, in.HS);
        rotate_queries(device, Heads<W>{more.dq_pre, in.qk_row}, Heads<const W>{memory.dq, q_row}, in, -1);
        clear_heads(device, Heads<W>{more.dk_pre, in.qk_row}, in.B * in.T, in.NKV, in.HS);
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        std::vector<X> rotated(in.HS);
        auto modify = [&](int b, int h, int i, int j, X a) {
            if (j >= i - left) return a;
            const int half = in.HS / 2, position = int(std::min(int64_t(i), int64_t(leading) + left));
            const X* q = in.query(in.q_pre, b, i, h);
            for (int d = 0; d < half; d++) {
                const X c = in.cosine[position * half + d], s = in.sine[position * half + d];
                rotated[d] = q[d] * c - q[d + half] * s;
                rotated[d + half] = q[d + half] * c + q[d] * s;
            }
            return dot(rotated.data(), in.key(in.k, b, j, h), in.HS) / std::sqrt(X(in.HS));
        };
        dense_softmax(in, out, modify, [&](int, int i, int j) { return j <= i && (j < leading || j >= i - left); });
    }

private:
    /// Queries at min(t, last_position()), t counted from the document's beginning; direction is 1, or -1 for the gradient.
    template <class Device, class Y, class X>
    void rotate_queries(Device device, Heads<Y> to, Heads<const Y> from, const LayerInputs<X>& in, int direction) const {
        rotate_heads(device, to, from, {in.cosine, in.sine}, in.B, in.T, in.NH, in.HS, direction,
                     {.last = last_position(), .documents = in.documents});
    }
    /// q' (B, T, NH, HS).
    template <class Device, class X>
    void rotate_queries(Device device, X* q, const LayerInputs<X>& in) const {
        rotate_queries(device, Heads<X>{q, size_t(in.NH) * in.HS}, Heads<const X>{in.q_pre, in.qk_row}, in, 1);
    }
    /// The sinks' kernel call, whose queries are q'; out and lse are those of `state`.
    template <class X>
    AttentionForward<X> sink_arguments(const X* q, const LayerInputs<X>& in, const LayerState<X>& state,
                                       const Statistics<X>& statistics) const {
        AttentionForward<X> a = branch_arguments(in, RowsInOrder{in.T}, state, statistics);
        a.q = {q, size_t(in.NH) * in.HS};
        return a;
    }
};
