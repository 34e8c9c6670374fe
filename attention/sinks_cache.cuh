// StreamingLLM with the positions of its cache (Xiao et al. 2023, arXiv 2309.17453, and its code): the mask of sinks.cuh, but RoPE
// sees where a key lies in the cache, not in the text. The cache holds s sinks and the last w = left + 1 keys; its places are
// numbered from 0, so that no distance is ever greater than s + w - 1 however long the text gets. Inside the window distances stay
// what they were; only those to a sink that has left the window do not grow any more:
//     z_ij = q_i.k_j / sqrt(HS)     for i - left <= j <= i
//     z_ij = q'_i.k_j / sqrt(HS)    for j < s, j < i - left,    q'_i = RoPE(q_pre_i, min(i, s + w - 1)), k_j = RoPE(k_pre_j, j)
// The published models were trained with the positions of the text and met these only when they spoke; trained with them, a model
// sees in training what it sees then. Two branches without a common key, the window with q and the sinks with q', make one softmax
// (core/branches.cuh).
#pragma once
#include "attention/branches/branches.cuh"
#include "attention/masks/pattern.h"
#include "attention/sinks.cuh"
#include "model/operations/qk_rope.cuh"

/// The sinks that the window does not have.
struct SinkBranch : Policy {
    int first, left;
    SinkBranch(int first_, int left_) : Policy(Config{}, 0), first(first_), left(left_) {}
    constexpr bool visible(int, int i, int j) const { return j < first && i - j > left; }
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        if (j0 >= first || i1 - 1 - j0 <= left) return Tile::hidden;
        return j1 <= first && i0 - (j1 - 1) > left ? Tile::full : Tile::mixed;
    }
};

/// to (B, T, NH, HS) = from, turned by the angles of position min(t, last); direction -1 turns back, which is the gradient.
template <class X>
void turn_queries(CPU, Heads<X> to, Heads<const X> from, const LayerInputs<X>& in, int last, int direction) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < in.B; b++)
        for (int t = 0; t < in.T; t++)
            for (int h = 0; h < in.NH; h++) {
                const size_t angle = size_t(std::min(t, last)) * (in.HS / 2), head = size_t(h) * in.HS;
                rotate(to.data + in.token(b, t) * to.row + head, from.data + in.token(b, t) * from.row + head, in.cosine + angle,
                       in.sine + angle, in.HS, X(direction));
            }
}

#ifdef WITH_GPU

/// One block per token. Y is X for queries, float for their gradients.
template <class Y>
__global__ void turn_queries_kernel(const Heads<Y> to, const Heads<const Y> from, const float* cosine, const float* sine, int NH,
                                    int HS, int last, float direction) {
    const size_t token = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
    const int t = blockIdx.x, half = HS / 2;
    for (int n = threadIdx.x; n < NH * half; n += blockDim.x) {
        const int d = n % half, head = n / half * HS;
        const size_t angle = size_t(std::min(t, last)) * half + d;
        const float c = cosine[angle], s = direction * sine[angle];
        const Y* x = from.data + token * from.row + head;
        Y* const y = to.data + token * to.row + head;
        const float x1 = to_float(x[d]), x2 = to_float(x[d + half]);
        y[d] = from_float<Y>(x1 * c - x2 * s);
        y[d + half] = from_float<Y>(x2 * c + x1 * s);
    }
}

template <class Y, class X>
void turn_queries(GPU device, Heads<Y> to, Heads<const Y> from, const LayerInputs<X>& in, int last, int direction) {
    launch(device, turn_queries_kernel<Y>, Grid(in.T, in.B), 256, 0, to, from, in.cosine, in.sine, in.NH, in.HS, last,
           float(direction));
}

#endif

struct sinks_cache : sinks {
    static constexpr const char* name = "sinks_cache";
    static constexpr bool composite = true, reads_qk_pre = true;
    using sinks::sinks;

    PairCount expected_pairs(int NH, int T) const {
        const PairCount window = count_pairs(WindowBranch(left), NH, T), rest = count_pairs(SinkBranch(leading, left), NH, T);
        return {window.pairs + rest.pairs, window.tiles + rest.tiles};
    }

