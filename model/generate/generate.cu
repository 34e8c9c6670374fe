// ./generate: text from a checkpoint of any variant that the program is linked with, on the CPU.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "attention/layers.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/command_line.h"
#include "model/base/error.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/load.cuh"
#include "model/device/machine.h"
#include "model/generate/decode.cuh"
#include "model/generate/text_stream.h"
#include "model/run/inference_options.h"
#include "model/run/machine.cuh"
#include "model/run/summary.h"

namespace {
struct Options {
    std::string checkpoint, prompt;
    std::vector<int32_t> prompt_ids;
    std::vector<std::string> settings;   // KEY=VALUE
    int tokens = 200, threads = 0;
    Sampling sampling;
    InferenceOptions inference;
    Stored matrices = Stored::as_computed;
    bool print_ids = false, dry_run = false;
};
}   // namespace

/// False if --help was given.
static bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Writes text from a checkpoint of any attention variant.");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--checkpoint", o.checkpoint, "a Hugging Face folder, as training writes them")->required();
    auto* prompt = app.add_option("--prompt", o.prompt, "start of the text");
    app.add_option("--prompt-ids", o.prompt_ids, "the same as token ids: 1,2,3")
        ->delimiter(',')
        ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
        ->excludes(prompt);
    app.add_option("--tokens", o.tokens, "how many tokens to write")->check(CLI::Range(1, 1 << 30));
    app.add_option("--temperature", o.sampling.temperature, "0: always the likeliest token")->check(number_from(0, 1e6));
    app.add_option("--top-k", o.sampling.top_k, "sample from the k likeliest tokens; 0: all")->check(CLI::Range(0, 1 << 30));
    app.add_option("--top-p", o.sampling.top_p, "sample from the likeliest tokens whose probabilities sum to this")
        ->check(number_from(0, 1));
    app.add_option("--seed", o.sampling.seed, "of sampling");
    app.add_option("--threads", o.threads, "OpenMP threads; 0: all processors")->check(CLI::Range(0, 4096));
    app.add_option("--weights", o.matrices, "how the embedding, the matrices of linear layers, and cached keys and values are kept in memory: "
                   "float32, or bf16, which are half as many bytes to read for every token")
        ->transform(CLI::CheckedTransformer(std::map<std::string, Stored>{{"float32", Stored::as_computed}, {"bf16", Stored::as_bf16}}));
    add_inference_options(app, o.inference);
    app.add_option("--set", o.settings, "KEY=VALUE, a setting of the variant instead of the checkpoint's: seer_distil=0")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app.add_flag("--print-ids", o.print_ids, "print the new ids on one line and nothing else");
    app.add_flag("--dry-run", o.dry_run, "print the memory that it takes, and write nothing");
    return parse_options(app, argc, argv);
}

/// The prompt as ids, or, without a prompt, the token that begins a document. Exit::usage for ids outside the vocabulary.
static std::vector<int32_t> prompt_ids(const Options& o, const Config& config, const Tokenizer* tokenizer) {
    std::vector<int32_t> ids = o.prompt_ids;
    if (!o.prompt.empty()) {
        std::vector<uint32_t> encoded;
        tokenizer->encode(o.prompt, encoded);
        ids.assign(encoded.begin(), encoded.end());
    }
    if (ids.empty() && tokenizer) ids.push_back(int32_t(tokenizer->end_of_text()));
    if (ids.empty()) fail(Exit::usage, "nothing to start from: give --prompt-ids");
    for (int32_t id : ids)
        if (id < 0 || id >= config.V) fail(Exit::usage, "--prompt-ids ", id, " is not in the model's vocabulary 0..", config.V - 1);
    return ids;
}

/// Exit::usage unless an inference-time mechanism supports the checkpoint and the text; `positions` is how many tokens the model
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
        for (LayerAttention& layer : config.layers)   // in place of what single layers have
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

/// What the layers of a checkpoint of `own` may be; completes its settings.
static Variants complete(Config& config, const Variant& own, const std::string& checkpoint) {
    Variants variants(own, all_variants());
    variants.others.push_back(&on_cpu::causal);   // a program of one variant has it, too
    try {
        complete_layers(config, variants);
    } catch (const Error& error) {
        fail(error.code, checkpoint, "/config.json: ", error.what());
    }
    return variants;
}

/// stdout: the prompt and the text, or ids on one line, as they are written.
class Output {
public:
    /// Without a tokenizer: ids, and no prompt.
    Output(const Tokenizer* tokenizer, std::string prompt) : tokenizer_(tokenizer), prompt_(std::move(prompt)), stream_(stdout) {}

