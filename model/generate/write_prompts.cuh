// Generation for ./generate, the same on every device: loads a checkpoint and continues prompts.
#pragma once
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <omp.h>

#include "model/base/process.h"
#include "model/checkpoint/load.cuh"
#include "model/generate/mechanisms.cuh"
#include "model/generate/output.h"
#include "model/generate/prompts.h"
#include "model/generate/write_texts.h"
#include "model/run/machine.cuh"
#include "model/run/report.h"
#include "model/run/summary.h"

struct WritingJob {
    const std::string& checkpoint;
    const Config& config;
    const std::vector<Prompt>& prompts;
    const Inference& inference;
    Sampling sampling;
    int tokens, batch;                // maximum new tokens per text, texts per batch
    std::vector<int> ends_of_text;    // each of these tokens ends a text
    bool dry_run;
    TextOutput& output;
    JsonLines* log;                   // of --log; null without it
};

/// Generates on a GPU, with `weights` "fp32", "bf16" or "auto". False if `device` is "auto" and the CPU is used; Exit::usage if it is
/// "cuda" and there is no GPU, or no GPU half in the program (without_gpu.cpp).
bool write_on_gpu(const WritingJob& job, const std::string& device, const std::string& weights);

/// Prints the times on stderr, because stdout is for the text.
inline void print_times(const WritingTimes& times, size_t kept_bytes) {
    const auto rate = [](size_t tokens, double seconds) { return text("%.1f tokens/s", double(tokens) / seconds); };
    std::string line = times.texts == 1 ? text("prefill: %zu tokens, first new token after %.3f s", times.prompt_tokens, times.reading)
                                        : text("prefill: %zu prompts, %zu tokens, %.3f s", times.texts, times.prompt_tokens, times.reading);
    line += " (" + rate(times.prompt_tokens, times.reading) + "); ";
    if (const size_t later = times.later_tokens())
        line += text("decode: %zu tokens in %.3f s (%s); ", later, times.writing, rate(later, times.writing).c_str());
    line += kept_bytes ? "KV cache: " + human_bytes(double(kept_bytes))
                       : "no KV cache: each token took a pass over the whole text";
    std::fprintf(stderr, "%s\n", line.c_str());
}

/// Writes the measurements as the only record of --log and finishes the file. `where`: device, machine and weights. `kept_bytes`: bytes
/// of the KV cache; 0 without one. Exit::data if the file cannot be written.
inline void log_writing(JsonLines& log, const std::vector<JsonLines::Field>& where, const WritingTimes& times, size_t kept_bytes,
                        const InferenceCount& read) {
    std::vector<JsonLines::Field> fields = {{"event", "writing"},
                                            {"texts", int64_t(times.texts)},
                                            {"prompt_tokens", int64_t(times.prompt_tokens)},
                                            {"reading_seconds", times.reading},
                                            {"later_tokens", int64_t(times.later_tokens())},
                                            {"writing_seconds", times.writing},
                                            {"cache_bytes", int64_t(kept_bytes)}};
    append(fields, of_program());
    append(fields, where);
    if (read.psa.rows > 0 || read.adaspa.heads > 0)
        append(fields, {{"pairs_read", read.pairs_read()}, {"mass_kept", read.mass_kept()}});
    log.write(fields);
    log.finish();
}

/// Positions for the longest prompt and its new tokens, at most the model's.
inline int positions_for(const WritingJob& job) {
    size_t longest = 0;
    for (const Prompt& prompt : job.prompts) longest = std::max(longest, prompt.ids.size());
    return int(std::min<int64_t>(job.config.max_positions, int64_t(longest) + job.tokens));
}

inline void require_no_look_ahead(const Qwen& net, const std::string& checkpoint) {
    const char* const variant = net.variant.name;
    if (!net.all(&LayerFacts::is_causal) && !net.any(&LayerFacts::needs_known_text))
        fail(Exit::usage, checkpoint, ": ", variant, " with its settings reads later tokens, which do not exist while text is "
             "generated; choose its causal form with --set KEY=0 (the keys: ./train_", variant, " --help)");
}

