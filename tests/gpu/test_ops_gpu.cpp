// The operations of model/ on the GPU against the CPU in double (on_gpu.h), and what is special about each. On a machine without a GPU
// they run on the emulator.
#include "model/device/memory.cuh"
#include "model/operations/checksum.cuh"
#include "tests/errors.h"

#include <cmath>

#include "tests/gpu/on_gpu.h"
#include "tests/ops.h"

namespace {

/// Tokens of which some fill more than one run, one of them several.
std::vector<int32_t> frequent_tokens() {
    std::vector<int32_t> tokens;
    for (int n = 0; n < 600; n++) tokens.push_back(2), tokens.push_back(n % 2 ? 5 : 2 + n % 11);
    tokens.insert(tokens.end(), {0, 0, 13});
    return tokens;
}

}   // namespace

TEST_CASE("GPU embedding: one token, repeated tokens, tokens of several runs, rows wider than a block", "[gpu][ops]") {
    for (const Embedding& op : {Embedding{{2}, 3, 8}, {{4, 0, 4, 4, 1, 0, 6}, 9, 40}, {{1, 1, 0}, 4, 2056}, {frequent_tokens(), 16, 24},
                                {std::vector<int32_t>(257, 0), 1, 16}, {std::vector<int32_t>(256, 3), 4, 16}})
        check_on_gpu(op);
}

TEST_CASE("GPU embedding: more runs of split tokens than blocks that look for them", "[gpu][ops]") {
    std::vector<int32_t> tokens(256 * RowsByToken::RUN, 0);
    tokens.insert(tokens.end(), 600, 1);
    check_on<float>(test_gpu(), Embedding{tokens, 2, 8});
}

TEST_CASE("GPU embedding: the workspace's size changes no bit of the gradient", "[gpu][ops]") {
    const Embedding op{frequent_tokens(), 16, 24};
    const Arrays<float> in = random_inputs<float>(op);
    const std::vector<float> dout = random_numbers<float>(op.tokens.size() * op.C, 5);
    GPU device = test_gpu();
    const std::vector<float> expected = op.run<float>(device, in, dout)[1];
    for (size_t slots : {0, 1, 3}) {
        const DeviceArray<float> workspace((slots + 1) * op.C, NAN);
        device.workspace = {reinterpret_cast<std::byte*>(workspace.data()), slots * op.C * sizeof(float)};
        CHECK(bit_difference(op.run<float>(device, in, dout)[1], expected) == "");
    }
}

TEST_CASE("GPU rmsnorm: overwriting and adding; one row, a partial block, several packs a thread", "[gpu][ops]") {
    for (Write write_input : {Write::overwrite, Write::add})
        for (Write write_weight : {Write::overwrite, Write::add}) {
            // The 0.25 that a gradient is added to is rounded with it.
            const double roundings = write_input == Write::add ? 0.25 : 0;
            for (auto [rows, C] : {std::pair{1, 8}, {7, 24}, {13, 768}, {3, 2056}})
                check_on_gpu(RmsNorm{rows, C, write_input, write_weight}, roundings);
        }
    check_on_gpu(RmsNorm{131, 8192, Write::overwrite, Write::add});   // more rows than blocks
    check_on<float>(test_gpu(), RmsNorm{1100, 8, Write::overwrite, Write::overwrite});      // more partial sums than are read at a time
}

TEST_CASE("GPU residual: one row, a partial block, several packs a thread", "[gpu][ops]") {
    // The sum, of up to 2, is rounded once more than the results; the gradient is added to one of up to 1.
    for (const Residual& op : {Residual{1, 8, 8}, {9, 16, 40}, {3, 8, 768}, {2, 8, 2064}}) check_on_gpu(op, 8);
}

