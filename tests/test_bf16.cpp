// bf16 as the CPU keeps it: rounding, products of a few rows and of many, and loading.
#include <cmath>
#include <limits>
#include <span>

#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "tests/ops.h"
#include "tests/tiny_run.h"

namespace {

float rounded(float x) { return float(StoredBf16(x)); }

std::vector<StoredBf16> stored(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

/// A layer of `rows` rows, from a matrix of floats or of bf16, and each row by itself.
template <class W>
void check_rows(const std::vector<W>& weight, int rows, int IN, int OUT, bool with_bias) {
    INFO("rows " << rows << ", in " << IN << ", out " << OUT << ", bytes of a weight " << sizeof(W));
    const std::vector<float> x = random_numbers<float>(size_t(rows) * IN, 1), biases = random_numbers<float>(OUT, 2);
    const float* const bias = with_bias ? biases.data() : nullptr;
    std::vector<float> out(size_t(rows) * OUT), alone(OUT);
    linear_forward(CPU{}, out.data(), x.data(), Matrix<float>(weight.data()), bias, rows, IN, OUT);
    const Arrays<double> in = {{x.begin(), x.end()}, {weight.begin(), weight.end()}, {biases.begin(), biases.end()}};
    CHECK(difference(out, Linear{rows, IN, OUT, with_bias, Write::overwrite}.formula(in), rounding<float>(IN + 1)) == "");
    for (int r = 0; r < rows && rows <= FEW_ROWS; r++) {
        linear_forward(CPU{}, alone.data(), x.data() + size_t(r) * IN, Matrix<float>(weight.data()), bias, 1, IN, OUT);
        CHECK(bit_difference(alone, std::vector<float>(out.begin() + r * OUT, out.begin() + (r + 1) * OUT)) == "");
    }
}

}   // namespace

TEST_CASE("bf16: the nearest number, the even one of two, and what is not finite", "[bf16]") {
    const float step = 1.0f / 128;   // behind 1
    CHECK(rounded(1) == 1);
    CHECK(rounded(-0.15625f) == -0.15625f);
    CHECK(rounded(1 + step / 4) == 1);
    CHECK(rounded(1 + step / 2) == 1);
    CHECK(rounded(1 + step * 3 / 2) == 1 + 2 * step);
    CHECK(rounded(std::nextafter(1 + step / 2, 2.0f)) == 1 + step);
    CHECK(rounded(-1 - step * 3 / 4) == -1 - step);
    CHECK(std::signbit(rounded(-0.0f)));
    CHECK(rounded(std::numeric_limits<float>::denorm_min() * 65536) == std::numeric_limits<float>::denorm_min() * 65536);
    CHECK(rounded(std::numeric_limits<float>::max()) == INFINITY);
    CHECK(rounded(-INFINITY) == -INFINITY);
    CHECK(std::isnan(rounded(NAN)));
    CHECK(std::isnan(rounded(std::bit_cast<float>(0x7f800001u))));   // whose upper half alone is infinity
}

TEST_CASE("bf16: layers of few rows and of many, of any sizes; few rows have the bits of each alone", "[bf16][ops]") {
    const Threads two(2);
    for (const auto& [IN, OUT] : {std::pair{1, 1}, {7, 3}, {16, 4}, {33, 5}, {100, 131}, {300, 300}}) {
        const std::vector<float> whole = random_numbers<float>(size_t(IN) * OUT, 3);
        for (int rows : {1, 2, 3, 4, 5, 8, FEW_ROWS, FEW_ROWS + 1, 70})
            for (bool bias : {false, true}) {
                check_rows(whole, rows, IN, OUT, bias);
                check_rows(stored(whole), rows, IN, OUT, bias);
            }
    }
}

TEST_CASE("bf16: a look-up widens", "[bf16][ops]") {
    const std::vector<float> table = random_numbers<float>(5 * 9, 4);
    const std::vector<StoredBf16> rows = stored(table);
    const std::vector<int32_t> tokens = {4, 0, 4};
    std::vector<float> out(3 * 9), expected;
    for (int32_t token : tokens)
        for (int c = 0; c < 9; c++) expected.push_back(rounded(table[size_t(token) * 9 + c]));
    embedding_forward(CPU{}, out.data(), tokens.data(), Matrix<float>(rows.data()), 3, 9);
    CHECK(out == expected);
}

TEST_CASE("bf16: matrices are loaded rounded into memory of their own, all else as it is; none becomes infinite", "[bf16][checkpoint]") {
    TemporaryFolder folder;
    TinyRun run;
    const fs::path path = run.save(folder / "run", 1);
    TensorList list(Stored::as_bf16);
    Slot embedding, projection;
    list.add_mechanism([&] {   // so that a folder may lack them
        embedding = list.add_matrix("model.embed_tokens.weight", {16, 4}, normal(0.02));
        projection = list.add_matrix("model.layers.0.self_attn.q_proj.weight", {3, 5}, normal(0.02));
    });
    list.align();
    const Slot norm = list.add("model.norm.weight", {4}, ones(), Decay::no);
    CHECK(list.size() == 4);
    CHECK(list.bf16_size() == 96);   // 64 + 15, and padding up to a cache line
    CHECK(projection.offset == 64);
    std::vector<float> weights(list.size());
    std::vector<StoredBf16> matrices(list.bf16_size());
    const auto load = [&] { return load_weights(path, list, 1, weights.data(), matrices.data()); };
    CHECK(load().empty());
    for (size_t n = 0; n < embedding.size + projection.size; n++) REQUIRE(float(matrices[n]) == rounded(run.weights[n]));
    CHECK(std::equal(weights.begin(), weights.end(), run.weights.begin() + run.list.find("model.norm.weight")->slot.offset));

    std::vector<float> too_large(64, 0.5f);
    too_large[5] = 3.4e38f;
    fs::remove(path / "manifest.json");   // which would notice
    fs::remove(path / "model.safetensors");
    write_safetensors(path / "model.safetensors", {{"model.embed_tokens.weight", {16, 4}, too_large.data()}});
    const std::string sentence = sentence_of([&] { load(); });
    CHECK(contains(sentence, "model.embed_tokens.weight\" holds inf at index 5 when rounded to bf16"));

    fs::remove(path / "model.safetensors");
    write_safetensors(path / "model.safetensors", {{"model.norm.weight", {4}, too_large.data()}});
    CHECK(load().size() == 2);   // what is missing is initialised where it lies
    std::vector<float> fresh(run.list.size());
    initialise(run.list, 1, fresh.data());
    for (size_t n = 0; n < embedding.size + projection.size; n++) REQUIRE(float(matrices[n]) == rounded(fresh[n]));
    CHECK(weights[norm.offset] == 0.5f);
}

TEST_CASE("bf16: numbers that are stored as bf16 are read as they are", "[bf16][checkpoint]") {
    const std::vector<StoredBf16> numbers = stored({1.5f, -3e38f, 1e-40f});
    StoredTensor tensor{"t", "BF16", {3}, 3, std::as_bytes(std::span(numbers))};
    std::vector<StoredBf16> out(3);
    convert_to_bf16(tensor, out.data(), "here");
    for (int n = 0; n < 3; n++) CHECK(out[n].bits == numbers[n].bits);
    tensor.dtype = "I16";
    CHECK(contains(sentence_of([&] { convert_to_bf16(tensor, out.data(), "here"); }), "stored as I16"));
}
