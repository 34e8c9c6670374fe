// Learned attention sinks (gpt-oss: OpenAI 2025, model card arXiv 2508.10925 and its released code): a logit s per head joins the
// softmax of every row and has no value, so that a head may attend to nothing.
//     P_ij = exp(z_ij) / (exp(s_h) + sum_j exp(z_ij)),   z_ij = q_i.k_j / sqrt(HS)   for i - left <= j <= i or j < --sinks
// Since exp(LSE_i) is the sum over the keys alone, this is plain attention and a factor per row and head,
//     O'_i = g_i O_i,   g_i = sigmoid(LSE_i - s_h)          dL/dLSE_i = dg_i g_i (1 - g_i),   ds_h = -sum_i dL/dLSE_i
// With s = 0 in every head it is "softmax off by one" (Miller 2023), which adds 1 to the denominator.
// Assumptions and omissions:
// - s starts at random, normal(0.02), as in transformers' GptOss (whose name for it is sinks), and does not decay.
// - gpt-oss alternates layers with windows of 128 keys and dense ones: --layers sink_logits:window=127,sink_logits:window=1000000000.
//   Without --layers every layer is dense, or has the same --window. Its --sinks, none by default, are not of gpt-oss.
// - Its rescaled RoPE (YaRN) and its biases of projections are properties of the model, not of this mechanism.
// - Statistics are over the keys without the sink: the log-sum-exp, and the entropy of the weights relative to their sum. The sink's
//   share of a row is 1 - g, and a monitor shows the mean of g as the layer's gate.
#pragma once
#include "attention/gates/row_gate.cuh"
#include "attention/gates/token_linear.cuh"
#include "attention/scores/each_element.cuh"
#include "attention/sinks.cuh"

/// g (B, T, NH) from LSE (B, NH, T). Rows are tokens.
template <class X>
struct SinkShares {
    Wide<X>* gate;
    const Wide<X>* lse;
    const X* s;
    int T, NH;
    constexpr void operator()(unsigned token, int h) const {
        gate[size_t(token) * NH + h] = sigmoid(lse[(size_t(token / T) * NH + h) * T + token % T] - widened(s[h]));
    }
};

/// Backward: dL/dLSE (B, NH, T) from dg (B, T, NH). The share 1 - g is computed again from the difference: where it is small, the
/// rounded g holds few of its digits or none.
template <class X>
struct SinkSharesBackward {
    Wide<X>* dlse;
    const Wide<X>*dgate, *lse;
    const X* s;
    int T, NH;
    constexpr void operator()(unsigned token, int h) const {
        const size_t row = (size_t(token / T) * NH + h) * T + token % T;
        const Wide<X> x = lse[row] - widened(s[h]);
        dlse[row] = dgate[size_t(token) * NH + h] * sigmoid(x) * sigmoid(-x);
    }
};

/// ds (NH) -= the sum of dlse (B, NH, T) over tokens.
template <class X>
void sink_gradient(CPU, X* ds, const X* dlse, int B, int NH, int T) {
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++)
            for (int t = 0; t < T; t++) ds[h] -= dlse[(size_t(b) * NH + h) * T + t];
}
#ifdef WITH_GPU
inline constexpr int SINK_WARPS = 8;

/// One block per head.
template <class W>
__global__ void sink_gradient_kernel(W* ds, const W* dlse, int B, int NH, int T) {
    auto& parts = dynamic_shared<W[SINK_WARPS]>();
    const int h = blockIdx.x;
    W sum = 0;
    for (int b = 0; b < B; b++)
        for (int t = threadIdx.x; t < T; t += blockDim.x) sum += dlse[(size_t(b) * NH + h) * T + t];
    sum = block_sum<SINK_WARPS>(sum, parts);
    if (threadIdx.x == 0) ds[h] -= sum;
}
inline void sink_gradient(GPU device, float* ds, const float* dlse, int B, int NH, int T) {
    launch(device, sink_gradient_kernel<float>, NH, SINK_WARPS * WARP, SINK_WARPS * sizeof(float), ds, dlse, B, NH, T);
}
#endif

