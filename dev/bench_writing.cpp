// Writing text with a model of random weights on the CPU, for dev/compare_decoding.py, which asks in turns:
//   make build/dev/bench_writing && build/dev/bench_writing MODEL PROMPT TOKENS THREADS STORED...
// MODEL is a preset; STORED is float32 or bf16, or both. Each line on standard input is a task, each line on standard output its JSON:
//   read               reads a large array:          {"seconds": , "bytes": , "busy": }
//   STORED TEXTS       writes TEXTS texts of TOKENS tokens, PROMPT tokens after their beginning; a step is a token of each
// "bytes" are what a step has to read: every matrix, and the keys and values of each text, at their mean length. "busy" is the share of
// the wall time that the threads have had a processor: below 1 others ran beside.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include <omp.h>
#include <sys/resource.h>

#include "attention/variant.h"
#include "model/base/options.h"
#include "model/device/machine.h"
#include "model/generate/decode.cuh"

namespace {

double processor_seconds() {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return double(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + 1e-6 * double(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

struct Turn {
    double seconds, bytes, busy;   // of a step; and of the whole turn
};

/// Times `steps` calls of step().
template <class Step>
Turn timed(int steps, double bytes, Step step) {
    const double before = processor_seconds();
    const Stopwatch watch;
    for (int n = 0; n < steps; n++) step();
    const double seconds = watch.seconds();
    return {seconds / steps, bytes, (processor_seconds() - before) / (seconds * omp_get_max_threads())};
}

/// The sum of an array that no cache holds: every thread reads its part from four places at once, which brought more than one place
/// and more than copying did on the machines tried.
Turn read_memory() {
    typedef float Vector __attribute__((vector_size(32)));
    constexpr int PLACES = 4, LOADS = 2;
    static const std::vector<Vector> all((size_t(1) << 29) / sizeof(Vector), Vector{} + 1.0f);
    return timed(4, double(all.size() * sizeof(Vector)), [] {
        const int threads = omp_get_max_threads();
        const size_t part = all.size() / threads / PLACES / LOADS * LOADS;
#pragma omp parallel for schedule(static)
        for (int thread = 0; thread < threads; thread++) {
            const Vector* const from = all.data() + size_t(thread) * PLACES * part;
            Vector sums[PLACES][LOADS] = {};
            for (size_t n = 0; n < part; n += LOADS)
                for (int p = 0; p < PLACES; p++)
                    for (int k = 0; k < LOADS; k++) sums[p][k] += from[p * part + n + k];
            Vector total{};
            for (int p = 0; p < PLACES; p++)
                for (int k = 0; k < LOADS; k++) total += sums[p][k];
            if (total[0] == 0) std::abort();   // so that it is computed
        }
    });
}

/// A model that is asked several times.
class Writer {
public:
    Writer(const std::string& model, Stored stored, int prompt, int tokens)
        : gpt_(on_cpu::causal, preset(model), 1, std::max(prompt + tokens, MOST_TEXTS), stored), prompt_(prompt), tokens_(tokens) {
        gpt_.allocate(CPU{});
        initialise(gpt_.net.tensors, 1, gpt_.weights, gpt_.bf16_matrices);
    }

    Turn write(int texts) {
        const Config& c = gpt_.net.config;
        Decoder<float> decoder(gpt_, {}, texts);
        decoder.allocate();
        std::vector<std::vector<int32_t>> ids(texts);
        for (int n = 0; n < texts; n++) {
            for (int t = 0; t < prompt_; t++) ids[n].push_back(int(size_t(n * prompt_ + t) * 7919 % c.V));
            const float* const logits = decoder.begin(n, ids[n]);
            ids[n].push_back(int32_t(std::max_element(logits, logits + c.V) - logits));
        }
        const double matrices = double(gpt_.weight_memory.bytes()) * gpt_.net.matmul_parameters() / double(gpt_.net.tensors.parameters());
        const double kept = double(decoder.cache_bytes()) / gpt_.T * (prompt_ + tokens_ / 2.0);
        return timed(tokens_ - 1, matrices + kept, [&] {
            std::vector<PlacedText> rows;
            for (int n = 0; n < texts; n++) rows.push_back({n, &ids[n]});
            const float* const logits = decoder.next(rows);
            for (int n = 0; n < texts; n++) {
                const float* const row = logits + size_t(n) * c.V;
                ids[n].push_back(int32_t(std::max_element(row, row + c.V) - row));
            }
        });
    }

private:
    static constexpr int MOST_TEXTS = 128;
    GPT<CPU, float> gpt_;
    int prompt_, tokens_;
};

void answer(std::map<std::string, std::unique_ptr<Writer>>& writers, const std::string& task) {
    std::istringstream words(task);
    std::string what;
    int texts = 1;
    words >> what >> texts;
    if (what != "read" && !writers.count(what)) fail(Exit::usage, "the task \"", task, "\" is neither read nor STORED TEXTS");
    const Turn turn = what == "read" ? read_memory() : writers.at(what)->write(texts);
    std::printf("{\"seconds\": %.6g, \"bytes\": %.6g, \"busy\": %.4f}\n", turn.seconds, turn.bytes, turn.busy);
    std::fflush(stdout);
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    return run_program("bench_writing", [&] {
        if (argc < 6) fail(Exit::usage, "usage: bench_writing MODEL PROMPT TOKENS THREADS STORED...");
        const int threads = use_threads(std::stoi(argv[4]), 1);
        std::map<std::string, std::unique_ptr<Writer>> writers;
        for (int n = 5; n < argc; n++)
            writers[argv[n]] = std::make_unique<Writer>(argv[1], argv[n] == std::string("bf16") ? Stored::as_bf16 : Stored::as_computed,
                                                        std::stoi(argv[2]), std::stoi(argv[3]));
        Config shape = preset(argv[1]);
        shape.variant = "causal";
        std::printf("{\"machine\": \"%s\", \"config\": %s}\n", describe_cpu(threads).c_str(), config_to_json_line(shape).c_str());
        std::fflush(stdout);
        for (std::string task; std::getline(std::cin, task);) answer(writers, task);
    });
}
