// Descriptions (operation.h) of the operations of model/, for every device.
#pragma once
#include <cmath>

#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/operations/linear.cuh"
#include "model/operations/qk_rope.cuh"
#include "model/operations/residual.cuh"
#include "model/operations/rmsnorm.cuh"
#include "model/operations/swiglu.cuh"
#include "tests/operation.h"

// ---- embedding, linear layers, SwiGLU, cross-entropy

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
    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        On<Device, X> out(buffer<Wide<X>>(tokens.size() * C)), table(in[0]), d(dout);
        On<Device, int32_t> at(tokens);
        embedding_forward(device, out.data(), at.data(), table.data(), rows(), C);
        if (dout.empty()) return {out.numbers()};
        std::vector<int32_t> sorted(tokens.size());
        std::vector<TokenRun> runs(RowsByToken::capacity_for(rows(), V));
        sort_by_token(tokens.data(), rows(), V, sorted.data(), runs.data());
        On<Device, Wide<X>> dtable(buffer<Wide<X>>(in[0].size(), Write::add));
        On<Device, int32_t> sorted_rows(sorted);
        On<Device, TokenRun> token_runs(runs);
        embedding_backward(device, dtable.data(), d.data(), {sorted_rows.data(), token_runs.data(), int(runs.size())}, C);
        return {out.numbers(), contribution(dtable.numbers(), Write::add)};
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
    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        using W = Wide<X>;
        On<Device, X> out(buffer<W>(size_t(rows) * OUT)), inp(in[0]), weight(in[1]), added(in.back()), d(dout);
        linear_forward(device, out.data(), inp.data(), weight.data(), bias ? added.data() : nullptr, rows, IN, OUT);
        if (dout.empty()) return {out.numbers()};
        On<Device, X> dinp(buffer<W>(in[0].size(), write));
        On<Device, W> dweight(buffer<W>(in[1].size(), write)), dbias(buffer<W>(OUT, write));
        linear_backward_input(device, dinp.data(), d.data(), weight.data(), rows, IN, OUT, write);
        linear_backward_weight(device, dweight.data(), bias ? dbias.data() : nullptr, d.data(), inp.data(), rows, IN, OUT, write);
        Arrays<W> all = {out.numbers(), contribution(dinp.numbers(), write), contribution(dweight.numbers(), write)};
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
    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        On<Device, X> out(buffer<Wide<X>>(size_t(rows) * F)), dgate_up(buffer<Wide<X>>(in[0].size())), gate_up(in[0]), d(dout);
        swiglu_forward(device, out.data(), gate_up.data(), rows, F);
        if (dout.empty()) return {out.numbers()};
        swiglu_backward(device, dgate_up.data(), d.data(), gate_up.data(), rows, F);
        return {out.numbers(), dgate_up.numbers()};
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
    const Arrays<float> is = op.run<float>(device, {gate_up}, std::vector<float>(8, 1));
    CHECK(difference(is[0], out, Tolerance{1e-6, 0}) == "");
    CHECK(difference(is[1], dgate_up, Tolerance{1e-6, 0}) == "");
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
    template <class X, class Device>
    Result<Wide<X>> result(Device device, const std::vector<Wide<X>>& z, Wide<X> dloss) const {
        On<Device, Wide<X>> losses(buffer<Wide<X>>(targets.size()));
        On<Device, X> logits(z);
        On<Device, int32_t> at(targets);
        cross_entropy(device, losses.data(), logits.data(), at.data(), rows(), V, dloss);
        return {losses.numbers(), logits.numbers()};
    }
    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        Wide<X> total = 0;
        for (Wide<X> loss : result<X>(device, in[0], 0).losses) total += loss;
        Arrays<Wide<X>> all(1, {total});
        if (!dout.empty()) all.push_back(result<X>(device, in[0], dout[0]).logits);
        return all;
    }
};

/// An ignored row has no loss and no gradient; without dloss the other logits stay.
template <class X, class Device>
void check_ignored_row(Device device) {
    const CrossEntropy op{{-1, 1}, 8};
    const std::vector<float> logits = {5, 6, 7, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6, 7, 8};
    const auto without = op.result<X>(device, logits, 0), with = op.result<X>(device, logits, 1);
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
    const auto result = op.result<float>(device, logits, 1);
    CHECK(difference(result.losses, std::vector<double>{0, std::log(3.0), 0}, Tolerance{0, 1e-3}) == "");
    std::vector<double> expected(24);
    expected[8] = expected[9] = 1 / 3.0, expected[10] = -2 / 3.0;
    CHECK(difference(result.logits, expected, rounding<float>(3)) == "");
}

// ---- RMSNorm alone and after a projection that is added to the residual, QK-norm with RoPE

inline constexpr double NORM_EPS = 1e-5;

inline std::vector<double> rmsnorm_formula(const double* x, const double* weight, int n) {
    double squares = 0;
    for (int c = 0; c < n; c++) squares += x[c] * x[c];
    std::vector<double> out;
    for (int c = 0; c < n; c++) out.push_back(x[c] / std::sqrt(squares / n + NORM_EPS) * weight[c]);
    return out;
}

