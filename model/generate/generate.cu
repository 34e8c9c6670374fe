// ./generate: text from a checkpoint of any variant that the program is linked with.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "attention/layers.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/command_line.h"
#include "model/base/error.h"
#include "model/base/process.h"
#include "model/checkpoint/checkpoint.h"
#include "model/device/machine.h"
#include "model/generate/output.h"
#include "model/generate/prompts.h"
#include "model/generate/write_prompts.cuh"
#include "model/generation_config.h"
#include "model/run/inference_options.h"

namespace {
struct Options {
    std::string checkpoint, prompt, prompts, out, log, device = "auto", weights = "auto";
    std::vector<std::string> id_lists, settings;   // "1,2,3", KEY=VALUE
    int tokens = 200, batch = 8, threads = 0;
    Sampling sampling;
    bool gives_temperature = false, gives_top_k = false, gives_top_p = false;
    InferenceOptions inference;
    bool print_ids = false, ignore_eos = false, dry_run = false;
};
}   // namespace

static void add_sampling_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Sampling");
    app.add_option("--tokens", o.tokens, "maximum number of tokens to generate; an end-of-text token ends a text earlier")
        ->transform(whole_number_from(1, 1 << 30));
    app.add_option("--temperature", o.sampling.temperature,
                   "divisor of the logits; 0 always takes the most likely token. Values of generation_config.json override the defaults "
                   "of --temperature, --top-k and --top-p")
        ->check(number_from(0, 1e6));
    app.add_option("--top-k", o.sampling.top_k, "number of most likely tokens to sample from; 0: all")
        ->transform(whole_number_from(0, 1 << 30));
    app.add_option("--top-p", o.sampling.top_p, "total probability of the most likely tokens to sample from")->check(number_from(0, 1));
    app.add_option("--seed", o.sampling.seed, "random seed of sampling")->transform(whole_number_from(uint64_t(0), UINT64_MAX));
    app.add_flag("--ignore-eos", o.ignore_eos, "continue past end-of-text tokens");
}

/// False if --help was given.
static bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Generates text from a checkpoint of any attention variant.");
    const CLI::Validator not_empty([](const std::string& word) { return std::string(word.empty() ? "is empty" : ""); }, "");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.option_defaults()->group("Model");
    app.add_option("--checkpoint", o.checkpoint, "Hugging Face folder, such as a checkpoint of a training run")->required();
    app.add_option("--weights", o.weights,
                   "number type in which the matrices and the KV cache are stored; bf16 takes half the memory and bandwidth of fp32, and "
                   "the CPU computes in fp32 either way; auto: bf16 on a GPU, fp32 on the CPU")
        ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
    app.add_option("--set", o.settings, "KEY=VALUE, a setting of the variant in place of the checkpoint's, such as seer_distil=0")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.option_defaults()->group("Data");
    auto* prompt = app.add_option("--prompt", o.prompt, "beginning of the text");
    app.add_option("--prompt-ids", o.id_lists, "beginning of the text as token ids: 1,2,3")
        ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
        ->excludes(prompt);
    auto* prompts = app.add_option("--prompts", o.prompts,
                                   "JSON Lines file with one prompt per line: {\"prompt\": TEXT} or {\"prompt_ids\": [1,2]}")
                        ->check(not_empty)
                        ->excludes("--prompt")
                        ->excludes("--prompt-ids");
    add_sampling_options(app, o);
    app.option_defaults()->group("Output");
    app.add_option("--out", o.out, "JSON Lines file for the texts of --prompts, in the order of the prompts; default: standard output")
        ->needs(prompts)
        ->check(not_empty);
    app.add_option("--log", o.log, "JSON file for the measurements: times, bytes of the KV cache, device, weights");
    app.add_flag("--print-ids", o.print_ids, "print only the new ids, on one line; with --prompts, \"ids\" in place of \"text\"");
    app.add_flag("--dry-run", o.dry_run, "print the memory needed; generate nothing");
    app.option_defaults()->group("Parallel");
    app.add_option("--device", o.device, "device to generate on; auto: a GPU if there is one")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    app.add_option("--batch", o.batch, "number of texts of --prompts to generate at once")
        ->needs(prompts)->transform(whole_number_from(1, 128));
    app.add_option("--threads", o.threads, "OpenMP threads; 0: one per four million parameters, up to the number of processors")
        ->transform(whole_number_from(0, 4096));
    app.option_defaults()->group("Attention");
    add_inference_options(app, o.inference);
    const bool runs = parse_options(app, argc, argv);
    o.gives_temperature = app.count("--temperature"), o.gives_top_k = app.count("--top-k"), o.gives_top_p = app.count("--top-p");
    return runs;
}

