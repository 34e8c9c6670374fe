// Texts that a model writes on the GPU with psa and adaspa (attention/inference/psa_rows.cuh, adaspa_gpu.cuh) against the CPU's, in double:
// logits, and what was read. On a machine without a GPU it runs on the emulator.
#include "model/generate/mechanisms.cuh"
#include "tests/gpu/gpu_trial.h"

namespace {

struct HeadSizes {
    int NH, NKV, HS;
};

/// A causal model on both devices whose attention is sharp, so that there is something to leave out, and a decoder on each.
template <class X>
struct Writers {
    Trial<double> exact;
    GPT<GPU, X> gpt;
    int places;
    Decoder<CPU, double> on_cpu;
    Decoder<GPU, X> on_gpu;

    Writers(const HeadSizes& heads, const Inference& how, int room, int places_, double sharpness)
        : exact(Variants(::on_cpu::causal), with_heads(small_config(false), heads.NH, heads.NKV, heads.HS), 1, room, 1, room,
                Recompute::nothing, 0, 1, Mode::inference),
          gpt(Variants(::on_gpu::causal), exact.gpt.net.config, 1, room, Mode::inference), places(places_),
          on_cpu(CPU{}, exact.gpt, places, mechanism_of(how, exact.gpt, places)),
          on_gpu(test_gpu(), gpt, places, mechanism_of(how, gpt, places)) {
        for (const auto& layer : exact.gpt.net.layers)
            for (size_t n = 0; n < layer.q_norm.size; n++) exact.gpt.weights[layer.q_norm.offset + n] *= sharpness;
        gpt.allocate(test_gpu());
        load_rounded(test_gpu(), gpt, round_weights<X>(exact));
        on_cpu.allocate(), on_gpu.allocate();
    }

    /// Logits of texts of these lengths, written from `steps` tokens before their ends, the last text first.
    template <class D>
    std::vector<double> write(D& decoder, const std::vector<int>& lengths, int steps) const {
        std::vector<double> all;
        const auto add = [&](const auto* logits, size_t rows) { all.insert(all.end(), logits, logits + rows * decoder.vocabulary()); };
        std::vector<std::vector<int32_t>> ids;
        for (int n = 0; n < int(lengths.size()); n++) {
            ids.emplace_back(exact.tokens.begin(), exact.tokens.begin() + lengths[n] - steps);
            add(decoder.begin(n, ids[n]), 1);
        }
        for (int step = 0; step < steps; step++) {
            std::vector<PlacedText> rows;
            for (int n = int(lengths.size()) - 1; n >= 0; n--) {
                ids[n].push_back(exact.tokens[ids[n].size()]);
                rows.push_back({n, &ids[n]});
            }
            add(decoder.next(rows), rows.size());
        }
        return all;
    }
};

/// Texts of these lengths; then, if there are several, in each other's places. Returns the GPU's logits.
template <class X>
std::vector<double> check_texts(const HeadSizes& heads, const Inference& how, std::vector<int> lengths, int steps, double sharpness = 6) {
    INFO(heads.NH << " heads on " << heads.NKV << " of " << heads.HS << ", eps " << how.psa.eps << ", block " << how.psa.block << ", upper "
                  << (how.psa.bound == PsaBound::upper) << ", sparsity " << how.adaspa.sparsity << ", block " << how.adaspa.block);
    const Threads one(1);
    Writers<X> writers(heads, how, *std::max_element(lengths.begin(), lengths.end()), int(lengths.size()), sharpness);
    const Tolerance tolerance = std::is_same_v<X, float> ? Tolerance{2e-5 * sharpness, 1e-5} : Tolerance{5e-2, 1e-2};
    std::vector<double> all;
    for (int round = 0; round < std::min(2, int(lengths.size())); round++) {
        const std::vector<double> logits = writers.write(writers.on_gpu, lengths, steps);
        CHECK(difference(logits, writers.write(writers.on_cpu, lengths, steps), tolerance) == "");
        all.insert(all.end(), logits.begin(), logits.end());
        std::rotate(lengths.begin(), lengths.end() - 1, lengths.end());
    }
    const InferenceCount is = writers.on_gpu.read(), should = writers.on_cpu.read();
    if (std::is_same_v<X, float>) CHECK(is.psa.visited == should.psa.visited);
    if (std::is_same_v<X, float>) CHECK(is.adaspa.kept == should.adaspa.kept);
    CHECK(is.psa.cached == should.psa.cached);
    CHECK(is.psa.rows == should.psa.rows);
    CHECK(is.adaspa.candidates == should.adaspa.candidates);
    CHECK(is.adaspa.heads == should.adaspa.heads);
    if (how.attention == InferenceAttention::psa) CHECK(std::abs(is.psa.least_retained - should.psa.least_retained) <= 1e-3);
    CHECK(std::abs(is.mass_kept() - should.mass_kept()) <= 1e-3);
    return all;
}

Inference with_psa(double eps, int block, PsaBound bound) { return {InferenceAttention::psa, {eps, block, bound}, {}}; }
Inference with_adaspa(double sparsity, int block) { return {InferenceAttention::adaspa, {}, {sparsity, block}}; }

const PsaBound BOUNDS[] = {PsaBound::mean, PsaBound::upper};

}   // namespace