struct RmsNorm {
    int rows, C;
    Write write_input, write_weight;
    static constexpr bool any_threads = false;   // of the weight's gradient, each thread sums its rows
    int length() const { return std::max(rows, C); }
    std::vector<ArrayOf> inputs() const { return {{"inp", size_t(rows) * C}, {"weight", size_t(C), 1.0, true}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++) out = joined(out, rmsnorm_formula(&in[0][row * C], in[1].data(), C));
        return out;
    }
    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        using W = Wide<X>;
        On<Device, X> out(buffer<W>(in[0].size())), inp(in[0]), weight(in[1]), d(dout), dinp(buffer<W>(in[0].size(), write_input));
        On<Device, W> rstd(buffer<W>(rows)), dweight(buffer<W>(C, write_weight));
        rmsnorm_forward(device, out.data(), rstd.data(), inp.data(), weight.data(), rows, C, NORM_EPS);
        if (dout.empty()) return {out.numbers()};
        rmsnorm_backward(device, dinp.data(), dweight.data(), d.data(), inp.data(), weight.data(), rstd.data(), rows, C,
                         write_input, write_weight);
        return {out.numbers(), contribution(dinp.numbers(), write_input), contribution(dweight.numbers(), write_weight)};
    }
};

/// A row of zeros has zeros and a finite gradient.
template <class Device>
void check_row_of_zeros(Device device) {
    const RmsNorm op{1, 8, Write::overwrite, Write::overwrite};
    const std::vector<float> zeros(8), ones(8, 1);
    const Arrays<float> is = op.run<float>(device, {zeros, ones}, ones);
    CHECK(bit_difference(is[0], zeros) == "");
    CHECK(difference(is[1], std::vector<double>(8, 1 / std::sqrt(NORM_EPS)), rounding<float>(1)) == "");
    CHECK(bit_difference(is[2], zeros) == "");
}

/// X: of the ignored row; large numbers are float32.
template <class X, class Device>
void check_special_numbers(Device device) {
    check_large_gates(device);
    check_ignored_row<X>(device);
    check_large_logits(device);
    check_row_of_zeros(device);
}

/// Both outputs count: the sum goes on along the residual stream, so its gradient is what rmsnorm_backward() adds to. The weights
/// are a 16th of the random numbers: in the gradient of inp they multiply C times what the sum's gradient was rounded by.
struct Residual {
    int rows, IN, C;
    static constexpr bool any_threads = false;
    static constexpr double SCALE = 0.0625;
    int length() const { return std::max({rows, IN, C}); }
    std::vector<ArrayOf> inputs() const {
        return {{"residual", size_t(rows) * C},
                {"inp", size_t(rows) * IN},
                {"weight", size_t(C) * IN, 0, true},
                {"norm weight", size_t(C), 1.0, true}};
    }
    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> sum = in[0];
        for (size_t n = 0; n < sum.size(); n++)
            for (int i = 0; i < IN; i++) sum[n] += in[1][n / C * IN + i] * SCALE * in[2][n % C * IN + i];
        return joined(sum, RmsNorm{rows, C, {}, {}}.formula({sum, in[3]}));
    }

    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        using W = Wide<X>;
        On<Device, X> residual(in[0]), inp(in[1]), weight(scaled(in[2])), norm_weight(in[3]);
        On<Device, X> sum(buffer<W>(in[0].size())), out(buffer<W>(in[0].size()));
        On<Device, W> rstd(buffer<W>(rows));
        residual_forward(device, sum.data(), out.data(), rstd.data(), residual.data(), inp.data(), weight.data(), norm_weight.data(),
                         rows, IN, C, NORM_EPS);
        const std::vector<W> outputs = joined(sum.numbers(), out.numbers());
        if (dout.empty()) return {outputs};
        const auto half = dout.begin() + rows * C;
        On<Device, X> dsum(std::vector<W>(dout.begin(), half)), d(std::vector<W>(half, dout.end()));
        On<Device, X> dinp(buffer<W>(in[1].size()));
        On<Device, W> dweight(buffer<W>(in[2].size())), dnorm_weight(buffer<W>(C));
        W* const no_bias = nullptr;
        rmsnorm_backward(device, dsum.data(), dnorm_weight.data(), d.data(), sum.data(), norm_weight.data(), rstd.data(), rows, C,
                         Write::add, Write::overwrite);
        linear_backward_input(device, dinp.data(), dsum.data(), weight.data(), rows, IN, C, Write::overwrite);
        linear_backward_weight(device, dweight.data(), no_bias, dsum.data(), inp.data(), rows, IN, C, Write::overwrite);
        return {outputs, dsum.numbers(), dinp.numbers(), scaled(dweight.numbers()), dnorm_weight.numbers()};
    }

private:
    template <class W>
    static std::vector<W> scaled(std::vector<W> numbers) {
        for (W& number : numbers) number *= W(SCALE);
        return numbers;
    }
};

