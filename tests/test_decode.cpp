// Writing text with the mechanisms for inference (model/generate/mechanisms.cuh): a whole causal model, token by token.
#include "attention/causal.cuh"
#include "model/generate/mechanisms.cuh"
#include "tests/catch.h"
#include "tests/whole_model.h"

namespace {

using Model = CausalTrial<double>;

/// Logits (tokens, V) after each of the tokens that follow the prompt; all are given.
std::vector<double> logits(Decoder<CPU, double>& decoder, const std::vector<int32_t>& text, int prompt, int V) {
    std::vector<double> all;
    for (int T = prompt; T <= int(text.size()); T++) {
        const std::vector<int32_t> ids(text.begin(), text.begin() + T);
        const double* next = T == prompt ? decoder.begin(0, ids) : decoder.next({{0, &ids}});
        all.insert(all.end(), next, next + V);
    }
    return all;
}

struct Run {
    std::vector<double> logits;
    PsaCount psa;
    AdaSpaCount adaspa;
};

/// A text of T tokens, the first `prompt` of them at once.
Run run(const Inference& how, int prompt, int T) {
    const Threads one(1);
    Model model(config_of(ModelShape{}), 1, T, 1, T, Recompute::nothing, 0, 1, Mode::inference);
    for (const auto& layer : model.gpt.net.layers)   // sharp attention, so that there is something to leave out
        for (size_t n = 0; n < layer.q_norm.size; n++) model.gpt.weights[layer.q_norm.offset + n] *= 6;
    Decoder<CPU, double> decoder(CPU{}, model.gpt, 1, mechanism_of(how, model.gpt));
    decoder.allocate();
    Run r;
    r.logits = logits(decoder, model.tokens, prompt, model.gpt.net.config.V);
    r.psa = decoder.read().psa, r.adaspa = decoder.read().adaspa;
    return r;
}

Inference psa(double eps, int block, PsaBound bound) { return {InferenceAttention::psa, {eps, block, bound}, {}}; }
Inference adaspa(double sparsity) { return {InferenceAttention::adaspa, {}, {sparsity, 64}}; }

}   // namespace

TEST_CASE("decode: psa with eps 1 and adaspa without sparsity change nothing", "[decode][psa][adaspa]") {
    const Run dense = run({}, 90, 140);
    CHECK(dense.psa.rows == 0);
    CHECK(dense.adaspa.heads == 0);
    for (PsaBound bound : {PsaBound::mean, PsaBound::upper}) {
        const Run all = run(psa(1, 16, bound), 90, 140);
        CHECK(difference(all.logits, dense.logits, {1e-11}) == "");
        CHECK(all.psa.visited == all.psa.cached);
        CHECK(all.psa.cached == 2 * 4 * (91 + 140) * 50 / 2);   // layers, heads, 50 tokens that see 91 to 140 keys
    }
    const Run all = run(adaspa(0), 90, 140);
    CHECK(difference(all.logits, dense.logits, {1e-11}) == "");
    CHECK(all.adaspa.heads == 2 * 4);
    CHECK(all.adaspa.kept == all.adaspa.candidates);
}

TEST_CASE("decode: what is kept of a text has the bytes of its keys and values, of PSA's blocks, and in a window no more than that", "[decode]") {
    auto bytes = [](const Variants& variants, const Inference& how, int T, double window = 9, double dense_until = 5) {
        Config c = config_of(ModelShape{});   // 2 layers, 2 key heads of 6
        c.settings["attention_window"] = window, c.settings["attention_dense_until"] = dense_until;
        GPT<CPU, double> gpt(variants, c, 1, T, Mode::inference);
        return double(Decoder<CPU, double>(CPU{}, gpt, 1, mechanism_of(how, gpt)).cache_bytes());
    };
    const double keys = 2 * 2 * 2 * 6 * sizeof(double);   // and values of one token
    CHECK(std::abs(bytes(named("causal"), {}, 1000) / (1000 * keys) - 1) < 0.02);
    CHECK(bytes(named("causal"), psa(1, 10, PsaBound::upper), 1000) >= 1.1 * 1000 * keys);
    CHECK(bytes(named("sliding_window"), {}, 1000) < 0.02 * 1000 * keys);
    CHECK(bytes(named("sliding_window"), {}, 1000) == bytes(named("sliding_window"), {}, 2000));
    CHECK(bytes(named("sliding_window"), {}, 1000, 1e9) == bytes(named("causal"), {}, 1000));
    CHECK(bytes(named("dsa"), {}, 1000) == bytes(named("dsa"), {}, 2000));
    CHECK(bytes(named("dsa"), {}, 257, 256, 0) == bytes(named("dsa"), {}, 2000, 256, 0));
    CHECK(bytes(named("dsa"), {}, 512, 256, 512) == bytes(named("dsa"), {}, 2000, 256, 512));   // the first 512 rows see everything
    CHECK(std::abs(bytes(named("fixed_factorized"), {}, 1024) / ((13 + 64 * 3) * keys) - 1) < 0.02);   // 3 of each 16, and a chunk
    CHECK(bytes(named("deepspeed_fixed"), {}, 1024) == bytes(named("causal"), {}, 1024));   // heads of different layouts see all
    for (const char* name : {"longformer", "sinks", "sinks_cache", "dsa_fixed_window", "asga_fixed"}) {
        INFO(name);
        CHECK(bytes(named(name), {}, 1000) == bytes(named(name), {}, 2000));
        CHECK(bytes(named(name), {}, 1000) < 0.1 * 1000 * keys);
    }
    CHECK(bytes(named("longnet"), {}, 1000) == (6 << 3) * keys);   // its longest segment, of config_of()
}
