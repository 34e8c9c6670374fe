// A decoder that writes texts with the mechanisms for inference (model/generate/mechanisms.cuh), and texts and items read by these
// mechanisms (attention/inference/reader.h), against a decoder that writes the same text token by token behind a prompt.
#include "attention/inference/reader.h"

#include "model/generate/mechanisms.cuh"
#include "model/run/shared_contexts.cuh"
#include "tests/items.h"

namespace {

/// `B` texts of T tokens, of a model whose attention is sharp, so that there is something to leave out.
struct Sharp : CausalTrial<double> {
    Sharp(int B, int T)
        : CausalTrial<double>(config_of(ModelShape{}), B, T, B, T, Recompute::nothing, 0, 1, Mode::inference) {
        for (const auto& layer : gpt.net.layers)
            for (size_t n = 0; n < layer.q_norm.size; n++) gpt.weights[layer.q_norm.offset + n] *= 6;
    }
    int V() const { return gpt.net.config.V; }
    std::vector<int32_t> text(int b) const { return {tokens.begin() + b * T, tokens.begin() + (b + 1) * T}; }
    std::vector<double> logits(int row, int rows) {
        const double* found = gpt.logits(CPU{}, row, rows);
        return {found, found + size_t(rows) * V()};
    }
};

/// Logits (tokens, V) after each token from the last of the prompt on, by a decoder, and what it has counted.
std::pair<std::vector<double>, InferenceCount> written_by(Sharp& model, const Inference& how, const std::vector<int32_t>& text,
                                                          int prompt) {
    Decoder<CPU, double> decoder(CPU{}, model.gpt, 1, mechanism_of(how, model.gpt));
    decoder.allocate();
    std::vector<double> all;
    for (int T = prompt; T <= int(text.size()); T++) {
        const std::vector<int32_t> ids(text.begin(), text.begin() + T);
        const double* next = T == prompt ? decoder.begin(0, ids) : decoder.next({{0, &ids}});
        all.insert(all.end(), next, next + model.V());
    }
    return {all, decoder.read()};
}

Inference psa(double eps, int block, PsaBound bound) { return {InferenceAttention::psa, {eps, block, bound}, {}}; }
Inference adaspa(double sparsity) { return {InferenceAttention::adaspa, {}, {sparsity, 64}}; }

constexpr int HEADS = 2 * 4;   // in both layers

}   // namespace

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

TEST_CASE("reader: psa reads a text as if each of its tokens were the newest", "[psa]") {
    const Threads one(1);
    const int T = 140;
    for (const auto& how : {psa(0.9, 8, PsaBound::mean), psa(0.99, 1, PsaBound::upper), psa(0, 16, PsaBound::mean)}) {
        Sharp model(2, T), writer(1, T);
        const InferenceReader<double> reader(model.gpt.net.config, how);
        const InferenceCount read = forward_read_by(reader, model.gpt, model.feed.put(CPU{}, model.tokens.data(), nullptr, 2, T));
        InferenceCount written;
        for (int b = 0; b < 2; b++) {
            const auto [logits, count] = written_by(writer, how, model.text(b), 1);
            CHECK(difference(model.logits(b * T, T), logits, {1e-10}) == "");
            written.add(count);
        }
        CHECK(read.psa.visited < 0.9 * read.psa.cached);
        CHECK(read.psa.visited == written.psa.visited + 2 * HEADS);   // a decoder takes its first token as a prompt
        CHECK(read.psa.rows == 2 * HEADS * T);
        CHECK(read.mass_kept() <= 1);
        CHECK(read.pairs_read() == read.psa.visited / (2 * HEADS * T * (T + 1) / 2.0));
    }
}

