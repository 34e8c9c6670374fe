// Descriptions (operation.h) of RMSNorm alone and after a projection that is added to the residual, and of QK-norm with RoPE, for
// every device.
#pragma once
#include <cmath>

#include "model/operations/qk_rope.cuh"
#include "model/operations/residual.cuh"
#include "model/operations/rmsnorm.cuh"
#include "tests/operation.h"

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
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        On<Device, X> out(buffer<Wide<X>>(in[0].size(), Write::overwrite)), inp(in[0]), weight(in[1]);
        On<Device, Wide<X>> rstd(buffer<Wide<X>>(rows, Write::overwrite));
        rmsnorm_forward(device, out.data(), rstd.data(), inp.data(), weight.data(), rows, C, NORM_EPS);
        return out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        using W = Wide<X>;
        On<Device, X> out(buffer<W>(in[0].size(), Write::overwrite)), inp(in[0]), weight(in[1]), d(dout);
        On<Device, X> dinp(buffer<W>(in[0].size(), write_input));
        On<Device, W> rstd(buffer<W>(rows, Write::overwrite)), dweight(buffer<W>(C, write_weight));
        rmsnorm_forward(device, out.data(), rstd.data(), inp.data(), weight.data(), rows, C, NORM_EPS);
        rmsnorm_backward(device, dinp.data(), dweight.data(), d.data(), inp.data(), weight.data(), rstd.data(), rows, C,
                         write_input, write_weight);
        return {contribution(dinp.numbers(), write_input), contribution(dweight.numbers(), write_weight)};
    }
};

/// A row of zeros has zeros and a finite gradient.
template <class Device>
void check_row_of_zeros(Device device) {
    const RmsNorm op{1, 8, Write::overwrite, Write::overwrite};
    const std::vector<float> zeros(8), ones(8, 1);
    CHECK(bit_difference(op.forward<float>({zeros, ones}, device), zeros) == "");
    const Arrays<float> gradients = op.backward<float>({zeros, ones}, ones, device);
    CHECK(difference(gradients[0], std::vector<double>(8, 1 / std::sqrt(NORM_EPS)), rounding<float>(1)) == "");
    CHECK(bit_difference(gradients[1], zeros) == "");
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
    struct Run {
        using W = Wide<X>;
        On<Device, X> residual, inp, weight, norm_weight, sum, out;
        On<Device, W> rstd;

        Run(const Residual& op, const Arrays<W>& in, Device device)
            : residual(in[0]), inp(in[1]), weight(scaled(in[2])), norm_weight(in[3]),
              sum(buffer<W>(in[0].size(), Write::overwrite)), out(sum.numbers()), rstd(buffer<W>(op.rows, Write::overwrite)) {
            residual_forward(device, sum.data(), out.data(), rstd.data(), residual.data(), inp.data(), weight.data(),
                             norm_weight.data(), op.rows, op.IN, op.C, NORM_EPS);
        }
    };
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        const Run<X, Device> run(*this, in, device);
        return joined(run.sum.numbers(), run.out.numbers());
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        using W = Wide<X>;
        Run<X, Device> run(*this, in, device);
        const auto half = dout.begin() + rows * C;
        On<Device, X> dsum(std::vector<W>(dout.begin(), half)), d(std::vector<W>(half, dout.end()));
        On<Device, X> dinp(buffer<W>(in[1].size(), Write::overwrite));
        On<Device, W> dweight(buffer<W>(in[2].size(), Write::overwrite)), dnorm_weight(buffer<W>(C, Write::overwrite));
        W* const no_bias = nullptr;
        rmsnorm_backward(device, dsum.data(), dnorm_weight.data(), d.data(), run.sum.data(), run.norm_weight.data(),
                         run.rstd.data(), rows, C, Write::add, Write::overwrite);
        linear_backward_input(device, dinp.data(), dsum.data(), run.weight.data(), rows, IN, C, Write::overwrite);
        linear_backward_weight(device, dweight.data(), no_bias, dsum.data(), run.inp.data(), rows, IN, C, Write::overwrite);
        return {dsum.numbers(), dinp.numbers(), scaled(dweight.numbers()), dnorm_weight.numbers()};
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

/// The outputs are those that are asked for: queries and keys before rotation, and rotated.
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

    /// The arrays of a run, and the shape that points to them.
    template <class X, class Device>
    struct Run {
        using W = Wide<X>;
        On<Device, X> qkv, q_weight, k_weight, before, after;
        On<Device, W> cosine, sine, rstd;
        On<Device, int32_t> origins;
        QkShape<X> shape;

        Run(const QkNormRope& op, const Arrays<W>& in, Device device)
            : qkv(in[0]), q_weight(in[op.weights ? 1 : 0]), k_weight(in[op.weights ? 2 : 0]),
              before(buffer<W>(op.output_size(), Write::overwrite)), after(buffer<W>(op.output_size(), Write::overwrite)),
              cosine(buffer<W>(size_t(op.T) * op.HS / 2, Write::overwrite)), sine(cosine.numbers()),
              rstd(buffer<W>(size_t(op.B) * op.T * op.heads(), Write::overwrite)), origins(op.origins()),
              shape{op.B, op.T, op.NH, op.NKV, op.HS, op.weights ? q_weight.data() : nullptr,
                    op.weights ? k_weight.data() : nullptr, cosine.data(), sine.data(), op.document ? origins.data() : nullptr} {
            rope_table(device, cosine.data(), sine.data(), op.T, {op.HS, op.theta, op.scaling});
            qk_norm_rope_forward(device, op.rotated ? after.data() : nullptr, op.pre ? before.data() : nullptr, rstd.data(),
                                 qkv.data(), shape, NORM_EPS);
        }
    };
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        const Run<X, Device> run(*this, in, device);
        if (!pre) return run.after.numbers();
        return rotated ? joined(run.before.numbers(), run.after.numbers()) : run.before.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        using W = Wide<X>;
        Run<X, Device> run(*this, in, device);
        const auto end_of_pre = dout.begin() + (pre ? output_size() : 0);
        On<Device, W> dpre(std::vector<W>(dout.begin(), end_of_pre));
        On<Device, W> dqk(rotated ? std::vector<W>(end_of_pre, dout.end()) : std::vector<W>(output_size()));
        On<Device, X> dqkv(buffer<W>(in[0].size(), Write::overwrite));
        On<Device, W> dq_weight(buffer<W>(HS, write)), dk_weight(buffer<W>(HS, write));
        qk_norm_rope_backward(device, dqkv.data(), dq_weight.data(), dk_weight.data(), dqk.data(), pre ? dpre.data() : nullptr,
                              run.qkv.data(), run.rstd.data(), run.shape, write);
        std::vector<W> of_qkv = dqkv.numbers();
        for (size_t n = 0; n < of_qkv.size(); n++) {   // the v part is not touched: attention writes it
            const bool of_v = int(n / HS % (heads() + NKV)) >= heads();
            if (of_v) of_qkv[n] = std::isnan(of_qkv[n]) ? W(0) : W(INFINITY);
        }
        if (!weights) return {of_qkv};
        return {of_qkv, contribution(dq_weight.numbers(), write), contribution(dk_weight.numbers(), write)};
    }
};