/// Appends the ids of a list, "1,2,3". Exit::usage for anything else.
static void append_ids(const std::string& list, std::vector<int64_t>& ids) {
    for (const char *at = list.data(), *const end = at + list.size();; at++) {
        int64_t id = 0;
        const auto [stop, error] = std::from_chars(at, end, id);
        if (error != std::errc() || (stop != end && *stop != ','))
            fail(Exit::usage, "--prompt-ids ", list, ": is not a list of ids; an example is 1,2,3");
        ids.push_back(id);
        if (stop == end) return;
        at = stop;
    }
}

/// Exit::usage unless an inference-only mechanism supports the checkpoint and the text. `positions`: number of tokens that the model
/// will read.
static void require_plain_attention(const Options& o, const Config& config, size_t positions) {
    if (o.inference.how.attention == InferenceAttention::trained) return;
    if (config.variant != "causal" || !config.layers.empty())
        fail(Exit::usage, "--attention ", o.inference.attention, " is for checkpoints of variant causal, and ", o.checkpoint,
             " is of variant ", config.variant, config.layers.empty() ? "" : ", with other attention in some layers");
    if (positions > size_t(config.max_positions))
        fail(Exit::usage, "--attention ", o.inference.attention, " needs the whole text in the cache: prompt and --tokens make ", positions,
             " positions, and max_position_embeddings is ", config.max_positions);
}

/// Precondition: `config` has exactly its variant's settings. Applies --set; Exit::usage for unknown keys and invalid values.
static void change_settings(Config& config, const Options& o) {
    for (const std::string& one : o.settings) {
        const size_t equals = one.find('=');
        const auto found = config.settings.find(one.substr(0, equals));
        std::string known;
        for (const auto& [key, value] : config.settings) known += " " + key;
        if (equals == std::string::npos || found == config.settings.end())
            fail(Exit::usage, "--set ", one, ": give KEY=VALUE with a key of ", config.variant, ":",
                 known.empty() ? " none" : known);
        char* end = nullptr;
        found->second = std::strtod(one.c_str() + equals + 1, &end);
        if (*end || end == one.c_str() + equals + 1 || !std::isfinite(found->second))
            fail(Exit::usage, "--set ", one, ": the value must be a number");
        for (LayerAttention& layer : config.layers)   // overrides the layers' own values
            if (layer.variant == config.variant) layer.settings.erase(found->first);
    }
}

static const Variant& variant_of_checkpoint(const Config& config, const std::string& checkpoint) {
    try {
        return named(config.variant);
    } catch (const Error& error) {
        fail(Exit::checkpoint, checkpoint, "/config.json: ", error.what());
    }
}

/// The variants that layers of a checkpoint of `own` may have; completes its settings.
static Variants complete(Config& config, const Variant& own, const std::string& checkpoint) {
    Variants variants(own, all_variants());
    variants.others.push_back(&on_cpu::causal);   // every program has causal
    require_known_settings(config, variants, checkpoint + "/config.json");
    try {
        complete_layers(config, variants);
    } catch (const Error& error) {
        fail(error.code, checkpoint, "/config.json: ", error.what());
    }
    return variants;
}

/// Generates on the device and with the weights that the options select.
static void write(const Variants& variants, const Options& o, const WritingJob& job) {
    if (o.device != "cpu" && write_on_gpu(job, o.device, o.weights)) return;
    const Stored stored = o.weights == "bf16" ? Stored::as_bf16 : Stored::as_computed;
    write_prompts<float>(CPU{}, variants, job, stored);
}

/// --threads 0: one thread per four million parameters, up to the number of processors. A step reads four million in less than a
/// millisecond. Shorter steps gain little from a second processor, and wait for it while it is busy.
static void set_threads(const Options& o, const Variants& variants, const Config& config) {
    const int most = use_threads(o.threads, 1);
    const size_t enough = Qwen(variants, config).tensors.parameters() / 4'000'000;
    if (o.threads == 0) use_threads(int(std::clamp<size_t>(enough, 1, size_t(most))), 1);
}

