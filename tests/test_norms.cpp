// RMSNorm, QK-norm, RoPE and layer norm, each on its own: formula, gradient, repeatability (operation.h), and what is special.
#include "catch.h"

#include <cmath>

#include "attention/core/layernorm.h"
#include "model/qk_rope.cuh"
#include "model/rmsnorm.cuh"
#include "tests/operation.h"

namespace {

constexpr double EPS = 1e-5;

std::vector<double> rmsnorm_formula(const double* x, const double* weight, int n) {
    double squares = 0;
    for (int c = 0; c < n; c++) squares += x[c] * x[c];
    std::vector<double> out;
    for (int c = 0; c < n; c++) out.push_back(x[c] / std::sqrt(squares / n + EPS) * weight[c]);
    return out;
}

struct RmsNorm {
    int rows, C;
    Write write_input, write_weight;
    static constexpr bool any_threads = false;   // of the weight's gradient, each thread sums its rows
    int length() const { return std::max(rows, C); }
    std::vector<ArrayOf> inputs() const { return {{"inp", size_t(rows) * C}, {"weight", size_t(C), 1.0}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++) out = joined(out, rmsnorm_formula(&in[0][row * C], in[1].data(), C));
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in, std::vector<X>& rstd) const {
        auto out = buffer<X>(in[0].size(), Write::overwrite);
        rmsnorm_forward(CPU{}, out.data(), rstd.data(), in[0].data(), in[1].data(), rows, C, EPS);
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        std::vector<X> rstd(rows);
        return forward(in, rstd);
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto dinp = buffer<X>(in[0].size(), write_input), dweight = buffer<X>(C, write_weight);
        std::vector<X> rstd(rows);
        forward(in, rstd);
        rmsnorm_backward(CPU{}, dinp.data(), dweight.data(), dout.data(), in[0].data(), in[1].data(), rstd.data(), rows, C, write_input, write_weight);
        return {contribution(dinp, write_input), contribution(dweight, write_weight)};
    }
};

/// Both outputs count: the sum goes on along the residual stream, so its gradient is what rmsnorm_backward() adds to.
struct ResidualRmsNorm {
    int rows, C;
    static constexpr bool any_threads = false;
    int length() const { return std::max(rows, C); }
    std::vector<ArrayOf> inputs() const { return {{"residual", size_t(rows) * C}, {"branch", size_t(rows) * C}, {"weight", size_t(C), 1.0}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> sum = in[0];
        for (size_t n = 0; n < sum.size(); n++) sum[n] += in[1][n];
        return joined(sum, RmsNorm{rows, C, {}, {}}.formula({sum, in[2]}));
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in, std::vector<X>& rstd) const {
        auto sum = buffer<X>(in[0].size(), Write::overwrite), out = sum;
        residual_rmsnorm_forward(CPU{}, sum.data(), out.data(), rstd.data(), in[0].data(), in[1].data(), in[2].data(), rows, C, EPS);
        return joined(sum, out);
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        std::vector<X> rstd(rows);
        return forward(in, rstd);
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        std::vector<X> rstd(rows), dweight = buffer<X>(C, Write::overwrite);
        const std::vector<X> sum = forward(in, rstd);   // its first half
        std::vector<X> dsum(dout.begin(), dout.begin() + rows * C);
        rmsnorm_backward(CPU{}, dsum.data(), dweight.data(), dout.data() + rows * C, sum.data(), in[2].data(), rstd.data(), rows, C, Write::add, Write::overwrite);
        return {dsum, dsum, dweight};
    }
};

struct QkNorm {
    int rows, NH, NKV, HS;
    bool weights;
    Write write;
    static constexpr bool any_threads = false;
    int heads() const { return NH + NKV; }
    int length() const { return std::max(rows * NH, HS); }
    std::vector<ArrayOf> inputs() const {
        std::vector<ArrayOf> all = {{"qkv", size_t(rows) * (heads() + NKV) * HS}};
        if (weights) all.push_back({"q_norm", size_t(HS), 1.0}), all.push_back({"k_norm", size_t(HS), 1.0});
        return all;
    }
    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++)
            for (int h = 0; h < heads(); h++) {
                const double* x = &in[0][(row * (heads() + NKV) + h) * HS];
                out = joined(out, weights ? rmsnorm_formula(x, in[h < NH ? 1 : 2].data(), HS) : std::vector<double>(x, x + HS));
            }
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in, std::vector<X>& rstd) const {
        auto out = buffer<X>(size_t(rows) * heads() * HS, Write::overwrite);
        qk_norm_forward(CPU{}, out.data(), rstd.data(), in[0].data(), weights ? in[1].data() : nullptr, weights ? in[2].data() : nullptr, rows, NH, NKV, HS, EPS);
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        std::vector<X> rstd(size_t(rows) * heads());
        return forward(in, rstd);
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto dqkv = buffer<X>(in[0].size(), Write::overwrite), dq_norm = buffer<X>(HS, write), dk_norm = dq_norm;
        std::vector<X> rstd(size_t(rows) * heads());
        forward(in, rstd);
        qk_norm_backward(CPU{}, dqkv.data(), dq_norm.data(), dk_norm.data(), dout.data(), in[0].data(), weights ? in[1].data() : nullptr,
                         weights ? in[2].data() : nullptr, rstd.data(), rows, NH, NKV, HS, write);
        for (size_t n = 0; n < dqkv.size(); n++) {   // the v part is left alone: attention writes it
            const bool of_v = int(n / HS % (heads() + NKV)) >= heads();
            if (of_v) dqkv[n] = std::isnan(dqkv[n]) ? X(0) : X(INFINITY);
        }
        if (!weights) return {dqkv};
        return {dqkv, contribution(dq_norm, write), contribution(dk_norm, write)};
    }
};

