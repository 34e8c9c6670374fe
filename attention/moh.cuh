// Mixture-of-Head attention (Jin et al. 2024, arXiv 2410.11842, equations 4 to 8): some heads are always on, each token chooses K
// of the others, and a weight scales each head's output.
//     O'_th = g_th O_th;  p_s = softmax(W_s x_t), p_r = softmax(W_r x_t), (a_s, a_r) = softmax(W_h x_t), x the block's normed input
//     g_th = 2 a_s NS p_s,h                                  for the NS shared heads, the first ones
//     g_th = 2 a_r K p_r,h / (sum of the chosen p_r)         for the K routed heads with the largest p_r, 0 for the others
//     loss += balance NR sum_h P_h f_h averaged over layers,   P_h = mean_t p_r,h,   f_h = the share of tokens that choose h, a
//                                                            constant in the gradient
// This is what the released code computes: gates with a mean of 1. The paper prints the same without the factors 2, NS, K and NR
// and without the division, so that the gates of all heads sum to at most 1 (--moh-printed 1). Assumptions: P and f are over the
// tokens of one sequence, so that the loss does not depend on how a step is split into micro-batches; of two equal p_r the earlier
// head wins. The choice has no gradient. The authors' form without a router for already trained models (a head's score is the norm
// of its query) is left out. All keys and values are needed, and no time is saved: with half of the heads on, every head has rows
// in every tile of 64 tokens.
#pragma once
#include <algorithm>

#include "attention/gates/token_linear.cuh"
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"

/// The gates (NS + NR) of one token from its logits u (NS + NR + 2), and the gradients. W is float or double.
struct MohGates {
    int shared, routed, active;   // NS, NR, K
    bool printed;
    float balance;

    constexpr int heads() const { return shared + routed; }
    constexpr int numbers() const { return shared + routed + 2; }

    /// The largest of u (n), and the sum of exp(u - largest).
    template <class W>
    struct Softmax {
        W largest, sum = 0;
        constexpr Softmax(const W* u, int n) : largest(u[0]) {
            for (int i = 1; i < n; i++) largest = u[i] > largest ? u[i] : largest;
            for (int i = 0; i < n; i++) sum += exp_of(u[i] - largest);
        }
        constexpr W share(W u) const { return exp_of(u - largest) / sum; }
    };

    /// Whether routed head n is among the K largest.
    template <class W>
    constexpr bool chosen(const W* routed_u, int n) const {
        int rank = 0;
        for (int other = 0; other < routed; other++)
            rank += routed_u[other] > routed_u[n] || (routed_u[other] == routed_u[n] && other < n);
        return rank < active;
    }

    /// The softmax over all routed heads, whose shares the printed form uses, and the sum of the chosen heads' exponentials, which
    /// normalises the released form.
    template <class W>
    struct Routing {
        Softmax<W> all;
        W chosen_sum = 0;
        constexpr Routing(const MohGates& gates, const W* u) : all(u, gates.routed) {
            for (int n = 0; n < gates.routed; n++)
                if (gates.chosen(u, n)) chosen_sum += exp_of(u[n] - all.largest);
        }
        constexpr W weight(const MohGates& gates, W u) const {
            return exp_of(u - all.largest) / (gates.printed ? all.sum : chosen_sum);
        }
    };

    /// Factor of the gates of n heads besides a and their weight.
    template <class W>
    constexpr W factor(int n) const {
        return printed ? W(1) : W(2 * n);
    }

    template <class W>
    constexpr void forward(W* gates, const W* u) const {
        const W *of_routed = u + shared, *of_kinds = u + heads();
        const Softmax<W> kinds(of_kinds, 2);
        const Routing<W> routing(*this, of_routed);
        for (int h = 0; h < shared; h++)
            gates[h] = kinds.share(of_kinds[0]) * factor<W>(shared) * Softmax<W>(u, shared).share(u[h]);
        for (int n = 0; n < routed; n++)
            gates[shared + n] =
                chosen(of_routed, n) ? kinds.share(of_kinds[1]) * factor<W>(active) * routing.weight(*this, of_routed[n]) : W(0);
    }

