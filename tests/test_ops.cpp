// The operations of model/ each on its own: formula, gradient, repeatability (operation.h), and what is special about each.
// The optimiser is in test_optimizer.cpp.
#include "tests/ops.h"

TEST_CASE("embedding: one token, repeated tokens, a partial range of channels", "[ops]") {
    check_operation(Embedding{{2}, 3, 1});
    check_operation(Embedding{{4, 0, 4, 4, 1, 0}, 5, 8});
    check_operation(Embedding{{0, 1, 2, 1, 0, 6, 6}, 7, 40});
}

TEST_CASE("linear: with and without bias, overwriting and adding; one token, one channel, a partial vector, many rows", "[ops]") {
    for (Write write : {Write::overwrite, Write::add})
        for (bool bias : {false, true}) {
            check_operation(Linear{1, 5, 3, bias, write});
            check_operation(Linear{4, 1, 1, bias, write});
            check_operation(Linear{7, 6, 35, bias, write});
            const Threads three(3);
            check_operation(Linear{800, 3, 5, bias, write});   // rows divided over threads
        }
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

TEST_CASE("operations: large gates and logits, ignored rows, rows of zeros", "[ops]") { check_special_numbers<float>(CPU{}); }

TEST_CASE("rmsnorm: overwriting and adding; one row, one channel, more rows than threads, a partial vector", "[ops]") {
    for (Write write_input : {Write::overwrite, Write::add})
        for (Write write_weight : {Write::overwrite, Write::add}) {
            check_operation(RmsNorm{1, 19, write_input, write_weight});
            check_operation(RmsNorm{7, 1, write_input, write_weight});
            check_operation(RmsNorm{13, 33, write_input, write_weight});
        }
}

TEST_CASE("rmsnorm: the output keeps its bits for any number of threads", "[ops]") {
    const RmsNorm op{13, 33, {}, {}};
    const std::vector<float> once = op.run<float>(CPU{}, random_inputs<float>(op))[0];
    for (int count : {1, 2}) {
        const Threads threads(count);
        CHECK(bit_difference(op.run<float>(CPU{}, random_inputs<float>(op))[0], once) == "");
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

TEST_CASE("rope: rotate-half at every position; no keys, the smallest head", "[ops]") {
    for (int HS : {2, 8}) check_operation(QkNormRope{2, 7, 3, 0, HS, false, false, true, Write::overwrite, 1e6});
}

TEST_CASE("qk_norm and rope in one pass: both outputs and the rotated one alone, which an attention factor scales", "[ops]") {
    for (bool pre : {true, false})
        for (bool weights : {true, false}) {
            check_operation(QkNormRope{1, 1, 2, 2, 4, weights, pre});
            QkNormRope op{2, 5, 4, 2, 6, weights, pre, true, Write::add};
            check_operation(op);
            op.scaling = SCALED;
            check_operation(op);
        }
}

TEST_CASE("qk_norm and rope in one pass: positions that count anew in every document", "[ops][documents]") {
    QkNormRope op{2, 7, 4, 2, 6, true, true};
    op.document = 3;
    check_operation(op);
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
