// The operations of model/ each on its own: formula, gradient, repeatability (operation.h), and what is special about each.
// Norms and RoPE are in test_norms.cpp, the optimiser in test_optimizer.cpp.
#include "catch.h"

#include <cmath>

#include "tests/ops.h"

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

TEST_CASE("linear: rows divided over three threads", "[ops]") {
    const Threads three(3);
    for (Write write : {Write::overwrite, Write::add})
        for (bool bias : {false, true}) check_operation(Linear{800, 3, 5, bias, write});
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