TEST_CASE("GPU residual: the sum is rounded once, and normed as it is stored", "[gpu][ops]") {
    const Residual op{3, 8, 40};
    Arrays<float> in = random_inputs<float>(op);
    for (std::vector<float>& array : in) array = rounded<bf16>(array);
    const std::vector<float> both = op.run<bf16>(test_gpu(), in)[0];
    const std::vector<float> sum(both.begin(), both.begin() + 120), out(both.begin() + 120, both.end());
    CHECK(bit_difference(RmsNorm{3, 40, {}, {}}.run<bf16>(test_gpu(), {sum, in[3]})[0], out) == "");
    Arrays<double> exact;
    for (const std::vector<float>& array : in) exact.push_back(converted<double>(array));
    const std::vector<double> formula = op.formula(exact);
    const std::vector<double> expected(formula.begin(), formula.begin() + 120);
    CHECK(stored_difference<bf16>(sum, expected, op.IN, 0) == "");
}

TEST_CASE("GPU qk_norm and rope: each output alone and both; heads of 32, 64 and 128, groups of 1, 2 and 4", "[gpu][ops]") {
    for (bool weights : {true, false})
        for (auto [pre, rotated] : {std::pair{true, true}, {true, false}, {false, true}})
            for (Write write : {Write::overwrite, Write::add}) {
                check_on_gpu(QkNormRope{1, 1, 1, 1, 64, weights, pre, rotated, write});
                check_on_gpu(QkNormRope{2, 5, 4, 2, 32, weights, pre, rotated, write});
                check_on_gpu(QkNormRope{1, 3, 4, 1, 128, weights, pre, rotated, write, 1e6});
            }
}

TEST_CASE("GPU qk_norm and rope: other heads, from 8 to 256 numbers, whose lanes are no power of 2", "[gpu][ops]") {
    for (bool weights : {true, false})
        for (int HS : {8, 16, 24, 40, 48, 96, 200, 256}) check_on_gpu(QkNormRope{2, 3, 2, 1, HS, weights});
    QkNormRope documents{2, 7, 2, 1, 64, true};
    documents.document = 3;
    check_on_gpu(documents);
}

TEST_CASE("GPU qk_norm and rope: more rows than the grid has in hand", "[gpu][ops]") {
    check_on<bf16>(test_gpu(), QkNormRope{1, 2800, 2, 1, 256, true, false});
    check_on<float>(test_gpu(), QkNormRope{1, 1400, 2, 1, 256, true});
}

TEST_CASE("GPU qk_norm and rope: an attention factor scales the rotated output and its gradient alone", "[gpu][ops]") {
    for (bool weights : {true, false}) {
        QkNormRope op{2, 5, 4, 2, 32, weights};
        op.scaling = SCALED;
        check_on_gpu(op);
    }
}

TEST_CASE("GPU rope: the table is the CPU's, with frequencies of every type and without rotation", "[gpu][ops]") {
    using enum RopeScaling::Type;
    const int T = 300, HS = 24;
    const Tolerance last_bit{std::numeric_limits<float>::epsilon() / 2, 0};   // a double rounded once, almost the same one
    for (const RopeScaling& scaling : {RopeScaling{}, RopeScaling{linear, 4}, RopeScaling{yarn, 4, 100, 32, 1, true, 1.25},
                                       RopeScaling{yarn, 4, 100, 32, 1, false, 0.75}, RopeScaling{llama3, 8, 100, 4, 1}})
        for (bool rotates : {true, false}) {
            const Rope rope{HS, 1e6, scaling};
            INFO("type " << int(scaling.type) << ", rotates " << rotates);
            std::vector<float> cosine(T * HS / 2), sine(T * HS / 2);
            rope_table(CPU{}, cosine.data(), sine.data(), T, rope, rotates);
            On<GPU, float> c(std::vector<float>(cosine.size(), NAN)), s(std::vector<float>(sine.size(), NAN));
            rope_table(test_gpu(), c.data(), s.data(), T, rope, rotates);
            CHECK(difference(c.numbers(), cosine, last_bit) == "");
            CHECK(difference(s.numbers(), sine, last_bit) == "");
            CHECK((rotates || (cosine == std::vector<float>(cosine.size(), 1) && sine == std::vector<float>(sine.size(), 0))));
        }
}

