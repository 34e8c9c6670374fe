// ./tokenize: text, JSON Lines or standard input -> token shards. Options and reporting; tokenize_files.cpp does the work.
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "data/documents/tokenize_files.h"
#include "model/base/command_line.h"
#include "model/base/error.h"
#include "model/base/process.h"
#include "model/base/text.h"

namespace {

// One line on stderr, rewritten in place about ten times a second if stderr is a terminal.
class ProgressLine {
public:
    void show(const TokenizeProgress& progress) {
        if (stop_requested())
            fail(Exit::signal, "stopped by a signal; the same command resumes with the first unfinished shard");
        if (!terminal_) return;
        const auto now = std::chrono::steady_clock::now();
        if (now - shown_ < std::chrono::milliseconds(100)) return;
        shown_ = now;
        std::fprintf(stderr, "\r%s\033[K", line(progress).c_str());
    }

    void note(const std::string& sentence) const {
        std::fprintf(stderr, "%stokenize: %s\n", terminal_ ? "\r\033[K" : "", sentence.c_str());
    }

    ~ProgressLine() {
        if (terminal_) std::fputs("\r\033[K", stderr);
    }

private:
    // Rates count from the first tokens of this run, which may resume another one.
    std::string line(const TokenizeProgress& progress) {
        const std::string documents = std::to_string(progress.documents) + " documents | ";
        if (progress.tokens == 0) return documents + "counting";
        if (first_.tokens == 0) first_ = progress, since_first_ = Stopwatch();
        const double seconds = since_first_.seconds(), bytes = static_cast<double>(progress.text_bytes - first_.text_bytes);
        if (bytes == 0) return documents;
        std::string shown = documents + text("%.1fM tokens | %.0f MB/s", static_cast<double>(progress.tokens) / 1e6, bytes / 1e6 / seconds);
        if (progress.share > first_.share)
            shown += text(" | %.0f%% | ", 100 * progress.share) +
                     human_seconds(seconds * (1 - progress.share) / (progress.share - first_.share)) + " left";
        return shown;
    }

    TokenizeProgress first_;
    Stopwatch since_first_;
    const bool terminal_ = isatty(STDERR_FILENO);
    std::chrono::steady_clock::time_point shown_;
};

void declare(CLI::App& app, TokenizeOptions& options) {
    const auto any_count = whole_number_from<int64_t>(0, INT64_MAX), tokens = whole_number_from<int64_t>(0, INT32_MAX);
    app.option_defaults()->group("Data");
    app.add_option("INPUT", options.inputs,
                   ".txt files (one document each) or .jsonl files (one document per line), each also .gz, .xz or .zst; - for standard "
                   "input (the default)");
    app.add_option("--tokenizer", options.tokenizer, "bytes (one id per byte), a Hugging Face tokenizer.json, or a folder with one")
        ->capture_default_str();
    CLI::Option* field =
        app.add_option("--text-field", options.rules.text_field, "key of the text in a JSON Lines file")->capture_default_str();
    app.add_flag("--mask-prompts", options.rules.mask_prompts,
                 "read \"prompt\" and \"completion\" from JSON Lines and add a loss mask to the shards: only completions and their "
                 "end-of-text tokens are targets")
        ->excludes(field);
    app.add_flag("--split-on-blank-line", options.rules.split_on_blank_line, "start a new document at each blank line of a .txt file");
    app.add_option_function<std::string>(
           "--format", [&](const std::string& format) { options.rules.json_standard_input = format == "jsonl"; },
           "format of standard input: txt or jsonl")
        ->check(CLI::IsMember({"txt", "jsonl"}))
        ->default_str("txt");
    app.add_option("--encoding", options.rules.encoding, "encoding of the inputs, by iconv's name (UTF-16, latin1, ...)")
        ->capture_default_str();
    app.add_option("--documents", options.documents,
                   "expected number of documents; 0: any. Another number is an error: standard input also ends when the program "
                   "behind it fails")
        ->transform(any_count)
        ->capture_default_str();
    app.option_defaults()->group("Output");
    app.add_option("--out", options.out, "folder for the shards")->required();
    app.add_option("--name", options.name, "beginning of the shards' file names; default: the first input's name");
    CLI::Option* fraction =
        app.add_option("--val-fraction", options.val_fraction,
                       "validation share: the last part of the documents, or of the bytes of a single text; reads the inputs twice")
            ->check(number_from(0, 0.999999))
            ->capture_default_str();
    app.add_option("--val-tokens", options.val_tokens,
                   "validation tokens, in place of --val-fraction: the first documents, up to this many tokens; 0: none. Further inputs "
                   "do not change them")
        ->transform(tokens)
        ->excludes(fraction);
    app.add_option("--shard-tokens", options.shard_tokens, "maximum tokens per shard")
        ->transform(whole_number_from<int64_t>(1, INT32_MAX))
        ->capture_default_str();
    app.option_defaults()->group("Parallel");
    app.add_option("--threads", options.threads, "encoding threads; 0: one per processor. The shards are the same for any number")
        ->transform(whole_number_from(0, 1024))
        ->capture_default_str();
}

void print_report(const TokenizeReport& report) {
    const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    for (const ShardInfo& shard : report.manifest.shards)
        std::printf("%s  %llu tokens\n", shard.file.c_str(), number(shard.tokens));
    std::printf("%llu documents, %llu tokens for training, %llu for validation: %s\n", number(report.manifest.documents),
                number(report.train_tokens), number(report.val_tokens), report.manifest_path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    return run_program("tokenize", [&] {
        CLI::App app("Turns text into token shards for training and validation.", "tokenize");
        TokenizeOptions options;
        declare(app, options);
        if (!parse_options(app, argc, argv)) return;
        if (app.count("--val-tokens") && options.val_tokens == 0) options.val_fraction = 0;   // none
        ignore_sigpipe();
        catch_stop_signals(SECONDS_TO_STOP, false);
        const TokenizeReport report = [&] {
            ProgressLine line;
            const auto show = [&](const TokenizeProgress& progress) { line.show(progress); };
            return tokenize_files(options, show, [&](const std::string& note) { line.note(note); });
        }();
        print_report(report);
    });
}
