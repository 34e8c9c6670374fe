// A text that is written token by token against one pass over the whole.
#pragma once
#include <map>
#include <string>

#include "model/generate/decode.cuh"
#include "tests/whole_model.h"

inline const Sampling GREEDY{0, 0, 1, 1};

inline Config config_of_long_text(const ModelShape& form = {}, const std::map<std::string, double>& settings = {}) {
    Config c = with_choices(config_of(form));
    for (const auto& [key, value] : settings) c.settings[key] = value;
    return c;
}

/// Writes counts[n] tokens greedily behind prompt n, in the decoder's places; done(text) is called with each finished text.
template <class Decoder, class Done>
void write_greedily(Decoder& decoder, const std::vector<std::vector<int32_t>>& prompts, const std::vector<int>& counts, Done done) {
    size_t begun = 0, ended = 0;
    write_texts(
        decoder,
        [&](Text& text) {
            if (begun == prompts.size()) return false;
            text = {begun, prompts[begun], prompts[begun].size(), GREEDY};
            begun++;
            return true;
        },
        [&](const Text& text) {
            if (int(text.written()) < counts[text.number]) return true;
            ended++;
            done(text);
            return false;
        });
    CHECK(ended == prompts.size());
}

/// Writes `count` tokens behind `text`, greedily, by passes of a model over its last `room` tokens. Returns the logits (V) of each pass.
template <class X, template <class> class Model, class Device>
std::vector<std::vector<X>> write_by_passes(Device device, Model<X>& model, std::vector<int32_t>& text, int count, int room) {
    const int V = model.gpt.net.config.V;
    std::vector<std::vector<X>> all(count, std::vector<X>(V));
    for (int n = 0; n < count; n++) {
        const int T = std::min(int(text.size()), room);
        model.gpt.forward(device, model.feed.put(device, text.data() + text.size() - T, nullptr, 1, T));
        to_host(device, all[n].data(), model.gpt.logits(device, T - 1, 1), V);
        text.push_back(sample_token(all[n].data(), V, GREEDY, n));
    }
    return all;
}

/// Writes greedily up to T tokens with a cache, and compares every row of logits with that of one pass over the whole text.
template <class X>
void check_whole_text(const Variants& variants, const Config& config, int prompt, int T, double tolerance) {
    const Threads one(1);
    INFO("T " << T << ", key heads " << config.NKV);
    Trial<X> trial(variants, config, 1, prompt, 1, T, Recompute::nothing, 0, 1, Mode::inference);
    auto& gpt = trial.gpt;
    const int V = gpt.net.config.V;
    REQUIRE(gpt.net.all(&LayerFacts::decodes));
    Decoder<CPU, X> decoder(CPU{}, gpt);
    decoder.allocate();
    std::vector<int32_t> text = trial.tokens;
    std::vector<X> rows;
    for (const X* logits = decoder.begin(0, text);; logits = decoder.next({{0, &text}})) {
        rows.insert(rows.end(), logits, logits + V);
        if (int(text.size()) == T) break;
        text.push_back(sample_token(logits, V, GREEDY, 0));
    }
    gpt.forward(CPU{}, trial.feed.put(CPU{}, text.data(), nullptr, 1, T));
    const X* whole = gpt.logits(CPU{}, prompt - 1, T - prompt + 1);
    CHECK(difference(rows, std::vector<X>(whole, whole + rows.size()), {tolerance}) == "");
    for (int t = prompt; t < T; t++) REQUIRE(sample_token(whole + size_t(t - prompt) * V, V, GREEDY, 0) == text[t]);
}