TEST_CASE("GPU swiglu: one pack, several rows, a partial block", "[gpu][ops]") {
    for (const SwiGlu& op : {SwiGlu{1, 8}, {5, 40}, {7, 344}}) check_on_gpu(op);
}

TEST_CASE("GPU cross-entropy: one row, several rows, ignored targets, a row longer than a batch of reads", "[gpu][ops]") {
    for (const CrossEntropy& op : {CrossEntropy{{3}, 8}, {{0, 511, 5, 5}, 512}, {{-1, 1, -1, 1447, -1}, 1448}, {{16391, 16384, 0}, 16392}})
        check_on_gpu(op);
}

TEST_CASE("GPU cross-entropy: more rows than blocks run at a time", "[gpu][ops]") {
    const int V = 16392;   // on the emulator twelve blocks in float32
    const size_t rows = 2 * resident_blocks(cross_entropy_kernel<float, true>, softmax::THREADS, softmax::bytes_to_keep<float>(V)) + 1;
    CrossEntropy op{std::vector<int32_t>(rows, V - 1), V};
    for (size_t row = 0; row < rows; row += 3) op.targets[row] = row % 2 ? 16384 : -1;
    check_on_gpu(op);
}

TEST_CASE("GPU cross-entropy: a row that no block can keep in shared memory", "[gpu][ops]") {
    const int V = 58496;   // 228 KB in float32
    CrossEntropy op{{58495, -1, 3}, V};
    CHECK(softmax::bytes_to_keep<float>(V) > max_shared_memory());
    check_on<float>(test_gpu(), op);
}

TEST_CASE("GPU cross-entropy: a weight in the GPU's memory is a factor of the gradient, and none of the loss", "[gpu][ops]") {
    const int V = 520;
    const std::vector<double> logits = random_numbers<double>(3 * V, 1);
    const DeviceMemory<int32_t> targets({7, -1, 519});
    const DeviceMemory<float> weight({2.5f});
    auto run = [&](float dloss, const float* factor) {
        DeviceArray<float> z(logits), losses(3, 0);
        cross_entropy(test_gpu(), losses.data(), z.data(), targets.data(), 3, V, dloss, factor);
        std::vector<double> both = z.numbers();
        for (double loss : losses.numbers()) both.push_back(loss);
        return both;
    };
    CHECK(run(0.5f, weight.data()) == run(1.25f, nullptr));
    CHECK(run(0, weight.data()) == run(0, nullptr));
    fill(test_gpu(), weight.data(), 1, 1.0f);
    CHECK(run(0.5f, weight.data()) == run(0.5f, nullptr));
}

TEST_CASE("GPU operations: large gates and logits, ignored rows, rows of zeros", "[gpu][ops]") { check_special_numbers<bf16>(test_gpu()); }

TEST_CASE("GPU cross-entropy: a logit that is not a number shows in the loss", "[gpu][ops]") {
    const CrossEntropy op{{0}, 8};
    CHECK(std::isnan(op.result<float>(test_gpu(), {0, 0, 0, NAN, 0, 0, 0, 0}, 1).losses[0]));
    CHECK_FALSE(std::isfinite(op.result<float>(test_gpu(), {0, 0, 0, INFINITY, 0, 0, 0, 0}, 1).losses[0]));
}

TEST_CASE("GPU fill: packs, a rest, one number, none", "[gpu][ops]") {
    for (size_t n : {0, 1, 7, 8, 4099}) {
        On<GPU, float> x(std::vector<float>(n + 1, 3));
        fill(test_gpu(), x.data(), n, 0.5f);
        std::vector<float> expected(n + 1, 0.5f);
        expected[n] = 3;
        CHECK(bit_difference(x.numbers(), expected) == "");
    }
    On<GPU, bf16> x(std::vector<float>(11, 3));
    fill(test_gpu(), x.data(), 10, bf16(0.0f));
    CHECK(bit_difference(x.numbers(), std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3}) == "");
}