struct Rope {
    int B, T, heads, HS;
    double theta;
    static constexpr bool any_threads = true;
    int length() const { return 2; }
    std::vector<ArrayOf> inputs() const { return {{"x", size_t(B) * T * heads * HS}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        const std::vector<double>& x = in[0];
        std::vector<double> out(x.size());
        for (size_t n = 0; n < x.size(); n++) {
            const int d = int(n % HS), half = HS / 2, t = int(n / HS / heads % T);
            const double angle = t / std::pow(theta, 2.0 * (d % half) / HS);
            out[n] = x[n] * std::cos(angle) + (d < half ? -x[n + half] : x[n - half]) * std::sin(angle);
        }
        return out;
    }
    template <class X>
    Arrays<X> table() const {
        Arrays<X> cosine_and_sine(2, buffer<X>(size_t(T) * HS / 2, Write::overwrite));
        rope_table(CPU{}, cosine_and_sine[0].data(), cosine_and_sine[1].data(), T, HS, theta);
        return cosine_and_sine;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        auto out = buffer<X>(in[0].size(), Write::overwrite);
        const Arrays<X> angles = table<X>();
        rope_forward(CPU{}, out.data(), in[0].data(), angles[0].data(), angles[1].data(), B, T, heads, HS);
        return out;
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>&, const std::vector<X>& dout) const {
        std::vector<X> dx = dout;
        const Arrays<X> angles = table<X>();
        rope_backward(CPU{}, dx.data(), angles[0].data(), angles[1].data(), B, T, heads, HS);
        return {dx};
    }
};

struct LayerNorm {
    int rows, n;
    static constexpr bool any_threads = true;
    int length() const { return n; }
    std::vector<ArrayOf> inputs() const { return {{"x", size_t(rows) * n, 0.5}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int row = 0; row < rows; row++) {
            const double* x = &in[0][row * n];
            double mean = 0, variance = 0;
            for (int d = 0; d < n; d++) mean += x[d] / n;
            for (int d = 0; d < n; d++) variance += (x[d] - mean) * (x[d] - mean) / n;
            for (int d = 0; d < n; d++) out.push_back((x[d] - mean) / std::sqrt(variance + EPS));
        }
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in, std::vector<X>& rstd) const {
        auto out = buffer<X>(in[0].size(), Write::overwrite);
        for (int row = 0; row < rows; row++) rstd[row] = layernorm_row(&out[row * n], &in[0][row * n], n, EPS);
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        std::vector<X> rstd(rows);
        return forward(in, rstd);
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        std::vector<X> rstd(rows), dx = buffer<X>(in[0].size(), Write::add);
        const std::vector<X> out = forward(in, rstd);
        for (int row = 0; row < rows; row++) layernorm_row_backward(&dx[row * n], &dout[row * n], &out[row * n], rstd[row], n);
        return {contribution(dx, Write::add)};
    }
};

}   // namespace

TEST_CASE("rmsnorm: overwriting and adding; one row, one channel, more rows than threads, a partial vector", "[ops]") {
    for (Write write_input : {Write::overwrite, Write::add})
        for (Write write_weight : {Write::overwrite, Write::add}) {
            check_operation(RmsNorm{1, 19, write_input, write_weight});
            check_operation(RmsNorm{7, 1, write_input, write_weight});
            check_operation(RmsNorm{13, 33, write_input, write_weight});
        }
}

