// Texts from prompts, in batches.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/base/text.h"
#include "model/generate/sampler.h"

/// A prompt and its new tokens.
struct Text {
    size_t number = 0;          // the caller's number of the text
    std::vector<int32_t> ids;   // the prompt's, then the new ones
    size_t prompt = 0;          // tokens of the prompt
    Sampling sampling;
    size_t written() const { return ids.size() - prompt; }
};

/// A text in progress and its place in a Decoder.
struct PlacedText {
    int place;
    const std::vector<int32_t>* ids;   // all of the text so far
};

/// Counts and times of a run. The prefill of a prompt includes the first new token.
struct WritingTimes {
    size_t prompt_tokens = 0, texts = 0, tokens = 0;   // tokens of prompts; texts begun; tokens written
    double reading = 0, writing = 0;                   // seconds until the first token of each text, and for the others
    size_t later_tokens() const { return tokens - texts; }
};

/// Generates all texts, as many at once as the decoder has places. `begin(text)` fills in the next prompt, or returns false after the last
/// one. `wrote(text)` receives a new token, the last of text.ids, and returns whether the text continues. A text does not depend on the
/// others in its batch, up to the rounding of sums. Exit::not_finite if logits are not finite.
template <class Decoder, class Begin, class Wrote>
WritingTimes write_texts(Decoder& decoder, Begin begin, Wrote wrote) {
    WritingTimes times;
    Stopwatch clock;
    std::vector<Text> texts(decoder.places());
    std::vector<int> free, places;   // places without a text; places of texts in progress
    for (int place = decoder.places() - 1; place >= 0; place--) free.push_back(place);

    const auto sampled = [&](int place, const auto* logits) {
        return sample_token(logits, decoder.vocabulary(), texts[place].sampling, texts[place].written());
    };
    const auto add_token = [&](int place, int32_t token, double& seconds) {
        Text& text = texts[place];
        if (token == NO_TOKEN)
            fail(Exit::not_finite, "the logits after token ", text.ids.size(), " of text ", text.number + 1,
                 " are not finite; the weights are damaged, or too large");
        text.ids.push_back(token);
        times.tokens++;
        seconds += clock.lap();
        const bool goes_on = wrote(text);
        clock.lap();   // excludes the time of wrote()
        return goes_on;
    };
    bool more = true;
    while (true) {
        while (more && !free.empty()) {
            const int place = free.back();
            texts[place] = {};
            if (!(more = begin(texts[place]))) break;
            clock.lap();
            times.texts++, times.prompt_tokens += texts[place].prompt;
            if (add_token(place, sampled(place, decoder.begin(place, texts[place].ids)), times.reading))
                free.pop_back(), places.push_back(place);
        }
        if (places.empty()) return times;
        std::vector<PlacedText> rows;
        for (int place : places) rows.push_back({place, &texts[place].ids});
        clock.lap();
        const auto* logits = decoder.next(rows);
        std::vector<int32_t> tokens(places.size());
#pragma omp parallel for
        for (size_t r = 0; r < places.size(); r++) tokens[r] = sampled(places[r], logits + r * decoder.vocabulary());
        std::vector<int> going_on;
        for (size_t r = 0; r < places.size(); r++)
            (add_token(places[r], tokens[r], times.writing) ? going_on : free).push_back(places[r]);
        places = going_on;
    }
}
