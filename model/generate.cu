// ./generate: text from a checkpoint.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/error.h"
#include "model/generators.h"
#include "model/machine.h"
#include "model/options.h"

struct Options {
    std::string checkpoint, prompt;
    std::vector<int32_t> prompt_ids;
    int tokens = 200, threads = 0;
    Sampling sampling;
    bool print_ids = false;
};

/// False when only --help was asked for.
static bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Writes text from a checkpoint of any attention variant.");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--checkpoint", o.checkpoint, "a Hugging Face folder, as training writes them")->required();
    auto* prompt = app.add_option("--prompt", o.prompt, "what the text begins with");
    app.add_option("--prompt-ids", o.prompt_ids, "the same as token ids: 1,2,3")
        ->delimiter(',')
        ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
        ->excludes(prompt);
    app.add_option("--tokens", o.tokens, "how many tokens to write")->check(CLI::Range(1, 1 << 30));
    app.add_option("--temperature", o.sampling.temperature, "0: always the likeliest token")->check(number_from(0, 1e6));
    app.add_option("--top-k", o.sampling.top_k, "choose among the k likeliest tokens; 0: all")->check(CLI::Range(0, 1 << 30));
    app.add_option("--top-p", o.sampling.top_p, "choose among the likeliest tokens that reach this probability together")
        ->check(number_from(0, 1));
    app.add_option("--seed", o.sampling.seed, "of the choice");
    app.add_option("--threads", o.threads, "OpenMP threads; 0: all processors")->check(CLI::Range(0, 4096));
    app.add_flag("--print-ids", o.print_ids, "print the new ids on one line and nothing else");
    return parse_options(app, argc, argv);
}

/// The prompt as ids below the vocabulary; without a prompt, the token that begins a document.
static std::vector<int32_t> prompt_ids(const Options& o, const Config& config, const Tokenizer* tokenizer) {
    std::vector<int32_t> ids = o.prompt_ids;
    if (!o.prompt.empty()) {
        std::vector<uint32_t> encoded;
        tokenizer->encode(o.prompt, encoded);
        ids.assign(encoded.begin(), encoded.end());
    }
    if (ids.empty() && tokenizer) ids.push_back(int32_t(tokenizer->end_of_text()));
    if (ids.empty()) fail(Exit::usage, "nothing to begin with: give --prompt-ids");
    for (int32_t id : ids)
        if (id < 0 || id >= config.V) fail(Exit::usage, "--prompt-ids ", id, " is not in the model's vocabulary 0..", config.V - 1);
    return ids;
}

static void run(const Options& o) {
    const Config config = load_config(o.checkpoint);
    const auto found = generators().find(config.variant);
    if (found == generators().end())
        fail(Exit::checkpoint, o.checkpoint, "/config.json: attention_variant ", config.variant,
             " is none of this program's variants");
    std::unique_ptr<Tokenizer> tokenizer;
    if (!config.tokenizer.empty()) tokenizer = open_tokenizer(config.tokenizer);
    if (!tokenizer && (!o.print_ids || !o.prompt.empty()))
        fail(Exit::usage, o.checkpoint, ": its tokenizer is not known to this program; use --prompt-ids and --print-ids");

    std::vector<int32_t> ids = prompt_ids(o, config, tokenizer.get());
    const size_t given = ids.size();
    use_threads(o.threads, 1);
    found->second(o.checkpoint, config, ids, o.tokens, o.sampling);
    if (o.print_ids)
        for (size_t n = given; n < ids.size(); n++) std::printf(n + 1 < ids.size() ? "%d " : "%d\n", ids[n]);
    else
        std::printf("%s%s\n", o.prompt.c_str(),
                    replace_invalid_utf8(tokenizer->decode(std::span<const int32_t>(ids).subspan(given))).c_str());
    if (std::fflush(stdout) != 0) fail(Exit::data, "standard output cannot be written: ", last_os_error());
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("generate", [&] {
        Options options;
        if (parse(argc, argv, options)) run(options);
    });
}
