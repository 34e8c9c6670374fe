// ./tokenize: text, JSON Lines or standard input -> token shards. Options and reporting; the work is in tokenize_files.cpp.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "data/tokenize_files.h"
#include "model/error.h"
#include "model/options.h"

namespace {

volatile sig_atomic_t stop_requested = 0;

// Without SA_RESTART, so that a read from a silent standard input ends too.
void stop_on_signals() {
    struct sigaction action = {};
    action.sa_handler = [](int) { stop_requested = 1; };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

// One line on stderr, rewritten in place about ten times a second when somebody is watching.
class ProgressLine {
public:
    void show(const TokenizeProgress& progress) {
        if (stop_requested) fail(Exit::signal, "stopped by a signal; nothing was written");
        if (!terminal_) return;
        const auto now = std::chrono::steady_clock::now();
        if (now - shown_ < std::chrono::milliseconds(100)) return;
        shown_ = now;
        const double seconds = std::chrono::duration<double>(now - started_).count();
        const double megabytes = static_cast<double>(progress.bytes_read) / 1e6;
        if (progress.bytes_total == 0) std::fprintf(stderr, "\rcounting documents: %llu", count(progress.documents));
        else std::fprintf(stderr, "\r%3.0f%% | %llu documents | %llu tokens | %.0f MB | %.0f MB/s ",
                          100e6 * megabytes / static_cast<double>(progress.bytes_total), count(progress.documents), count(progress.tokens),
                          megabytes, megabytes / seconds);
    }

    ~ProgressLine() {
        if (terminal_) std::fputs("\r\033[K", stderr);
    }

private:
    static unsigned long long count(uint64_t n) { return n; }

    const bool terminal_ = isatty(STDERR_FILENO);
    const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    std::chrono::steady_clock::time_point shown_;
};

void declare(CLI::App& app, TokenizeOptions& options) {
    app.add_option("--tokenizer", options.tokenizer, "bytes: one id per byte")->capture_default_str();
    app.add_option("--out", options.out, "folder to write the shards into")->required();
    app.add_option("--name", options.name, "start of the shards' names (default: the first input's)");
    app.add_option("--val-fraction", options.val_fraction,
                   "last part of the documents, or of the bytes of a single text, that is kept for validation")
        ->capture_default_str();
    app.add_option("--shard-tokens", options.shard_tokens, "most tokens in one shard")->capture_default_str();
    app.add_option("--text-field", options.rules.text_field, "key of the text in a JSON Lines file")->capture_default_str();
    app.add_flag("--split-on-blank-line", options.rules.split_on_blank_line, "a blank line in a text starts a new document");
    app.add_option("INPUT", options.inputs, ".txt (one document), .jsonl (one a line), - for text from standard input (the default)");
}

void print_report(const TokenizeReport& report) {
    const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    for (const std::string& path : report.removed) std::fprintf(stderr, "tokenize: removed %s of an earlier run\n", path.c_str());
    for (const ShardInfo& shard : report.manifest.shards) std::printf("%s  %llu tokens\n", shard.file.c_str(), number(shard.tokens));
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
        stop_on_signals();
        const TokenizeReport report = [&] {
            ProgressLine line;
            return tokenize_files(options, [&](const TokenizeProgress& progress) { line.show(progress); });
        }();
        print_report(report);
    });
}
