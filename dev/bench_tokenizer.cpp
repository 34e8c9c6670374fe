// How fast a tokenizer encodes:  make build/dev/bench_tokenizer && build/dev/bench_tokenizer TOKENIZER FILE [THREADS]
// FILE is text, or JSON Lines with a "text" in every line. Each document is one call of encode(), dealt out to the threads; a text
// is cut into documents of 10 kB at lines. The first pass has empty caches; of the other six the fastest counts.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "data/documents/documents.h"
#include "data/documents/files.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"
#include "model/base/options.h"

static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

static std::vector<std::string> read_documents(const std::string& path) {
    const std::string text = read_small_file(path);
    const bool is_json = path.ends_with(".jsonl");
    const size_t shortest = is_json ? 0 : 10000;
    std::vector<std::string> documents;
    for (size_t at = 0, end; at < text.size(); at = end) {
        end = text.find('\n', std::min(at + shortest, text.size() - 1));
        end = end == std::string::npos ? text.size() : end + 1;
        const std::string part = text.substr(at, end - at);
        documents.push_back(is_json ? text_of_json_line(part, "text", path, documents.size() + 1) : part);
    }
    return documents;
}

/// Seconds of one pass over all documents; `tokens` is how many ids they gave.
static double time_pass(const Tokenizer& tokenizer, const std::vector<std::string>& documents, int threads, size_t& tokens) {
    size_t count = 0;
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(+ : count)
    for (size_t i = 0; i < documents.size(); ++i) {
        std::vector<uint32_t> ids;
        tokenizer.encode(documents[i], ids);
        count += ids.size();
    }
    tokens = count;
    return seconds_since(start);
}

int main(int argc, char** argv) {
    return run_program("bench_tokenizer", [&] {
        if (argc < 3 || argc > 4) fail(Exit::usage, "usage: bench_tokenizer TOKENIZER FILE [THREADS]");
        const int threads = argc == 4 ? std::max(1, std::atoi(argv[3])) : omp_get_max_threads();
        const auto start = std::chrono::steady_clock::now();
        const auto tokenizer = open_tokenizer(argv[1]);
        std::printf("opened in %.3f s\n", seconds_since(start));

        const std::vector<std::string> documents = read_documents(argv[2]);
        double megabytes = 0;
        for (const std::string& document : documents) megabytes += double(document.size()) / 1e6;
        size_t tokens;
        const double first = time_pass(*tokenizer, documents, threads, tokens);
        double fastest = first;
        for (int pass = 0; pass < 6; ++pass) fastest = std::min(fastest, time_pass(*tokenizer, documents, threads, tokens));
        std::printf("%zu documents, %.1f MB, %zu tokens, %d threads: %.1f MB/s at first, %.1f MB/s at best\n", documents.size(),
                    megabytes, tokens, threads, megabytes / first, megabytes / fastest);
    });
}