/// Every frequency divided by 4, and an attention factor, which no other type than yarn has: the formula is simple so.
inline constexpr RopeScaling SCALED{.type = RopeScaling::Type::linear, .factor = 4, .attention_factor = 1.25};

/// Outputs: queries and keys before rotation (with `pre`), then rotated (with `rotated`).
struct QkNormRope {
    int B, T, NH, NKV, HS;
    bool weights;                     // of QK-norm; without them only RoPE is left
    bool pre = true, rotated = true;
    Write write = Write::overwrite;
    double theta = 1e4;
    int document = 0;   // tokens after which positions count anew; 0: never
    RopeScaling scaling = {};   // of all frequencies alike
    bool any_threads = !weights;
    int heads() const { return NH + NKV; }
    int position(int row) const { return document ? row % T % document : row % T; }
    std::vector<int32_t> origins() const {
        std::vector<int32_t> all;
        for (int row = 0; row < B * T; row++) all.push_back(row % T - position(row));
        return all;
    }
    int length() const { return std::max(B * T * NH, HS); }
    size_t output_size() const { return size_t(B) * T * heads() * HS; }
    std::vector<ArrayOf> inputs() const {
        std::vector<ArrayOf> all = {{"qkv", size_t(B) * T * (heads() + NKV) * HS}};
        if (weights) all.push_back({"q_norm", size_t(HS), 1.0, true}), all.push_back({"k_norm", size_t(HS), 1.0, true});
        return all;
    }

    std::vector<double> turned(const std::vector<double>& x, int t) const {
        std::vector<double> out(HS);
        for (int d = 0; d < HS; d++) {
            const int half = HS / 2;
            const double angle = t / scaling.factor / std::pow(theta, 2.0 * (d % half) / HS);
            out[d] = x[d] * std::cos(angle) + (d < half ? -x[d + half] : x[d - half]) * std::sin(angle);
            out[d] *= scaling.attention_factor;
        }
        return out;
    }
    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> before, after;
        for (int row = 0; row < B * T; row++)
            for (int h = 0; h < heads(); h++) {
                const double* x = &in[0][(row * (heads() + NKV) + h) * HS];
                const auto normed = weights ? rmsnorm_formula(x, in[h < NH ? 1 : 2].data(), HS) : std::vector<double>(x, x + HS);
                if (pre) before = joined(before, normed);
                if (rotated) after = joined(after, turned(normed, position(row)));
            }
        return joined(before, after);
    }

    template <class X, class Device>
    Arrays<Wide<X>> run(Device device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const {
        using W = Wide<X>;
        On<Device, X> qkv(in[0]), q_weight(in[weights ? 1 : 0]), k_weight(in[weights ? 2 : 0]);
        On<Device, X> before(buffer<W>(output_size())), after(buffer<W>(output_size()));
        On<Device, W> cosine(buffer<W>(size_t(T) * HS / 2)), sine(buffer<W>(size_t(T) * HS / 2)), rstd(buffer<W>(size_t(B) * T * heads()));
        On<Device, int32_t> starts(origins());
        const QkShape<X> shape{B, T, NH, NKV, HS, weights ? q_weight.data() : nullptr, weights ? k_weight.data() : nullptr,
                               {cosine.data(), sine.data()}, document ? starts.data() : nullptr};
        rope_table(device, cosine.data(), sine.data(), T, {HS, theta, scaling});
        qk_norm_rope_forward(device, rotated ? after.data() : nullptr, pre ? before.data() : nullptr, rstd.data(), qkv.data(), shape,
                             NORM_EPS);
        const std::vector<W> none, outputs = joined(pre ? before.numbers() : none, rotated ? after.numbers() : none);
        if (dout.empty()) return {outputs};
        const auto end_of_pre = dout.begin() + (pre ? output_size() : 0);
        On<Device, W> dpre(std::vector<W>(dout.begin(), end_of_pre));
        On<Device, W> dqk(rotated ? std::vector<W>(end_of_pre, dout.end()) : std::vector<W>(output_size()));
        On<Device, X> dqkv(buffer<W>(in[0].size()));
        On<Device, W> dq_weight(buffer<W>(HS, write)), dk_weight(buffer<W>(HS, write));
        qk_norm_rope_backward(device, dqkv.data(), dq_weight.data(), dk_weight.data(), dqk.data(), pre ? dpre.data() : nullptr,
                              qkv.data(), rstd.data(), shape, write);
        std::vector<W> of_qkv = dqkv.numbers();
        for (size_t n = 0; n < of_qkv.size(); n++) {   // the v part is not touched: attention writes it
            const bool of_v = int(n / HS % (heads() + NKV)) >= heads();
            if (of_v) of_qkv[n] = std::isnan(of_qkv[n]) ? W(0) : W(INFINITY);
        }
        if (!weights) return {outputs, of_qkv};
        return {outputs, of_qkv, contribution(dq_weight.numbers(), write), contribution(dk_weight.numbers(), write)};
    }
};
