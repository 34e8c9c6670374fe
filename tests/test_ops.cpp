// The operations of model/ each on its own: formula, gradient, repeatability (operation.h), and what is special about each.
// Norms and RoPE are in test_norms.cpp, the optimiser in test_optimizer.cpp.
#include "catch.h"

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

TEST_CASE("cross-entropy: one row, several rows, a partial vector, ignored targets", "[ops]") {
    check_operation(CrossEntropy{{3}, 5});
    check_operation(CrossEntropy{{0, 36, 5, 5}, 37});
    check_operation(CrossEntropy{{-1, 1, -1, 18, -1}, 19});
}

TEST_CASE("swiglu: large gates neither overflow nor turn into NaN", "[ops]") { check_large_gates(CPU{}); }
TEST_CASE("cross-entropy: an ignored row has no loss and no gradient, without dloss the other logits stay", "[ops]") {
    check_ignored_row<float>(CPU{});
}
TEST_CASE("cross-entropy: large logits do not overflow and the gradient of a row sums to zero", "[ops]") { check_large_logits(CPU{}); }
