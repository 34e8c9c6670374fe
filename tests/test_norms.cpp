// RMSNorm, QK-norm, RoPE and layer norm, each on its own: formula, gradient, repeatability (operation.h), and what is special.
#include "catch.h"

#include <cmath>

#include "attention/scores/layernorm.h"
#include "tests/norms.h"

namespace {

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
            for (int d = 0; d < n; d++) out.push_back((x[d] - mean) / std::sqrt(variance + NORM_EPS));
        }
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in, std::vector<X>& rstd) const {
        auto out = buffer<X>(in[0].size(), Write::overwrite);
        for (int row = 0; row < rows; row++) rstd[row] = layernorm_row(&out[row * n], &in[0][row * n], n, NORM_EPS);
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

/// RoPE alone, on `heads` query heads.
QkNormRope rope(int B, int T, int heads, int HS, double theta = 1e4) {
    return {B, T, heads, 0, HS, false, false, true, Write::overwrite, theta};
}

}   // namespace

TEST_CASE("rmsnorm: overwriting and adding; one row, one channel, more rows than threads, a partial vector", "[ops]") {
    for (Write write_input : {Write::overwrite, Write::add})
        for (Write write_weight : {Write::overwrite, Write::add}) {
            check_operation(RmsNorm{1, 19, write_input, write_weight});
            check_operation(RmsNorm{7, 1, write_input, write_weight});
            check_operation(RmsNorm{13, 33, write_input, write_weight});
        }
}

TEST_CASE("rmsnorm: a row of zeros gives zeros and a finite gradient", "[ops]") { check_row_of_zeros(CPU{}); }

TEST_CASE("rmsnorm: the output keeps its bits for any number of threads", "[ops]") {
    const RmsNorm op{13, 33, {}, {}};
    const std::vector<float> once = op.forward<float>(random_inputs<float>(op));
    for (int count : {1, 2}) {
        const Threads threads(count);
        CHECK(bit_difference(op.forward<float>(random_inputs<float>(op)), once) == "");
    }
}

TEST_CASE("residual: a projection, the addition and the norm; one row, several rows, a partial vector", "[ops]") {
    check_operation(Residual{1, 3, 8});
    check_operation(Residual{9, 5, 21});
}

TEST_CASE("qk_norm: with weights and without, heads in groups of 1, 2 and 4; one token", "[ops]") {
    for (bool weights : {true, false}) {
        check_operation(QkNormRope{1, 1, 2, 2, 4, weights, true, false});
        check_operation(QkNormRope{1, 5, 4, 2, 6, weights, true, false, Write::add});
        check_operation(QkNormRope{3, 1, 4, 1, 16, weights, true, false});
    }
}

TEST_CASE("rope: rotate-half at every position; one token, several sequences and heads, the smallest head", "[ops]") {
    check_operation(rope(1, 1, 1, 4));
    check_operation(rope(2, 5, 3, 8));
    check_operation(rope(1, 7, 2, 2, 1e6));
}

TEST_CASE("qk_norm and rope in one pass: with both outputs and with the rotated one alone", "[ops]") {
    for (bool pre : {true, false})
        for (bool weights : {true, false}) {
            check_operation(QkNormRope{1, 1, 2, 2, 4, weights, pre});
            check_operation(QkNormRope{2, 5, 4, 2, 6, weights, pre, true, Write::add});
        }
}

TEST_CASE("qk_norm and rope in one pass: positions that count anew in every document", "[ops][documents]") {
    QkNormRope op{2, 7, 4, 2, 6, true, true};
    op.document = 3;
    check_operation(op);
}

TEST_CASE("qk_norm and rope in one pass: an attention factor scales the rotated output and its gradient alone", "[ops]") {
    for (bool pre : {true, false})
        for (bool weights : {true, false}) {
            QkNormRope op{2, 5, 4, 2, 6, weights, pre, true, Write::add};
            op.scaling = SCALED;
            check_operation(op);
        }
}

TEST_CASE("rope: the frequencies of every type are those of transformers", "[ops]") {
    using enum RopeScaling::Type;
    const struct {
        Rope rope;
        std::vector<double> expected;   // of ROPE_INIT_FUNCTIONS in transformers 5.24, in float32
    } cases[] = {
        {{16, 1e6, {linear, 4}},
         {0.25, 0.044456985, 0.0079056947, 0.0014058533, 0.00025000001, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06}},
        {{16, 1e6, {yarn, 4, 32768, 32, 1}},
         {1, 0.17782794, 0.031622779, 0.0042175599, 0.00050000002, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06}},
        {{16, 1e6, {yarn, 4, 32768, 64, 2, false}},
         {1, 0.17782794, 0.031622779, 0.0046737585, 0.00045740796, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06}},
        {{16, 1e4, {yarn, 8, 32, 32, 1}},   // the first bound is before the first pair
         {1, 0.17787811, 0.0125, 0.0039528473, 0.00125, 0.00039528473, 0.00012500001, 3.9528473e-05}},
        {{16, 1e4, {yarn, 8, 4, 32, 1}},   // both bounds are
         {1, 0.03952847, 0.0125, 0.0039528473, 0.00125, 0.00039528473, 0.00012500001, 3.9528473e-05}},
        {{16, 2, {yarn, 8, 32768, 32, 1}},   // both are behind the last pair
         {0.125, 0.11462551, 0.10511205, 0.096388176, 0.088388346, 0.081052475, 0.074325442, 0.068156734}},
        {{16, 5e5, {llama3, 8, 8192, 4, 1}},
         {1, 0.19392276, 0.037606031, 0.0072926651, 0.00052484602, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06}},
        {{16, 1e4, {llama3, 4, 32, 6, 0.5}},
         {0.87631243, 0.12694539, 0.025126761, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-05}},
    };
    for (const auto& [rope, expected] : cases) {
        INFO("type " << int(rope.scaling.type) << ", theta " << rope.theta << ", fast " << rope.scaling.fast);
        std::vector<double> frequencies;
        for (int d = 0; d < rope.HS / 2; d++) frequencies.push_back(rope.frequency(d));
        CHECK(difference(frequencies, expected, {1e-6}) == "");
    }
}

TEST_CASE("layer norm: three channels, a partial vector, several rows", "[ops]") {
    check_operation(LayerNorm{1, 3});
    check_operation(LayerNorm{5, 19});
}