TEST_CASE("GPU operations refuse sizes that they cannot read 16 bytes at a time, and too small a workspace", "[gpu][ops]") {
    On<GPU, float> x(std::vector<float>(64));
    On<GPU, int32_t> i(std::vector<int32_t>(8));
    GPU device = test_gpu();
    float* p = x.data();
    CHECK(refusal(Exit::usage, [&] { rmsnorm_forward(device, p, p, p, p, 1, 12, 1e-5); }) ==
          "RMSNorm on the GPU needs the number of channels to be a multiple of 8, not 12");
    CHECK(refusal(Exit::usage, [&] { rmsnorm_forward(device, p, p, p, p, 1, 8200, 1e-5); }) ==
          "RMSNorm on the GPU is for up to 8192 channels, not 8200");
    CHECK(refusal(Exit::usage, [&] { swiglu_forward(device, p, p, 1, 7); }) ==
          "SwiGLU on the GPU needs the width of the feed-forward network to be a multiple of 8, not 7");
    CHECK(refusal(Exit::usage, [&] { cross_entropy(device, p, p, i.data(), 1, 513, 0.0f); }) ==
          "cross-entropy on the GPU needs the size of the vocabulary to be a multiple of 8, not 513");
    CHECK(refusal(Exit::usage, [&] { embedding_forward(device, p, i.data(), p, 1, 4); }) ==
          "the embedding on the GPU needs the number of channels to be a multiple of 8, not 4");
    const QkShape<float> large{1, 1, 1, 1, 264, p, p, p, p};
    CHECK(refusal(Exit::usage, [&] { qk_norm_rope_forward(device, p, p, p, p, large, 1e-5); }) ==
          "RoPE on the GPU supports head sizes up to 256, not 264");
    device.workspace.bytes = 16;
    CHECK(refusal(Exit::out_of_memory, [&] { rmsnorm_backward(device, p, p, p, p, p, p, 1, 8, {}, {}); }) ==
          "the backward of RMSNorm needs 32 bytes of workspace and has 16");
}

TEST_CASE("GPU checksums: the sums of pieces are the CPU's, of float32 and of bf16", "[gpu][ops]") {
    const GPU device = test_gpu();
    const std::vector<Piece> pieces = {{0, 1, 9}, {1, 700}, {700, 700}, {700, 4001}};
    std::vector<float> floats(4001);
    std::vector<bf16> halves(floats.size());
    for (size_t i = 0; i < floats.size(); i++) floats[i] = 1 / float(i + 1), halves[i] = from_float<bf16>(floats[i]);
    const DeviceMemory<float> on_gpu(floats);
    const DeviceMemory<bf16> halves_on_gpu(halves);
    const Checksums<GPU> of_gpu(device, pieces);
    const Checksums<CPU> of_cpu(CPU{}, pieces);
    CHECK(of_gpu.of(device, on_gpu.data()) == of_cpu.of(CPU{}, floats.data()));
    CHECK(of_gpu.of(device, halves_on_gpu.data()) == of_cpu.of(CPU{}, halves.data()));
    CHECK(of_gpu.of(device, on_gpu.data())[2] == 0);
}

/// rows: one, fewer than a chunk of the column sums, two chunks and a part; columns: one block of them, a block and a part.
TEMPLATE_TEST_CASE("linear layers on the GPU against the CPU in double", "[gpu][linear]", bf16, float) {
    for (auto [rows, IN, OUT] : {std::array{1, 8, 16}, {24, 56, 40}, {136, 16, 264}, {521, 40, 24}})
        for (bool bias : {false, true})
            for (Write write : {Write::overwrite, Write::add}) {
                INFO(rows << " rows, " << IN << " in, " << OUT << " out, bias " << bias << ", adds " << (write == Write::add));
                const double rounded_with_it = write == Write::add ? 0.25 : 0;   // what the input's gradient is added to
                check_on<TestType>(test_gpu(), Linear{rows, IN, OUT, bias, write},
                                   std::max(1e-6, std::is_same_v<TestType, bf16> ? rounded_with_it * 0x1p-8 : 0));
            }
}

