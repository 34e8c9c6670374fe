// Descriptions (operation.h) of the operations of model/, for every device. Norms and RoPE are in norms.h.
#pragma once
#include <cmath>

#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/operations/linear.cuh"
#include "model/operations/swiglu.cuh"
#include "tests/operation.h"

struct Embedding {
    std::vector<int32_t> tokens;
    int V, C;
    static constexpr bool any_threads = true;
    int rows() const { return int(tokens.size()); }
    int length() const { return rows(); }
    std::vector<ArrayOf> inputs() const { return {{"table", size_t(V) * C, 0, true}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int32_t token : tokens)
            for (int c = 0; c < C; c++) out.push_back(in[0][token * C + c]);
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        On<Device, X> out(buffer<Wide<X>>(tokens.size() * C, Write::overwrite)), table(in[0]);
        On<Device, int32_t> at(tokens);
        embedding_forward(device, out.data(), at.data(), table.data(), rows(), C);
        return out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        std::vector<int32_t> sorted(tokens.size());
        std::vector<TokenRun> runs(RowsByToken::capacity_for(rows(), V));
        sort_by_token(tokens.data(), rows(), V, sorted.data(), runs.data());
        On<Device, Wide<X>> dtable(buffer<Wide<X>>(in[0].size(), Write::add));
        On<Device, X> d(dout);
        On<Device, int32_t> sorted_rows(sorted);
        On<Device, TokenRun> token_runs(runs);
        embedding_backward(device, dtable.data(), d.data(), {sorted_rows.data(), token_runs.data(), int(runs.size())}, C);
        return {contribution(dtable.numbers(), Write::add)};
    }
};

struct Linear {
    int rows, IN, OUT;
    bool bias;
    Write write;
    static constexpr bool any_threads = false;   // the BLAS library may split sums by threads
    int length() const { return std::max({rows, IN, OUT}); }
    std::vector<ArrayOf> inputs() const {
        std::vector<ArrayOf> all = {{"inp", size_t(rows) * IN}, {"weight", size_t(OUT) * IN, 0, true}};
        if (bias) all.push_back({"bias", size_t(OUT), 0, true});
        return all;
    }
    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++)
            for (int o = 0; o < OUT; o++) {
                out.push_back(bias ? in[2][o] : 0);
                for (int i = 0; i < IN; i++) out.back() += in[0][row * IN + i] * in[1][o * IN + i];
            }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        On<Device, X> out(buffer<Wide<X>>(size_t(rows) * OUT, Write::overwrite)), inp(in[0]), weight(in[1]), added(in.back());
        linear_forward(device, out.data(), inp.data(), weight.data(), bias ? added.data() : nullptr, rows, IN, OUT);
        return out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        using W = Wide<X>;
        On<Device, X> dinp(buffer<W>(in[0].size(), write)), inp(in[0]), weight(in[1]), d(dout);
        On<Device, W> dweight(buffer<W>(in[1].size(), write)), dbias(buffer<W>(OUT, write));
        linear_backward_input(device, dinp.data(), d.data(), weight.data(), rows, IN, OUT, write);
        linear_backward_weight(device, dweight.data(), bias ? dbias.data() : nullptr, d.data(), inp.data(), rows, IN, OUT, write);
        Arrays<W> all = {contribution(dinp.numbers(), write), contribution(dweight.numbers(), write)};
        if (bias) all.push_back(contribution(dbias.numbers(), write));
        return all;
    }
};

struct SwiGlu {
    int rows, F;
    static constexpr bool any_threads = true;
    int length() const { return 1; }
    std::vector<ArrayOf> inputs() const { return {{"gate_up", size_t(rows) * 2 * F}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++)
            for (int f = 0; f < F; f++) {
                const double gate = in[0][row * 2 * F + f], up = in[0][row * 2 * F + F + f];
                out.push_back(gate / (1 + std::exp(-gate)) * up);
            }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        On<Device, X> out(buffer<Wide<X>>(size_t(rows) * F, Write::overwrite)), gate_up(in[0]);
        swiglu_forward(device, out.data(), gate_up.data(), rows, F);
        return out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        On<Device, X> dgate_up(buffer<Wide<X>>(in[0].size(), Write::overwrite)), gate_up(in[0]), d(dout);
        swiglu_backward(device, dgate_up.data(), d.data(), gate_up.data(), rows, F);
        return {dgate_up.numbers()};
    }
};

