// Forgetting Transformer, FoX (Lin et al. 2025, arXiv 2503.02130; code zhixuan-lin/forgetting-transformer): a forget gate per token and
// head, which decays earlier keys.
//     z_ij = q_i.k_j / sqrt(HS) + sum_{l = j+1..i} log f_l,   j <= i          f_t = sigmoid(w_f x_t + b_f) in (0, 1)^NH
// with x the block's normed input. With c_t = sum_{l <= t} log f_l, z_ij = a_ij + c_i - c_j: a feature of the row and one of the key.
// Assumptions and omissions:
// - No RoPE, as in the paper's and the code's configurations of FoX (LLaMA) and FoX (Pro): the gates distinguish near from far.
//   --forgetting-rope 1 keeps RoPE, an option of the code.
// - As in the code, b_f starts at 0 and w_f like other projections: gates start at 1/2 and forget fast until training opens them. The
//   paper initialises by a shortest and a longest decay time only in ablations whose gates do not depend on the data.
// - FoX (Pro)'s output gate, output norm and shift of keys and values by one token are left out. QK-norm is the model's.
// - The released code has one key head per query head. With fewer, every query head still has its own gate.
// - Skipping forgotten pairs (arXiv 2504.06949) is left out: every pair is computed.
// - --read-window and --read-sinks are not of the paper: with them e16_sinks reads dense models.
// Precision: c grows with the text (with the initial gates to -22713 at token 32768, where float32 resolves 1/512), but only small
// differences matter. Sums are therefore in double, and c is passed in two parts: high, c rounded to float32, and low, the rest.
// The difference of two high parts is rounded to its own last place, not to theirs: near pairs lose nothing.
// The gradient of c_t is sum_j dz_tj - sum_i dz_it. The first sum is 0 up to rounding, but the second contains the same rounding. In
// d log f_l, the sum over all t >= l, the pairs between two tokens after l cancel only if both are kept.
#pragma once
#include "attention/gates/token_linear.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"
#include "attention/scores/running_sum.cuh"

/// Computes c, as features of rows and columns, from the gates' logits u (B, T, NH).
template <class X>
struct ForgetForward {
    const Wide<X>* u;
    Wide<X>*row, *column;   // (B, NH, T, 2), (B, NH, 2, padded(T)): [high, low]
    int NH, T;

    constexpr double term(int b, int h, int t) const { return -softplus(-u[(size_t(b) * T + t) * NH + h]); }
    constexpr void store(int b, int h, int t, double c) const {
        const size_t head = size_t(b) * NH + h, keys = padded(T);
        const Wide<X> high = Wide<X>(c), low = Wide<X>(c - high);
        Wide<X>*const of_row = row + (head * T + t) * 2, *const of_head = column + head * 2 * keys;
        of_row[0] = of_head[t] = high, of_row[1] = of_head[keys + t] = low;
        for (size_t pad = T; t == T - 1 && pad < keys; pad++) of_head[pad] = of_head[keys + pad] = 0;
    }
};

/// Computes du = (1 - f) d log f from the gradients of c. Element n belongs to token T - 1 - n.
template <class X>
struct ForgetBackward {
    Wide<X>* du;
    const Wide<X>*u, *drow, *dcolumn;
    int NH, T;

    constexpr double term(int b, int h, int n) const {
        const size_t head = size_t(b) * NH + h, t = T - 1 - n;
        return double(drow[(head * T + t) * 2]) + double(dcolumn[head * 2 * padded(T) + t]);
    }
    constexpr void store(int b, int h, int n, double sum) const {
        const size_t at = (size_t(b) * T + T - 1 - n) * NH + h;
        du[at] = Wide<X>(sum) * sigmoid(-u[at]);
    }
};

struct forgetting : ReadThroughWindow {
    static constexpr const char* name = "forgetting";
    static constexpr Traits traits{.reads_x = true};
    bool with_rope;
    InputLinear gate;   // w_f (NH, C), b_f (NH)
    int NH, C;

    forgetting(const Config& config, int layer)
        : ReadThroughWindow(config, layer), with_rope(config.setting("forgetting_rope") != 0), NH(config.NH), C(config.C) {}

    static std::vector<Setting> settings() {
        return with({"--forgetting-rope", "forgetting_rope", 0, 0, 1, WHOLE, "RoPE on queries and keys: 1 on, 0 off"});
    }

    void declare(TensorList& list, const std::string& prefix) {
        gate = {list.add(prefix + "forgetting.w_f", {NH, C}, normal(0.02), Decay::yes),
                list.add(prefix + "forgetting.b_f", {NH}, zeros(), Decay::no), NH};
    }

    Form form() const { return {.rotates = with_rope}; }

    // ---- score: c of the row and of the key, in two parts each, whose gradients are equal and go to the first

    constexpr Features features() const { return {.row = 2, .column = 2, .token = NH}; }

    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return a + ((pair.row(0) - pair.column(0)) + (pair.row(1) - pair.column(1)));
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.row(0, dz);
        to.column(0, -dz);
        return dz;
    }

    // ---- the gates: their logits are kept

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& to) const {
        token_linear_forward(device, to.token, gate.of(in, weights));
        running_sum(device, ForgetForward<X>{to.token, to.row, to.column, NH, in.T}, in.B, NH, in.T);
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>& from,
                             ScoreInputGradients<X>& g) const {
        running_sum(device, ForgetBackward<X>{g.of.token, from.token, g.of.row, g.of.column, NH, in.T}, in.B, NH, in.T);
        gate.backward(device, g, g.of.token, in, weights);
    }

    // ---- the paper's formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        std::vector<X> log_f(size_t(in.B) * in.T * NH);
        for (size_t t = 0; t < size_t(in.B) * in.T; t++)
            for (int h = 0; h < NH; h++) {
                const X u = dot(weights + gate.weight.offset + size_t(h) * C, in.x + t * C, C) + weights[gate.bias.offset + h];
                log_f[t * NH + h] = std::log(1 / (1 + std::exp(-u)));
            }
        auto modify = [&](int b, int h, int i, int j, X a) {
            for (int l = j + 1; l <= i; l++) a += log_f[in.token(b, l) * NH + h];
            return a;
        };
        dense_softmax(in, out, modify, [&](int, int i, int j) { return j <= i && (j < leading || j >= i - left); });
    }
};