    /// du (NS + NR + 2) from dgates; `shares` (NS + NR) has f_h, and `dloss` weighs the balance loss of one token. With factor F:
    ///     shared:  dp = a_s F dg, du = p (dp - <p, dp>)
    ///     routed:  the same with w for p, dg of chosen heads only, and du of those only where w is a softmax over them
    ///     balance: du = balance NR dloss p (f - <f, p>)
    template <class W>
    constexpr void backward(W* du, const W* dgates, const W* u, const W* shares, W dloss) const {
        const W *of_routed = u + shared, *of_kinds = u + heads();
        const Softmax<W> kinds(of_kinds, 2);
        const Routing<W> routing(*this, of_routed);
        const W a[2] = {kinds.share(of_kinds[0]), kinds.share(of_kinds[1])};
        W da[2] = {0, 0}, expected_share = 0;   // <f, p>
        for (int h = 0; h < shared; h++) da[0] += factor<W>(shared) * Softmax<W>(u, shared).share(u[h]) * dgates[h];
        for (int n = 0; n < routed; n++) {
            if (chosen(of_routed, n)) da[1] += factor<W>(active) * routing.weight(*this, of_routed[n]) * dgates[shared + n];
            expected_share += shares[shared + n] * routing.all.share(of_routed[n]);
        }
        for (int h = 0; h < shared; h++)
            du[h] = Softmax<W>(u, shared).share(u[h]) * a[0] * (factor<W>(shared) * dgates[h] - da[0]);
        for (int n = 0; n < routed; n++) {
            const bool on = chosen(of_routed, n);
            const W own = on ? factor<W>(active) * dgates[shared + n] : W(0);
            const W through_gate = on || printed ? routing.weight(*this, of_routed[n]) * a[1] * (own - da[1]) : W(0);
            const W balanced = dloss * loss_factor<W>() * (shares[shared + n] - expected_share);
            du[shared + n] = through_gate + routing.all.share(of_routed[n]) * balanced;
        }
        const W mean = a[0] * da[0] + a[1] * da[1];
        for (int kind = 0; kind < 2; kind++) du[heads() + kind] = a[kind] * (da[kind] - mean);
    }

    template <class W>
    constexpr W loss_factor() const {
        return W(balance) * (printed ? W(1) : W(routed));
    }
};

/// Writes f_h to shares (B, NH), and each head's term of the balance loss to losses (B, NH). Teams are (b, h).
template <class W>
struct MohUse {
    using Number = W;
    MohGates moh;
    W *shares, *losses;
    const W* u;   // (B, T, NS + NR + 2)
    int T;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int b = int(n) / moh.heads(), routed = int(n) % moh.heads() - moh.shared;
        W chosen = 0, probability = 0;
        for (int t = team.first(); t < T && routed >= 0; t += team.step()) {
            const W* of_routed = u + (size_t(b) * T + t) * moh.numbers() + moh.shared;
            chosen += moh.chosen(of_routed, routed);
            probability += MohGates::Softmax<W>(of_routed, moh.routed).share(of_routed[routed]);
        }
        chosen = team.sum(chosen), probability = team.sum(probability);
        if (team.first() != 0) return;
        shares[n] = chosen / W(T);
        losses[n] = moh.loss_factor<W>() * probability * chosen / W(T);
    }
};

/// The gates of each token.
template <class W>
struct MohForward {
    MohGates moh;
    W* gates;
    const W* u;
    constexpr void operator()(unsigned t, int) const { moh.forward(gates + size_t(t) * moh.heads(), u + size_t(t) * moh.numbers()); }
};
template <class W>
struct MohBackward {
    MohGates moh;
    W* du;
    const W *dgates, *u, *shares;   // shares (B, NH)
    int T;
    W dloss;
    constexpr void operator()(unsigned t, int) const {
        const size_t heads = moh.heads(), numbers = moh.numbers();
        moh.backward(du + t * numbers, dgates + t * heads, u + t * numbers, shares + t / T * heads, dloss);
    }
};

struct moh : Policy {
    static constexpr const char* name = "moh";
    static constexpr Traits traits{.reads_x = true, .has_auxiliary_loss = true, .gates_output = true, .tokens_choose = true};
    int NH, C;
    MohGates gates;
    InputLinear router;   // w_s (NS, C), w_r (NR, C) and w_h (2, C), contiguous