/// Exit::out_of_memory if the plan does not fit.
template <class Device>
void require_memory_for_texts(Device device, const std::vector<MemoryUse>& plan, int places, int T) {
    const size_t needed = total_bytes(plan), available = std::min(available_memory(device), address_space_left());
    if (needed > available)
        fail(Exit::out_of_memory, places, places == 1 ? " text" : " texts side by side", " of ", T, " tokens need ",
             human_bytes(double(needed)), ", but the ", std::is_same_v<Device, CPU> ? "machine" : "GPU", " has ",
             human_bytes(double(available)), " left: lower --tokens", places == 1 ? "" : " or --batch");
}

/// Hands each token to job.output. The matrices are `stored` so (GPT). Exit::signal if a signal came before the last.
template <class X, class Device>
void write_prompts(Device device, const Variants& variants, const WritingJob& job, Stored stored) {
    require_sizes(device, job.config);
    GPT<Device, X> gpt(variants, job.config, 1, positions_for(job), stored);
    require_no_look_ahead(gpt.net, job.checkpoint);
    const int places = std::min({job.batch, int(job.prompts.size()), gpt.T});
    Decoder<Device, X> decoder(device, gpt, places, mechanism_of(job.inference, gpt, places));
    std::vector<MemoryUse> plan = gpt.memory_plan();
    plan.push_back({"KV cache", decoder.cache_bytes()});
    if (const size_t bytes = decoder.row_bytes()) plan.push_back({"rows of a decode step", bytes});
    add_overheads(device, plan, 0, false);
    if (job.dry_run) return print_memory(plan);
    require_memory_for_texts(device, plan, places, gpt.T);
    gpt.allocate(device);
    load_for_inference(device, gpt, job.checkpoint);
    if (gpt.net.any(&LayerFacts::needs_known_text))
        std::fprintf(stderr, "warning: with these settings of %s, tokens of the text read later ones\n", variants.own.name);
    decoder.allocate();

    size_t begun = 0, done = 0;
    const auto begin = [&](Text& text) {
        if (begun == job.prompts.size() || stop_requested()) return false;
        const Prompt& prompt = job.prompts[begun];
        text = {begun++, prompt.ids, prompt.ids.size(), job.sampling};
        text.sampling.seed = prompt.seed.value_or(job.sampling.seed);
        return true;
    };
    const auto wrote = [&](const Text& text) {
        job.output.add(text);
        const auto& ends = job.ends_of_text;
        const bool ended = std::find(ends.begin(), ends.end(), text.ids.back()) != ends.end();
        const bool has_all = text.written() == size_t(job.tokens);
        if (!ended && !has_all && !stop_requested()) return true;
        job.output.end(text, ended ? TextEnd::end_of_text : has_all ? TextEnd::length : TextEnd::stopped);
        done += ended || has_all;
        return false;
    };
    const WritingTimes times = write_texts(decoder, begin, wrote);
    if (times.texts == 0) fail(Exit::signal, "stopped by a signal before the first token");
    job.output.finish();
    print_times(times, decoder.cache_bytes());
    if (job.log)
        log_writing(*job.log,
                    {{"variant", variants.own.name},
                     {"device", std::is_same_v<Device, CPU> ? "cpu" : "cuda"},
                     {"machine", describe(device, omp_get_max_threads())},
                     {"weights", sizeof(X) == 2 || stored == Stored::as_bf16 ? "bf16" : "fp32"}},
                    times, decoder.cache_bytes(), decoder.read());
    const std::string read = describe(decoder.read(), job.inference.psa.bound);
    if (!read.empty()) std::fprintf(stderr, "%s\n", read.c_str());
    if (done == job.prompts.size()) return;
    if (job.prompts.size() == 1) fail(Exit::signal, "stopped by a signal after ", times.tokens, " of ", job.tokens, " tokens");
    fail(Exit::signal, "stopped by a signal after ", done, " of ", job.prompts.size(), " texts");
}