TEST_CASE("psa on the GPU: texts side by side read the blocks that the CPU's read", "[gpu][psa]") {
    for (PsaBound bound : BOUNDS)
        for (double eps : {0.0, 0.95})
            for (int block : {1, 16}) check_texts<float>({4, 2, 32}, with_psa(eps, block, bound), {131, 37}, 2);
}

TEST_CASE("psa on the GPU: more heads than four warps compute, blocks of several tiles, prompts that end in a block", "[gpu][psa]") {
    for (PsaBound bound : BOUNDS) {
        check_texts<float>({6, 1, 64}, with_psa(0.9, 16, bound), {70, 49}, 9);
        check_texts<float>({2, 2, 128}, with_psa(0.6, 100, bound), {300, 99, 101}, 2);
    }
    check_texts<float>({16, 1, 32}, with_psa(0.8, 10, PsaBound::upper), {90}, 1);
}

TEST_CASE("psa on the GPU: eps 1 reads everything, also where an estimate of the rest is below any float32", "[gpu][psa]") {
    for (double eps : {0.999999, 1.0}) check_texts<float>({4, 2, 32}, with_psa(eps, 16, PsaBound::mean), {131, 37}, 2, 40);
}

TEST_CASE("psa on the GPU: bf16, and the same bits in every order of threads", "[gpu][psa]") {
    const auto rows = [&] { return check_texts<bf16>({4, 2, 64}, with_psa(0.9, 16, PsaBound::upper), {150, 33}, 3); };
    const std::vector<double> once = rows();
    const Order other(3);
    CHECK(bit_difference(rows(), once) == "");
}

TEST_CASE("psa on the GPU: more query heads on a key head than a block has warps for are refused", "[gpu][psa]") {
    Arena<GPU> nothing;
    CHECK_THROWS_AS(PsaStep::take<GPU>(nothing, {}, {1, 10, 0, 34, 2, 32}), Error);
    PsaStep::take<GPU>(nothing, {}, {1, 10, 0, 32, 2, 32});
}

TEST_CASE("adaspa on the GPU: a prompt reads the blocks that the CPU chooses", "[gpu][adaspa]") {
    check_texts<float>({4, 2, 32}, with_adaspa(0, 128), {64}, 0);
    for (double sparsity : {0.5, 0.8}) check_texts<float>({4, 2, 32}, with_adaspa(sparsity, 64), {321}, 1);
    check_texts<float>({4, 2, 32}, with_adaspa(0.5, 128), {300, 201}, 1);
    check_texts<bf16>({4, 2, 32}, with_adaspa(0.5, 64), {300}, 1);
}