TEST_CASE("rmsnorm: a row of zeros gives zeros and a finite gradient", "[ops]") {
    const std::vector<float> zeros(8), ones(8, 1);
    std::vector<float> out = ones, dinp = ones, dweight = ones;
    float rstd = 0;
    rmsnorm_forward(CPU{}, out.data(), &rstd, zeros.data(), ones.data(), 1, 8, 1e-6);
    rmsnorm_backward(CPU{}, dinp.data(), dweight.data(), ones.data(), zeros.data(), ones.data(), &rstd, 1, 8, Write::overwrite, Write::overwrite);
    CHECK(bit_difference(out, zeros) == "");
    CHECK(difference(dinp, std::vector<double>(8, 1000), rounding<float>(1)) == "");
    CHECK(bit_difference(dweight, zeros) == "");
}

TEST_CASE("rmsnorm: the output keeps its bits for any number of threads", "[ops]") {
    const RmsNorm op{13, 33, {}, {}};
    const std::vector<float> once = op.forward(random_inputs<float>(op));
    for (int count : {1, 2}) {
        const Threads threads(count);
        CHECK(bit_difference(op.forward(random_inputs<float>(op)), once) == "");
    }
}

TEST_CASE("residual addition and rmsnorm: one row, several rows, a partial vector", "[ops]") {
    check_operation(ResidualRmsNorm{1, 8});
    check_operation(ResidualRmsNorm{9, 21});
}

TEST_CASE("qk_norm: with weights and without, heads in groups of 1, 2 and 4; one token", "[ops]") {
    for (bool weights : {true, false}) {
        check_operation(QkNorm{1, 2, 2, 4, weights, Write::overwrite});
        check_operation(QkNorm{5, 4, 2, 6, weights, Write::add});
        check_operation(QkNorm{3, 4, 1, 16, weights, Write::overwrite});
    }
}

TEST_CASE("rope: rotate-half at every position; one token, several sequences and heads, the smallest head", "[ops]") {
    check_operation(Rope{1, 1, 1, 4, 1e4});
    check_operation(Rope{2, 5, 3, 8, 1e4});
    check_operation(Rope{1, 7, 2, 2, 1e6});
}

TEST_CASE("rope: keeps lengths and its backward is its inverse", "[ops]") {
    const Rope op{2, 70, 2, 16, 1e4};
    const Arrays<double> x = random_inputs<double>(op);
    const std::vector<double> turned = op.forward(x);
    CHECK(difference(op.backward(x, turned)[0], x[0], rounding<double>(2)) == "");
    for (size_t n = 0; n < turned.size(); n += op.HS) {
        double before = 0, after = 0;
        for (int d = 0; d < op.HS; d++) before += x[0][n + d] * x[0][n + d], after += turned[n + d] * turned[n + d];
        CHECK(std::abs(after - before) <= rounding<double>(op.HS).relative * before);
    }
    const std::vector<double> first(turned.begin(), turned.begin() + op.heads * op.HS);
    CHECK(bit_difference(first, std::vector<double>(x[0].begin(), x[0].begin() + op.heads * op.HS)) == "");   // position 0 stays
}

TEST_CASE("rope: a product of query and key depends on their distance alone", "[ops]") {
    const Rope op{1, 90, 1, 8, 1e4};
    const std::vector<double> q = random_numbers<double>(op.HS, 1), k = random_numbers<double>(op.HS, 2);
    Arrays<double> queries(1), keys(1);
    for (int t = 0; t < op.T; t++) queries[0] = joined(queries[0], q), keys[0] = joined(keys[0], k);
    const std::vector<double> turned_q = op.forward(queries), turned_k = op.forward(keys);
    auto product = [&](int i, int j) {
        double total = 0;
        for (int d = 0; d < op.HS; d++) total += turned_q[i * op.HS + d] * turned_k[j * op.HS + d];
        return total;
    };
    for (int distance : {0, 1, 7, 40}) {
        std::vector<double> products;
        for (int i = distance; i < op.T; i++) products.push_back(product(i, i - distance));
        CHECK(difference(products, std::vector<double>(products.size(), products[0]), Tolerance{0, 1e-13}) == "");
    }
    CHECK(std::abs(product(5, 0) - product(0, 5)) > 1e-3);   // and on its sign
}

TEST_CASE("layer norm: three channels, a partial vector, several rows", "[ops]") {
    check_operation(LayerNorm{1, 3});
    check_operation(LayerNorm{5, 19});
}