TEST_CASE("linear layers on the GPU plan each kind of product once and give the same bits again", "[gpu][linear]") {
    const Linear op{16, 8, 24, true, Write::overwrite};
    const Arrays<double> in = random_inputs<double>(op);   // exact in float32
    const DeviceArray<float> inp(in[0]), weight(in[1]), bias(in[2]), other(random_numbers<double>(24, 9));
    const auto forward = [&](const DeviceArray<float>& added) {
        const DeviceArray<float> out(size_t(16) * 24, NAN);
        linear_forward(test_gpu(), out.data(), inp.data(), weight.data(), added.data(), 16, 8, 24);
        CHECK(difference(out.numbers(), op.formula({in[0], in[1], added.numbers()}), rounding<float>(8)) == "");
        return out.numbers();
    };
    const size_t before = Matmuls::of_process().plans_made();
    const std::vector<double> first = forward(bias);
    const size_t after = Matmuls::of_process().plans_made();
    CHECK(after <= before + 1);
    CHECK(bit_difference(forward(bias), first) == "");
    forward(other);
    CHECK(Matmuls::of_process().plans_made() == after);
}

TEST_CASE("linear layers on the GPU take addresses that are multiples of 16 bytes and of no more", "[gpu][linear]") {
    const int rows = 24, IN = 16, OUT = 32, shift = 8;   // numbers, of 2 bytes
    auto shifted = [](std::vector<double> numbers) {
        numbers.insert(numbers.begin(), shift, NAN);
        return numbers;
    };
    const Linear op{rows, IN, OUT, true, Write::overwrite};
    Arrays<double> in = random_inputs<double>(op);
    for (std::vector<double>& array : in) array = rounded<bf16>(array);
    const DeviceArray<bf16> inp(shifted(in[0])), weight(shifted(in[1])), bias(shifted(in[2]));
    const DeviceArray<bf16> out(size_t(rows) * OUT + shift, NAN);
    linear_forward(GPU{}, out.data() + shift, static_cast<const bf16*>(inp.data() + shift),
                   static_cast<const bf16*>(weight.data() + shift), static_cast<const bf16*>(bias.data() + shift), rows, IN, OUT);
    std::vector<double> actual = out.numbers();
    actual.erase(actual.begin(), actual.begin() + shift);
    CHECK(difference(actual, op.formula(in), device_rounding<bf16>(IN)) == "");
}

TEST_CASE("linear layers on the GPU say which product failed and why", "[gpu][linear]") {
    const DeviceArray<bf16> out(16 * 24 + 8, NAN), inp(16 * 8, 1), weight(24 * 8, 1), dout(16 * 24, 1);
    const auto complains = [](Exit code, const std::string& words, auto work) {
        CHECK(refusal(code, work).find(words) != std::string::npos);
    };
    const bf16* no_bias = nullptr;
    complains(Exit::rank, "the product (16, 8) x (24, 8)^T, bf16 to bf16 got the address", [&] {
        linear_forward(test_gpu(), out.data() + 1, inp.data(), weight.data(), no_bias, 16, 8, 24);
    });

    // float32 matrices into a bf16 one: a combination that the library does not have.
    const DeviceArray<float> a(128, 1.0), b(192, 1.0);
    complains(Exit::rank, "no algorithm on this GPU for the product (16, 8) x (24, 8)^T, float32 to bf16", [&] {
        matmul(test_gpu(), out.data(), Transpose::no, a.data(), Transpose::yes, b.data(), no_bias, no_bias, 16, 24, 8);
    });

    const GPU without_workspace{};
    const DeviceArray<float> dweight(24 * 8, NAN), dbias(24, NAN);
    complains(Exit::out_of_memory, "bytes of workspace", [&] {
        linear_backward_weight(without_workspace, dweight.data(), dbias.data(), dout.data(), inp.data(), 16, 8, 24, Write::overwrite);
    });
}