TEST_CASE("reader: adaspa reads a text as ./generate reads a prompt, and one that keeps everything is dense", "[adaspa]") {
    const int T = 300;
    Sharp model(1, T), writer(1, T);
    const Batch batch = model.feed.put(CPU{}, model.tokens.data(), nullptr, 1, T);
    const InferenceCount read = forward_read_by(InferenceReader<double>(model.gpt.net.config, adaspa(0.6)), model.gpt, batch);
    const std::vector<double> sparse = model.logits(0, T);
    const auto [last, written] = written_by(writer, adaspa(0.6), model.text(0), T);
    CHECK(difference(std::vector<double>(sparse.end() - model.V(), sparse.end()), last, {1e-10}) == "");
    CHECK(read.adaspa.kept == written.adaspa.kept);
    CHECK(read.pairs_read() < 0.7);
    CHECK(read.mass_kept() < 1);

    model.gpt.forward(CPU{}, batch);
    const std::vector<double> dense = model.logits(0, T);
    CHECK(difference(sparse, dense, {1e-6}) != "");
    for (const Inference& all : {adaspa(0), psa(1, 16, PsaBound::upper), psa(1, 7, PsaBound::mean)}) {
        const InferenceCount everything = forward_read_by(InferenceReader<double>(model.gpt.net.config, all), model.gpt, batch);
        CHECK(difference(model.logits(0, T), dense, {1e-10}) == "");
        CHECK(everything.pairs_read() == 1);
        CHECK(everything.mass_kept() == Approx(1).epsilon(1e-12));
    }
}

TEST_CASE("reader: an item's context is a prompt, and each answer continues it token by token", "[psa][adaspa]") {
    const int context = 200, T = 400;
    Sharp model(1, T), writer(1, T);
    EvaluationItem item;
    for (const int length : {1, 9, 30}) {
        Answer answer{{model.tokens.begin(), model.tokens.begin() + context}, context, 1};
        for (int n = 0; n < length; n++) answer.tokens.push_back(model.tokens[size_t(context + 40 * length % 160 + n)]);
        item.answers.push_back(answer);
    }
    const auto score = [&](const Answer& answer, const std::vector<double>& logits) {
        return log_likelihood(answer, logits.data(), model.V());
    };
    for (const auto& how : {psa(0.8, 8, PsaBound::mean), adaspa(0.7)}) {
        const InferenceReader<double> reader(model.gpt.net.config, how);
        SharedContexts<CPU, double> shared(CPU{}, model.gpt, model.feed, &reader), dense(CPU{}, model.gpt, model.feed);
        shared.allocate(), dense.allocate();
        const std::vector<double> found = shared.log_likelihoods({&item, 1});
        const std::vector<double> of_dense = dense.log_likelihoods({&item, 1});
        CHECK(difference(found, of_dense, {1e-6}) != "");
        InferenceCount written;
        for (size_t a = 0; a < item.answers.size(); a++) {
            const Answer& answer = item.answers[a];
            const std::vector<int32_t> read_tokens(answer.tokens.begin(), answer.tokens.end() - 1);
            const auto [logits, count] = written_by(writer, how, read_tokens, context);
            INFO("answer " << a << " of " << describe(count, PsaBound::mean));
            CHECK(found[a] == Approx(score(answer, logits)).epsilon(1e-9));
            CHECK(of_dense[a] == Approx(score(answer, written_by(writer, {}, read_tokens, context).first)).epsilon(1e-9));
            written.add(count);
        }
        const bool reads_answers = how.attention == InferenceAttention::psa;
        const InferenceCount read = shared.read();
        CHECK(read.psa.visited == written.psa.visited);
        CHECK(read.psa.rows == (reads_answers ? HEADS * (0 + 8 + 29) : 0));
        CHECK(read.adaspa.heads == (reads_answers ? 0 : HEADS));   // once for all answers
        CHECK(3 * read.adaspa.kept == written.adaspa.kept);
        CHECK((shared.read().psa.rows == 0 && shared.read().adaspa.heads == 0));
    }
}

TEST_CASE("reader: what was read in words", "[psa][adaspa]") {
    InferenceCount count;
    CHECK(describe(count, PsaBound::mean).empty());
    count.psa = {30, 120, 4, 3, 0.5};
    CHECK(describe(count, PsaBound::mean) ==
          "psa: read 25.0% of the cached pairs; estimated share of the attention mass: 0.7500 on average, at least 0.5000");
    CHECK(describe(count, PsaBound::upper).find("; certified share") != std::string::npos);
    InferenceCount other;
    other.adaspa = {1, 2, 4, 3};
    CHECK(describe(other, PsaBound::mean) ==
          "adaspa: read 50.0% of the pairs of blocks of prompts, which hold 0.7500 of the attention mass");
}