/// Large gates neither overflow nor turn into NaN.
template <class Device>
void check_large_gates(Device device) {
    const SwiGlu op{1, 8};
    const std::vector<float> gate_up = {1e4f, -1e4f, 90, -90, 88, -88, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2};
    const float s = 1 / (1 + std::exp(-1.0f)), slope = s + s * (1 - s);
    const std::vector<float> out = {2e4f, 0, 180, 0, 176, 0, 0, 2 * s};
    const std::vector<float> dgate_up = {2, 0, 2, 0, 2, 0, 1, 2 * slope, 1e4f, 0, 90, 0, 88, 0, 0, s};
    CHECK(difference(op.forward<float>({gate_up}, device), out, Tolerance{1e-6, 0}) == "");
    CHECK(difference(op.backward<float>({gate_up}, std::vector<float>(8, 1), device)[0], dgate_up, Tolerance{1e-6, 0}) == "");
}

/// The output is the sum of the losses: all rows share one `dloss`.
struct CrossEntropy {
    std::vector<int32_t> targets;
    int V;
    static constexpr bool any_threads = true;
    int rows() const { return int(targets.size()); }
    int length() const { return rows() + V; }
    std::vector<ArrayOf> inputs() const { return {{"logits", targets.size() * V}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        double total = 0;
        for (int row = 0; row < rows(); row++) {
            double sum = 0;
            for (int v = 0; v < V; v++) sum += std::exp(in[0][row * V + v]);
            if (targets[row] >= 0) total += std::log(sum) - in[0][row * V + targets[row]];
        }
        return {total};
    }

    template <class W>
    struct Result {
        std::vector<W> losses, logits;
    };
    template <class X, class Device = CPU>
    Result<Wide<X>> run(const std::vector<Wide<X>>& z, Wide<X> dloss, Device device = {}) const {
        On<Device, Wide<X>> losses(buffer<Wide<X>>(targets.size(), Write::overwrite));
        On<Device, X> logits(z);
        On<Device, int32_t> at(targets);
        cross_entropy(device, losses.data(), logits.data(), at.data(), rows(), V, dloss);
        return {losses.numbers(), logits.numbers()};
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        Wide<X> total = 0;
        for (Wide<X> loss : run<X>(in[0], 0, device).losses) total += loss;
        return {total};
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        return {run<X>(in[0], dout[0], device).logits};
    }
};

/// An ignored row has no loss and no gradient; without dloss the other logits stay.
template <class X, class Device>
void check_ignored_row(Device device) {
    const CrossEntropy op{{-1, 1}, 8};
    const std::vector<float> logits = {5, 6, 7, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8};
    const auto without = op.run<X>(logits, 0, device), with = op.run<X>(logits, 1, device);
    CHECK(without.losses[0] == 0);
    CHECK(bit_difference(without.losses, with.losses) == "");
    for (int v = 0; v < 8; v++) {
        CHECK(without.logits[8 + v] == logits[8 + v]);
        CHECK(without.logits[v] == 0);
        CHECK(with.logits[v] == 0);
    }
}

/// Large logits do not overflow, and the gradient of a row sums to zero.
template <class Device>
void check_large_logits(Device device) {
    const CrossEntropy op{{0, 2, 1}, 8};
    const std::vector<float> logits = {3e4f,   -3e4f, 0, -1e30f, -3e4f, 0, 0, 0,   //
                                       1e4f,   1e4f,  1e4f, 0, 0, 0, 0, 0,         //
                                       -1e30f, 1e30f, 0, 0, 0, 0, 0, -INFINITY};
    const auto result = op.run<float>(logits, 1, device);
    CHECK(difference(result.losses, std::vector<double>{0, std::log(3.0), 0}, Tolerance{0, 1e-3}) == "");
    std::vector<double> expected(24);
    expected[8] = expected[9] = 1 / 3.0, expected[10] = -2 / 3.0;
    CHECK(difference(result.logits, expected, rounding<float>(3)) == "");
}