/// The options' sampling, completed by generation_config.json, whose values are printed.
static Sampling sampling_of(const Options& o, const GenerationConfig& held) {
    Sampling sampling = o.sampling;
    if (held.temperature && !o.gives_temperature) sampling.temperature = *held.temperature;
    if (held.top_k && !o.gives_top_k) sampling.top_k = *held.top_k;
    if (held.top_p && !o.gives_top_p) sampling.top_p = *held.top_p;
    if (const std::string words = held.in_words(); !words.empty())
        std::fprintf(stderr, "note: %s/generation_config.json: %s; options take precedence\n", o.checkpoint.c_str(), words.c_str());
    return sampling;
}

/// The tokens that end a text: those of generation_config.json or, if it names none, of config.json, and the tokenizer's.
static std::vector<int> ends_of_text(const Options& o, const Config& config, const GenerationConfig& held, const Tokenizer* tokenizer) {
    if (o.ignore_eos) return {};
    std::vector<int> ends = held.ends.empty() ? config.ends_of_text() : held.ends;
    if (tokenizer) ends.push_back(int(tokenizer->end_of_text()));
    return ends;
}

static void run(const Options& o) {
    Config config = load_config(o.checkpoint);
    const GenerationConfig held = generation_config_from_json(config.generation_config, config.V, o.checkpoint);
    const Variants variants = complete(config, variant_of_checkpoint(config, o.checkpoint), o.checkpoint);
    change_settings(config, o);
    std::unique_ptr<Tokenizer> tokenizer;
    std::vector<int64_t> ids;
    for (const std::string& list : o.id_lists) append_ids(list, ids);
    const bool has_text = !o.print_ids || ids.empty();   // otherwise no tokenizer is needed
    if (has_text && !config.tokenizer.empty()) tokenizer = open_tokenizer(config.tokenizer, config.V);
    if (!tokenizer && (!o.print_ids || !o.prompt.empty()))
        fail(Exit::usage, o.checkpoint,
             ": has no tokenizer.json, and config.json does not name the bytes tokenizer; use --print-ids, and --prompt-ids or "
             "\"prompt_ids\"");

    std::vector<Prompt> prompts;
    if (o.prompts.empty())
        prompts.push_back(make_prompt(o.prompt, ids, tokenizer.get(), config.V, config.max_positions,
                                      ids.empty() ? "--prompt" : "--prompt-ids"));
    else prompts = read_prompts(o.prompts, tokenizer.get(), config.V, config.max_positions);
    for (const Prompt& prompt : prompts) require_plain_attention(o, config, prompt.ids.size() + size_t(o.tokens) - 1);
    set_threads(o, variants, config);
    catch_stop_signals(SECONDS_TO_STOP);
    const Tokenizer* const shows = o.print_ids ? nullptr : tokenizer.get();
    std::unique_ptr<TextOutput> output;
    require_two_files("--out", o.out, "--prompts", o.prompts);
    require_two_files("--log", o.log, "--prompts", o.prompts);
    require_two_files("--log", o.log, "--out", o.out);
    require_outside("--out", o.out, o.checkpoint);
    require_outside("--log", o.log, o.checkpoint);
    if (o.prompts.empty()) output = std::make_unique<StreamedText>(shows, o.prompt);
    else output = std::make_unique<TextLines>(o.dry_run ? "" : o.out, prompts, shows, o.tokens);
    std::optional<JsonLines> log;
    if (!o.log.empty() && !o.dry_run) log.emplace().open_whole(o.log);
    try {
        write(variants, o, {o.checkpoint, config, prompts, o.inference.how, sampling_of(o, held), o.tokens, o.batch,
                            ends_of_text(o, config, held, tokenizer.get()), o.dry_run, *output,
                            log ? &*log : nullptr});
    } catch (const Error& error) {
        if (o.settings.empty() || error.code != Exit::checkpoint) throw;
        fail(error.code, error.what(), "; if the checkpoint is sound, --set requires tensors that it lacks");
    }
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("generate", [&] {
        Options options;
        if (!parse(argc, argv, options)) return;
        run(options);
        if (options.dry_run) require_printed();   // the plan is the only output
    });
}
