// The attention layer of sparse variants against dense causal attention of the same size, for bench_patterns.cpp (CPU) and
// bench_patterns_gpu.cu. A pattern that visits the share p of causal's tiles should take little more than p of its time: the column
// "of p" is time / (p x causal's time). Whatever a variant needs besides the kernel (gathering, gates, choices) is in its time, the
// linear layers around it are not.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "attention/variant.h"
#include "dev/trainee.cuh"
#include "model/base/text.h"

/// T and WORD of the command line.
struct PatternOptions {
    int T = 8192;
    std::string word;
    PatternOptions(int argc, char** argv) {
        if (argc > 1) T = std::atoi(argv[1]);
        if (argc > 2) word = argv[2];
        if (T < 64 || T > 1 << 20) fail(Exit::usage, "T is ", argv[1], ", expected 64 to ", 1 << 20);
    }
};

struct Pattern {
    std::string variant, text;
    std::map<std::string, double> settings = {};
    std::string name() const { return variant + text; }
};

inline std::vector<Pattern> patterns(int T) {
    const double tenth = std::max(1.0, std::floor(T / 64 / 2 * 0.1));   // of the blocks before a query tile, on average
    return {{"sliding_window", ", 256"},
            {"sinks", ", 4 + 256"},
            {"sinks_cache", ", 4 + 256"},
            {"longformer", ", 64 + 256"},
            {"strided", ", l 128"},
            {"fixed_factorized", ", l 128, c 32"},
            {"bigbird", ", 3 + 1 + 1 blocks of 64"},
            {"deepspeed_fixed", ", 4 + 1 blocks of 64"},
            {"longnet", ", 4 branches from 256"},
            {"dsa", ", row rule 512, 256"},
            {"adaptive_sparse", ", hard, a tenth of blocks",
             {{"adaptive_sparse_mask", 1}, {"adaptive_sparse_dense_heads", 0}, {"adaptive_sparse_top_k", tenth}}},
            {"adaptive_sparse", ", soft-hard, a tenth of blocks", {{"adaptive_sparse_dense_heads", 0}, {"adaptive_sparse_top_k", tenth}}},
            {"nsa", ", the paper's constants"},
            {"nsa", ", choices of 64 queries", {{"nsa_choice", 1}}},
            {"moba", ", 3 of blocks of 512", {{"moba_block", 512}, {"moba_top_k", 3}}},
            {"moba", ", 12 of blocks of 1024", {{"moba_block", 1024}, {"moba_top_k", 12}}},
            {"deepseek_sparse", ", 2048 keys", {{"deepseek_sparse_top_k", 2048}, {"deepseek_sparse_distil", 0}}},
            {"deepseek_sparse", ", 2048 keys, learning", {{"deepseek_sparse_top_k", 2048}, {"deepseek_sparse_distil", 1}}}};
}

/// One line per pattern whose name has the word in it: B sequences, NH query heads and NKV key/value heads of 64 numbers. `time`
/// returns the seconds that some work takes.
template <class X, class Device, class Time>
void print_patterns(Device device, const std::vector<const Variant*>& variants, int B, int NH, int NKV, const PatternOptions& o,
                    Time time) {
    struct Measured {
        double forward, backward;   // seconds
        double tiles;               // visited per sequence, or expected where the data select
    };
    auto measure = [&](const Pattern& pattern) -> Measured {
        Config c;
        c.V = 64, c.C = 64, c.L = 1, c.NH = NH, c.NKV = NKV, c.HS = 64, c.F = 64;
        c.settings = pattern.settings;
        Trainee<Device, X> trainee(device, named(pattern.variant, variants), c, B, o.T);
        trainee.launch_gradients();
        const auto [forward, backward] = trainee.time_attention(time);
        return {forward, backward, trainee.gpt.net.layers[0].attention->expected_pairs(NH, o.T).tiles};
    };
    std::printf("B %d, T %d, %d query heads, %d key/value heads, head size 64\n\n", B, o.T, NH, NKV);
    std::printf("| variant                            | p     | forward      | faster | of p | backward     | faster | of p |\n"
                "| ---------------------------------- | ----- | ------------ | ------ | ---- | ------------ | ------ | ---- |\n");
    const Measured dense = measure({"causal", ""});
    auto print = [&](const Pattern& pattern, const Measured& is) {
        const double p = is.tiles / dense.tiles;
        auto columns = [&](double seconds, double of_dense) {
            return text("%9.3f ms | %6.2f | %4.2f |", seconds * 1e3, of_dense / seconds, seconds / (p * of_dense));
        };
        std::printf("| %-34s | %5.3f | %s %s\n", pattern.name().c_str(), p, columns(is.forward, dense.forward).c_str(),
                    columns(is.backward, dense.backward).c_str());
        std::fflush(stdout);
    };
    print({"causal", ""}, dense);
    for (const Pattern& pattern : patterns(o.T))
        if (pattern.name().find(o.word) != std::string::npos) print(pattern, measure(pattern));
}