    moh(const Config& config, int layer) : Policy(config, layer), NH(config.NH), C(config.C) {
        const int shared = int(config.setting("moh_shared")), active = int(config.setting("moh_active"));
        gates.shared = shared < 0 ? NH / 4 : shared;
        gates.routed = NH - gates.shared;
        gates.active = active == 0 ? (gates.routed + 1) / 2 : active;
        gates.printed = config.setting("moh_printed") != 0;
        gates.balance = float(config.setting("moh_balance") / config.L);
        if (gates.routed < 1)
            fail(Exit::usage, "--moh-shared is ", shared, "; with ", NH, " heads it must be from 0 to ", NH - 1, ", or -1");
        if (gates.active > gates.routed)
            fail(Exit::usage, "--moh-active is ", active, "; with ", gates.routed, " routed heads it must be from 1 to ",
                 gates.routed, ", or 0");
    }

    static std::vector<Setting> settings() {
        return {{"--moh-shared", "moh_shared", -1, -1, 1e6, WHOLE, "shared heads, which are always on; -1: a quarter of the heads"},
                {"--moh-active", "moh_active", 0, 0, 1e6, WHOLE, "routed heads per token; 0: half of the routed heads"},
                {"--moh-balance", "moh_balance", 0.01, 0, 1e6, REAL, "weight of the balance loss"},
                {"--moh-printed", "moh_printed", 0, 0, 1, WHOLE,
                 "form of the gates: 1 as printed in the paper, 0 as in the released code"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        Slot first;
        if (gates.shared) first = list.add(prefix + "moh.w_s", {gates.shared, C}, normal(0.02), Decay::yes);
        const Slot routed = list.add(prefix + "moh.w_r", {gates.routed, C}, normal(0.02), Decay::yes);
        router = {first ? first : routed, {}, NH + 2};
        list.add(prefix + "moh.w_h", {2, C}, normal(0.02), Decay::yes);
    }

    // ---- the router, and the gates

    /// u (B, T, NH + 2), then f (B, NH), which uses NH numbers per sequence; features are counted per token.
    constexpr Features features() const { return {.token = 2 * NH + 2}; }

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& to) const {
        token_linear_forward(device, to.token, router.of(in, weights));
        each_element(device, size_t(in.B) * in.T, 1, MohForward<Wide<X>>{gates, to.gate, to.token});
        each_team<8>(device, size_t(in.B) * NH, MohUse<Wide<X>>{gates, shares_in(to.token, in), to.auxiliary, to.token, in.T});
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>& from,
                             ScoreInputGradients<X>& g) const {
        each_element(device, size_t(in.B) * in.T, 1,
                     MohBackward<Wide<X>>{gates, g.of.token, g.of.gate, from.token, shares_in(from.token, in), in.T, g.dloss});
        router.backward(device, g, g.of.token, in, weights);
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        dense_softmax(in, out, [](int, int i, int j) { return j <= i; });
        const int NS = gates.shared, NR = gates.routed, K = gates.active;
        auto softmax = [&](const X* x, int first, int n) {
            std::vector<X> p(n);
            X sum = 0;
            for (int i = 0; i < n; i++) sum += p[i] = std::exp(dot(weights + router.weight.offset + size_t(first + i) * C, x, C));
            for (X& each : p) each /= sum;
            return p;
        };
        for (size_t t = 0; t < size_t(in.B) * in.T; t++) {
            const X* x = in.x + t * C;
            const std::vector<X> p_s = softmax(x, 0, NS), p_r = softmax(x, NS, NR), a = softmax(x, NH, 2);
            std::vector<X> sorted = p_r;
            std::sort(sorted.rbegin(), sorted.rend());
            X on = 0;
            for (int n = 0; n < K; n++) on += sorted[n];
            for (int h = 0; h < NH; h++) {
                X g = h < NS ? a[0] * p_s[h] : p_r[h - NS] >= sorted[K - 1] ? a[1] * p_r[h - NS] : X(0);
                if (!gates.printed) g *= h < NS ? X(2 * NS) : X(2 * K) / on;
                for (int d = 0; d < in.HS; d++) out[(t * NH + h) * in.HS + d] *= g;
            }
        }
    }

private:
    template <class W>
    W* shares_in(W* token, const LayerShape& s) const {
        return token + size_t(s.B) * s.T * (NH + 2);
    }
};
