// Forgetting Transformer, FoX (Lin et al. 2025, arXiv 2503.02130; code zhixuan-lin/forgetting-transformer): each token says how much
// every head forgets of what came before it.
//     z_ij = q_i.k_j / sqrt(HS) + sum_{l = j+1..i} log f_l,   j <= i          f_t = sigmoid(w_f x_t + b_f) in (0, 1)^NH
// with x the block's normed input. With c_t = sum_{l <= t} log f_l, z_ij = a_ij + c_i - c_j: a feature of the row and one of the key.
// How it is read here, and what is left out:
// - No RoPE, as the paper and its released configurations have it for FoX (LLaMA) and FoX (Pro): the gates tell near from far.
//   --forgetting-rope 1 keeps RoPE, which the code offers as an option.
// - b_f starts at 0, w_f as other projections, as in the code: a gate of 1/2, which forgets fast until training opens it. The paper's
//   initialisation by a shortest and a longest time of decay is that of its ablations whose gates do not depend on the data.
// - Of FoX (Pro) the output gate, the output norm and the shift of keys and values by a token are left out; QK-norm is the model's.
// - The released code has as many key heads as query heads; with fewer, every query head has a gate of its own all the same.
// - Skipping what has been forgotten (arXiv 2504.06949) is left out: every pair is computed.
// Digits: c grows with the text (to -22713 at token 32768 with the gates of the start, where float32 knows 1/512), but only small
// differences matter. So sums are in double, and c is handed on in two parts, c = high + low: high rounded to float32, low the rest.
// The difference of two such high parts is off by half a unit of its own last place, not of theirs: near pairs lose nothing.
// In the gradient of c_t both sides count, sum_j dz_tj - sum_i dz_it. The first is 0 but for rounding, and that rounding is in the
// second, too: only together do the pairs between two tokens after l cancel in the sum over all t >= l, which is d log f_l.
#pragma once
#include "attention/gates/token_linear.cuh"
#include "attention/kernel/layer.h"
#include "attention/scores/running_sum.cuh"

/// From the gates' logits u (B, T, NH) to c as features of rows and columns.
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

/// From the gradients of c to du = (1 - f) d log f. Element n belongs to token T - 1 - n.
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

struct forgetting : Policy {
    static constexpr const char* name = "forgetting";
    static constexpr Traits traits{.reads_x = true};
    bool with_rope;
    Slot w_f, b_f;   // (NH, C), (NH)
    int NH, C;

    forgetting(const Config& config, int layer)
        : Policy(config, layer), with_rope(config.setting("forgetting_rope") != 0), NH(config.NH), C(config.C) {}

    static std::vector<Setting> settings() {
        return {{"--forgetting-rope", "forgetting_rope", 0, 0, 1, WHOLE, "RoPE on queries and keys: 1 on, 0 off"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        w_f = list.add(prefix + "forgetting.w_f", {NH, C}, normal(0.02), Decay::yes);
        b_f = list.add(prefix + "forgetting.b_f", {NH}, zeros(), Decay::no);
    }

    Form form() const { return {.rotates = with_rope}; }

    // ---- score: c of the row and of the key, in two parts each; the gradients of both parts are the same, and go to the first

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
        token_linear_forward(device, to.token, gate_of(in, weights));
        running_sum(device, ForgetForward<X>{to.token, to.row, to.column, NH, in.T}, in.B, NH, in.T);
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>& from,
                             ScoreInputGradients<X>& g) const {
        running_sum(device, ForgetBackward<X>{g.of.token, from.token, g.of.row, g.of.column, NH, in.T}, in.B, NH, in.T);
        token_linear_backward(device, g.dx, g.dweights + w_f.offset, g.dweights + b_f.offset, g.of.token, gate_of(in, weights));
    }

    // ---- the paper's formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        std::vector<X> log_f(size_t(in.B) * in.T * NH);
        for (size_t t = 0; t < size_t(in.B) * in.T; t++)
            for (int h = 0; h < NH; h++) {
                const X u = dot(weights + w_f.offset + size_t(h) * C, in.x + t * C, C) + weights[b_f.offset + h];
                log_f[t * NH + h] = std::log(1 / (1 + std::exp(-u)));
            }
        auto modify = [&](int b, int h, int i, int j, X a) {
            for (int l = j + 1; l <= i; l++) a += log_f[in.token(b, l) * NH + h];
            return a;
        };
        dense_softmax(in, out, modify, [](int, int i, int j) { return j <= i; });
    }

private:
    template <class X>
    TokenLinear<X> gate_of(const LayerInputs<X>& in, const X* weights) const {
        return {in.x, weights + w_f.offset, weights + b_f.offset, in.B * in.T, C, NH};
    }
};
