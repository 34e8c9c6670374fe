// The operations of model/ each on its own: formula, gradient, repeatability (operation.h), and what is special about each.
// Norms and RoPE are in test_norms.cpp, the optimiser in test_optimizer.cpp.
#include "catch.h"

#include <cmath>

#include "model/cross_entropy.cuh"
#include "model/embedding.cuh"
#include "model/linear.cuh"
#include "model/swiglu.cuh"
#include "tests/operation.h"

namespace {

struct Embedding {
    std::vector<int32_t> tokens;
    int V, C;
    static constexpr bool any_threads = true;
    int length() const { return int(tokens.size()); }
    std::vector<ArrayOf> inputs() const { return {{"table", size_t(V) * C}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int32_t token : tokens)
            for (int c = 0; c < C; c++) out.push_back(in[0][token * C + c]);
        return out;
    }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        auto out = buffer<X>(tokens.size() * C, Write::overwrite);
        embedding_forward(CPU{}, out.data(), tokens.data(), in[0].data(), int(tokens.size()), C);
        return out;
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto dtable = buffer<X>(in[0].size(), Write::add);
        embedding_backward(CPU{}, dtable.data(), dout.data(), tokens.data(), int(tokens.size()), C);
        return {contribution(dtable, Write::add)};
    }
};

struct Linear {
    int rows, IN, OUT;
    bool bias;
    Write write;
    static constexpr bool any_threads = false;   // the BLAS library may split sums by threads
    int length() const { return std::max({rows, IN, OUT}); }
    std::vector<ArrayOf> inputs() const {
        std::vector<ArrayOf> all = {{"inp", size_t(rows) * IN}, {"weight", size_t(OUT) * IN}};
        if (bias) all.push_back({"bias", size_t(OUT)});
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
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        auto out = buffer<X>(size_t(rows) * OUT, Write::overwrite);
        linear_forward(CPU{}, out.data(), in[0].data(), in[1].data(), bias ? in[2].data() : nullptr, rows, IN, OUT);
        return out;
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto dinp = buffer<X>(in[0].size(), write), dweight = buffer<X>(in[1].size(), write), dbias = buffer<X>(OUT, write);
        linear_backward_input(CPU{}, dinp.data(), dout.data(), in[1].data(), rows, IN, OUT, write);
        linear_backward_weight(CPU{}, dweight.data(), bias ? dbias.data() : nullptr, dout.data(), in[0].data(), rows, IN, OUT, write);
        Arrays<X> all = {contribution(dinp, write), contribution(dweight, write)};
        if (bias) all.push_back(contribution(dbias, write));
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
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        auto out = buffer<X>(size_t(rows) * F, Write::overwrite);
        swiglu_forward(CPU{}, out.data(), in[0].data(), rows, F);
        return out;
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto dgate_up = buffer<X>(in[0].size(), Write::overwrite);
        swiglu_backward(CPU{}, dgate_up.data(), dout.data(), in[0].data(), rows, F);
        return {dgate_up};
    }
};

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
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        auto losses = buffer<X>(targets.size(), Write::overwrite), logits = in[0];
        cross_entropy(CPU{}, losses.data(), logits.data(), targets.data(), rows(), V, X(0));
        X total = 0;
        for (X loss : losses) total += loss;
        return {total};
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        auto losses = buffer<X>(targets.size(), Write::overwrite), logits = in[0];
        cross_entropy(CPU{}, losses.data(), logits.data(), targets.data(), rows(), V, dout[0]);
        return {logits};
    }
};

}   // namespace

TEST_CASE("embedding: one token, repeated tokens, a partial range of channels", "[ops]") {
    check_operation(Embedding{{2}, 3, 1});
    check_operation(Embedding{{4, 0, 4, 4, 1, 0}, 5, 8});
    check_operation(Embedding{{0, 1, 2, 1, 0, 6, 6}, 7, 40});
}

TEST_CASE("linear: with and without bias, overwriting and adding; one token, one channel, a partial range of channels", "[ops]") {
    for (Write write : {Write::overwrite, Write::add})
        for (bool bias : {false, true}) {
            check_operation(Linear{1, 5, 3, bias, write});
            check_operation(Linear{4, 1, 1, bias, write});
            check_operation(Linear{7, 6, 35, bias, write});
        }
}

TEST_CASE("swiglu: one row, several rows, a partial vector", "[ops]") {
    check_operation(SwiGlu{1, 1});
    check_operation(SwiGlu{5, 37});
}

TEST_CASE("swiglu: large gates neither overflow nor turn into NaN", "[ops]") {
    const std::vector<float> gate_up = {1e4f, -1e4f, 90, -90, 2, 2, 2, 2};
    std::vector<float> out(4), dgate_up(8);
    swiglu_forward(CPU{}, out.data(), gate_up.data(), 1, 4);
    swiglu_backward(CPU{}, dgate_up.data(), std::vector<float>(4, 1).data(), gate_up.data(), 1, 4);
    CHECK(difference(out, std::vector<float>{2e4f, 0, 180, 0}, Tolerance{1e-6, 0}) == "");
    CHECK(difference(dgate_up, std::vector<float>{2, 0, 2, 0, 1e4f, 0, 90, 0}, Tolerance{1e-6, 0}) == "");
}

TEST_CASE("cross-entropy: one row, several rows, a partial vector, ignored targets", "[ops]") {
    check_operation(CrossEntropy{{3}, 5});
    check_operation(CrossEntropy{{0, 36, 5, 5}, 37});
    check_operation(CrossEntropy{{-1, 1, -1, 18, -1}, 19});
}

TEST_CASE("cross-entropy: an ignored row has no loss and no gradient, without dloss the other logits stay", "[ops]") {
    const std::vector<int32_t> targets = {-1, 1};
    const std::vector<float> before = {5, 6, 7, 1, 2, 3};
    std::vector<float> logits = before, losses(2, NAN);
    cross_entropy(CPU{}, losses.data(), logits.data(), targets.data(), 2, 3, 0.0f);
    CHECK(losses[0] == 0);
    CHECK(difference(losses, std::vector<double>{0, std::log(std::exp(-1) + 1 + std::exp(1))}, rounding<float>(3)) == "");
    CHECK(std::equal(logits.begin() + 3, logits.end(), before.begin() + 3));
    logits = before;
    cross_entropy(CPU{}, losses.data(), logits.data(), targets.data(), 2, 3, 1.0f);
    for (int v = 0; v < 3; v++) CHECK(logits[v] == 0);
}

TEST_CASE("cross-entropy: large logits do not overflow and the gradient of a row sums to zero", "[ops]") {
    const std::vector<int32_t> targets = {0, 2, 1};
    std::vector<float> logits = {3e4f, -3e4f, 0, 1e4f, 1e4f, 1e4f, -1e30f, 1e30f, 0}, losses(3);
    cross_entropy(CPU{}, losses.data(), logits.data(), targets.data(), 3, 3, 1.0f);
    CHECK(difference(losses, std::vector<double>{0, std::log(3.0), 0}, Tolerance{0, 1e-3}) == "");
    CHECK(difference(logits, std::vector<double>{0, 0, 0, 1 / 3.0, 1 / 3.0, -2 / 3.0, 0, 0, 0}, rounding<float>(3)) == "");
}