    void add(int32_t token) {
        if (first_ && tokenizer_) stream_.add(prompt_);   // not before the checkpoint is known to be sound
        if (tokenizer_) stream_.add(tokenizer_->decode({&token, 1}));
        else stream_.add((first_ ? "" : " ") + std::to_string(token));
        first_ = false;
    }
    void finish() {
        stream_.finish();
        stream_.add("\n");
    }

private:
    const Tokenizer* tokenizer_;
    std::string prompt_;
    TextStream stream_;
    bool first_ = true;
};

/// For people, on stderr: stdout is for the text.
static void tell(const WritingTimes& times, size_t kept_bytes) {
    std::fprintf(stderr, "prompt: %d tokens, the first written after %.3f s; ", times.prompt, times.first);
    if (times.tokens > 1)
        std::fprintf(stderr, "%d more in %.3f s, %.1f tokens/s; ", times.tokens - 1, times.others, (times.tokens - 1) / times.others);
    if (kept_bytes) std::fprintf(stderr, "kept of the text: %s\n", human_bytes(double(kept_bytes)).c_str());
    else std::fprintf(stderr, "nothing is kept of the text: each token took a pass over all of it\n");
}

/// Appends `o.tokens` tokens to `ids` with the weights of the checkpoint, and hands each to `output` as it is written. Exit::signal if a
/// signal came before the last.
static void generate_from(const Variants& variants, const Options& o, const Config& config, std::vector<int32_t>& ids, Output& output) {
    const int T = int(std::min<int64_t>(config.max_positions, int64_t(ids.size()) + o.tokens));
    const Inference& inference = o.inference.how;
    GPT<CPU, float> gpt(variants, config, 1, T, o.matrices);
    if (!gpt.net.all(&LayerFacts::is_causal) && !gpt.net.any(&LayerFacts::needs_known_text))
        fail(Exit::usage, o.checkpoint, ": with its settings ", variants.own.name, " looks at later tokens, which a text that is being ",
             "written does not have; --set KEY=0 chooses the form that does not (the keys: ./train_", variants.own.name, " --help)");
    Decoder<float> decoder(gpt, inference);
    std::vector<MemoryUse> plan = gpt.memory_plan();
    plan.push_back({"kept of the text", decoder.cache_bytes()});
    add_overheads(CPU{}, plan, 0, false);
    if (o.dry_run) return print_memory(plan);
    const size_t needed = total_bytes(plan), available = available_memory();
    if (needed > available)
        fail(Exit::out_of_memory, "a text of ", T, " tokens needs ", human_bytes(double(needed)), " and the machine has ",
             human_bytes(double(available)), " left: lower --tokens");
    gpt.allocate(CPU{});
    load_for_inference(CPU{}, gpt, o.checkpoint);
    if (gpt.net.any(&LayerFacts::needs_known_text))
        std::fprintf(stderr, "warning: with these settings of %s, tokens of the text read later ones\n", variants.own.name);
    decoder.allocate();
    const WritingTimes times = generate_with_cache(decoder, config.V, ids, o.tokens, o.sampling, [&](int32_t token) {
        output.add(token);
        return !stop_requested();
    });
    output.finish();
    tell(times, decoder.cache_bytes());
    const std::string read = described(decoder.read(), inference.psa.bound);
    if (!read.empty()) std::fprintf(stderr, "%s\n", read.c_str());
    if (times.tokens < o.tokens) fail(Exit::signal, "stopped by a signal after ", times.tokens, " of ", o.tokens, " tokens");
}

static void run(const Options& o) {
    Config config = load_config(o.checkpoint);
    const Variants variants = complete(config, variant_of_checkpoint(config, o.checkpoint), o.checkpoint);
    change_settings(config, o);
    std::unique_ptr<Tokenizer> tokenizer;
    const bool has_text = !o.print_ids || o.prompt_ids.empty();   // otherwise no tokenizer is needed
    if (has_text && !config.tokenizer.empty()) tokenizer = open_tokenizer(config.tokenizer, config.V);
    if (!tokenizer && (!o.print_ids || !o.prompt.empty()))
        fail(Exit::usage, o.checkpoint, ": its tokenizer is not known to this program; use --prompt-ids and --print-ids");

    std::vector<int32_t> ids = prompt_ids(o, config, tokenizer.get());
    require_plain_attention(o, config, ids.size() + size_t(o.tokens) - 1);
    use_threads(o.threads, 1);
    catch_stop_signals();
    Output output(o.print_ids ? nullptr : tokenizer.get(), o.prompt);
    try {
        generate_from(variants, o, config, ids, output);
    } catch (const Error& error) {
        if (o.settings.empty() || error.code != Exit::checkpoint) throw;
        fail(error.code, error.what(), "; if the checkpoint is sound, --set requires tensors that it lacks");
    }
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("generate", [&] {
        Options options;
        if (parse(argc, argv, options)) run(options);
    });
}