    template <class X, class Device>
    struct ForwardScratch {
        Carve carve;
        BranchesForward<Device, X, RowsInOrder> branches;
        X* q;   // (B, T, NH, HS) q'
        ForwardScratch(std::byte* block, X* out, const LayerShape& s)
            : carve(block), branches(carve, s, out, {RowsInOrder{s.T}}), q(carve.take<X>(size_t(s.B) * s.T * s.NH * s.HS)) {}
    };
    template <class X>
    struct BackwardScratch {
        Carve carve;
        X *q, *dv;            // (B, T, NH, HS) q', (B, T, NKV, HS)
        Wide<X>*dq, *dk;      // of q', and of k by way of the sinks
        std::byte* kernel;    // for one branch after the other
        BackwardScratch(size_t kernel_bytes, std::byte* block, const LayerShape& s) : carve(block) {
            const size_t queries = size_t(s.B) * s.T * s.NH * s.HS, keys = size_t(s.B) * s.T * s.NKV * s.HS;
            q = carve.take<X>(queries), dv = carve.take<X>(keys);
            dq = carve.take<Wide<X>>(queries), dk = carve.take<Wide<X>>(keys);
            kernel = carve.take<std::byte>(kernel_bytes);
        }
    };
    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        return std::max(attention_workspace(device, WindowBranch(left), s.B, s.T, s.T, s.NH),
                        attention_workspace(device, SinkBranch(leading, left), s.B, s.T, s.T, s.NH));
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return std::max(ForwardScratch<X, Device>(nullptr, nullptr, s).carve.bytes(),
                        BackwardScratch<X>(kernel_bytes(device, s), nullptr, s).carve.bytes());
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        ForwardScratch<X, Device> memory(workspace, state.out, in);
        const RowsInOrder rows{in.T};
        memory.branches.begin(device, WindowBranch(left), rows, in, state, statistics);
        turn_queries(device, memory.q, in);
        memory.branches.add(device, SinkBranch(leading, left), rows, sink_arguments(memory.q, in, state, statistics));
        memory.branches.finish(device, in, state, statistics);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ExtraGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const BackwardScratch<X> memory(kernel_bytes(device, in), workspace, in);
        attention_layer_backward(device, WindowBranch(left), in, weights, state, dout, to, more, memory.kernel);
        const size_t q_row = size_t(in.NH) * in.HS, k_row = size_t(in.NKV) * in.HS;
        AttentionBackward<X> g{};
        g.dout = dout;
        g.dq = {memory.dq, q_row}, g.dk = {memory.dk, k_row}, g.dv = {memory.dv, k_row};
        g.workspace = memory.kernel;
        turn_queries(device, memory.q, in);
        attention_backward(device, SinkBranch(leading, left), sink_arguments(memory.q, in, state, Statistics<X>{}), g);

        add_heads(device, to.k, Heads<const W>{memory.dk, k_row}, in.B * in.T, in.NKV, in.HS);
        add_heads(device, to.v, Heads<const X>{memory.dv, k_row}, in.B * in.T, in.NKV, in.HS);
        ::turn_queries(device, Heads<W>{more.dq_pre, in.qk_row}, Heads<const W>{memory.dq, q_row}, in, last_position(), -1);
        clear_heads(device, Heads<W>{more.dk_pre, in.qk_row}, in.B * in.T, in.NKV, in.HS);
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        std::vector<X> turned(in.HS);
        auto modify = [&](int b, int h, int i, int j, X a) {
            if (j >= i - left) return a;
            const int half = in.HS / 2, position = int(std::min(int64_t(i), int64_t(leading) + left));
            const X* q = in.query(in.q_pre, b, i, h);
            for (int d = 0; d < half; d++) {
                const X c = in.cosine[position * half + d], s = in.sine[position * half + d];
                turned[d] = q[d] * c - q[d + half] * s;
                turned[d + half] = q[d + half] * c + q[d] * s;
            }
            return dot(turned.data(), in.key(in.k, b, j, h), in.HS) / std::sqrt(X(in.HS));
        };
        dense_softmax(in, out, modify, [&](int, int i, int j) { return j <= i && (j < leading || j >= i - left); });
    }

private:
    /// s + w - 1, the last place in the cache.
    int last_position() const { return int(std::min(int64_t(leading) + left, int64_t(END))); }

    template <class Device, class X>
    void turn_queries(Device device, X* q, const LayerInputs<X>& in) const {
        const Heads<X> turned{q, size_t(in.NH) * in.HS};
        ::turn_queries(device, turned, Heads<const X>{in.q_pre, in.qk_row}, in, last_position(), 1);
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