struct sink_logits : sinks {
    static constexpr const char* name = "sink_logits";
    static constexpr Traits traits{.own_passes = true, .one_call = true, .gates_output = true};   // the factor needs the log-sum-exp
    Slot s;                                    // (NH)
    int NH;

    sink_logits(const Config& config, int layer) : sinks(config, layer), NH(config.NH) {}

    static std::vector<Setting> settings() {
        return {{"--window", "attention_window", 1e9, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i; 1e9: all", true},
                {"--sinks", "sinks_tokens", 0, 0, 1e9, WHOLE, "sink tokens: leading tokens that every later token sees", true}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        s = list.add(prefix + "sink_logits.s", {NH}, normal(0.02), Decay::no);
    }

    // ---- the layer: one call of the kernel, then the factors

    template <class X>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape shape;
        size_t kernel_bytes, rows = size_t(shape.B) * shape.T * shape.NH;
        X* dout = allocator.take<X>(rows * shape.HS);           // (B, T, NH, HS) of O
        Wide<X>* dlse = allocator.take<Wide<X>>(rows);          // (B, NH, T)
        std::byte* kernel = allocator.take<std::byte>(kernel_bytes);
    };
    template <class X, class Device>
    BackwardScratch<X> backward_scratch(Device device, std::byte* block, const LayerShape& shape) const {
        return {BumpAllocator(block), shape, attention_workspace(device, keys(), shape.B, shape.T, shape.T, shape.NH)};
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& shape) const {
        return backward_scratch<X>(device, nullptr, shape).allocator.bytes();
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* /*workspace*/,
                 const Statistics<X>& statistics) const {
        const size_t tokens = size_t(in.B) * in.T;
        attention_forward(device, keys(), ungated_arguments(in, state, statistics));
        each_element(device, tokens, NH, SinkShares<X>{state.score_inputs.gate, state.lse, weights + s.offset, in.T, NH});
        gate_rows_forward(device, state.gated_out, state.out, state.score_inputs.gate, tokens * NH, in.HS);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const auto scratch = backward_scratch<X>(device, workspace, in);
        const size_t tokens = size_t(in.B) * in.T;
        gate_rows_backward(device, scratch.dout, more.of.gate, dout, state.out, state.score_inputs.gate, tokens * NH, in.HS);
        each_element(device, tokens, NH,
                     SinkSharesBackward<X>{scratch.dlse, more.of.gate, state.lse, weights + s.offset, in.T, NH});
        sink_gradient(device, more.dweights + s.offset, scratch.dlse, in.B, NH, in.T);

        AttentionBackward<X> g = kernel_gradients<X>(scratch.dout, to, scratch.kernel);
        g.dlse = scratch.dlse;
        attention_backward(device, keys(), ungated_arguments(in, state, Statistics<X>{}), g);
    }

    // ---- the formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        std::vector<X> e(in.T);
        for (int b = 0; b < in.B; b++)
            for (int h = 0; h < NH; h++)
                for (int i = 0; i < in.T; i++) naive_row(in, b, h, i, weights[s.offset + h], e, out);
    }

private:
    /// The keys without the sink.
    const sinks& keys() const { return *this; }

    template <class X>
    void naive_row(const LayerInputs<X>& in, int b, int h, int i, X sink, std::vector<X>& e, X* out) const {
        X* const o = out + (in.token(b, i) * NH + h) * in.HS;
        auto hidden = [&](int j) { return j >= leading && j < i - left; };
        X total = std::exp(sink);
        for (int j = 0; j <= i; j++)
            if (!hidden(j)) total += e[j] = std::exp(dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(X(in.HS)));
        std::fill_n(o, in.HS, X(0));
        for (int j = 0; j <= i; j++)
            for (int d = 0; d < in.HS && !hidden(j); d++) o[d] += e[j] / total * in.value(b, j, h)[d];
    }
};
