// The attention layer of sparse variants against dense causal attention of the same size, for bench_patterns.cpp (CPU) and
// bench_patterns_gpu.cu. A pattern that visits the share p of causal's tiles should take little more than p of its time: the column
// "of p" is time / (p x causal's time). Whatever a variant needs besides the kernel (gathering, gates, choices) is in its time, the
// linear layers around it are not.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "attention/variant.h"
#include "model/base/text.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// Sequences, query heads and key/value heads of the layer; the head size is 64.
struct PatternShape {
    int B, T, NH, NKV;
};

/// Seconds that some work takes, by the device's own way of measuring.
using TimeWork = std::function<double(const std::function<void()>&)>;

struct PatternTimes {
    double forward, backward;   // seconds
    double tiles;               // visited per sequence, or expected where the data select
};

template <class X, class Device>
class PatternBench {
public:
    using Settings = std::map<std::string, double>;

    PatternBench(Device device, const std::vector<const Variant*>& variants, const PatternShape& shape, TimeWork time,
                 const std::string& word)
        : device_(device), variants_(variants), s_(shape), time_(std::move(time)), word_(word) {}

    /// One line per variant whose name has `word` in it.
    void print_table() {
        std::printf("B %d, T %d, %d query heads, %d key/value heads, head size 64\n\n", s_.B, s_.T, s_.NH, s_.NKV);
        std::printf("| variant                            | p     | forward      | faster | of p | backward     | faster | of p |\n"
                    "| ---------------------------------- | ----- | ------------ | ------ | ---- | ------------ | ------ | ---- |\n");
        dense_ = measure("causal", {});
        print("causal", dense_);
        row("sliding_window", ", 256");
        row("sinks", ", 4 + 256");
        row("sinks_cache", ", 4 + 256");
        row("longformer", ", 64 + 256");
        row("strided", ", l 128");
        row("fixed_factorized", ", l 128, c 32");
        row("bigbird", ", 3 + 1 + 1 blocks of 64");
        row("deepspeed_fixed", ", 4 + 1 blocks of 64");
        row("longnet", ", 4 branches from 256");
        row("dsa", ", row rule 512, 256");
        const double tenth = std::max(1.0, std::floor(s_.T / 64 / 2 * 0.1));   // of the blocks before a query tile, on average
        row("adaptive_sparse", ", hard, a tenth of blocks", {{"adaptive_sparse_mask", 1},
                                                           {"adaptive_sparse_dense_heads", 0},
                                                           {"adaptive_sparse_top_k", tenth}});
        row("adaptive_sparse", ", soft-hard, a tenth of blocks",
                             {{"adaptive_sparse_dense_heads", 0}, {"adaptive_sparse_top_k", tenth}});
        row("nsa", ", the paper's constants");
        row("nsa", ", choices of 64 queries", {{"nsa_choice", 1}});
        row("moba", ", 3 of blocks of 512", {{"moba_block", 512}, {"moba_top_k", 3}});
        row("moba", ", 12 of blocks of 1024", {{"moba_block", 1024}, {"moba_top_k", 12}});
        for (double distil : {0, 1})   // without and with what the indexer learns
            row("deepseek_sparse", distil ? ", 2048 keys, learning" : ", 2048 keys",
                {{"deepseek_sparse_top_k", 2048}, {"deepseek_sparse_distil", distil}});
    }

private:
    void row(const std::string& variant, const char* text, const Settings& settings = {}) {
        const std::string name = variant + text;
        if (name.find(word_) != std::string::npos) print(name, measure(variant, settings));
    }

    PatternTimes measure(const std::string& name, const Settings& settings) {
        Config c;
        c.V = 64, c.C = 64, c.L = 1, c.NH = s_.NH, c.NKV = s_.NKV, c.HS = 64, c.F = 64;
        c.settings = settings;
        GPT<Device, X> gpt(named(name, variants_), c, s_.B, s_.T, Mode::training);
        BatchFeed<Device> feed(s_.B, s_.T, c.V);
        gpt.allocate(device_), feed.allocate(device_);
        start_weights(gpt);
        std::vector<int32_t> tokens(size_t(s_.B) * s_.T);
        for (size_t t = 0; t < tokens.size(); t++) tokens[t] = int(t * 7919 % c.V);
        const Batch batch = feed.put(device_, tokens.data(), tokens.data(), s_.B, s_.T);
        gpt_forward(device_, gpt, batch);   // leaves q, k and v; gpt_backward() leaves dout
        gpt_loss(device_, gpt, batch, Write::overwrite, 1.0f / float(tokens.size()));
        gpt_backward(device_, gpt, batch, Write::overwrite);

        const AttentionLayer& layer = *gpt.net.layers[0].attention;
        const LayerPasses<Device, X>& attention = gpt.attention(0);
        auto& state = gpt.layers[0].attention;
        auto& s = gpt.scratch;
        const LayerInputs<X> in = attention_inputs(gpt, 0, s_.B, s_.T);
        const size_t k_at = size_t(c.NH) * c.HS, v_at = in.qk_row;
        const QkvGradients<X> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, in.v_row}};
        ScoreInputGradients<X> more{s.dscore_inputs[0], s.dqk_pre, s.dqk_pre ? s.dqk_pre + k_at : nullptr, layer.facts.reads_x ? s.dnormed : nullptr,
                               gpt.gradients};
        const double forward = time_([&] { attention.forward(device_, in, gpt.weights, state, s.attention, {}); });
        const double backward = time_([&] { attention.backward(device_, in, gpt.weights, state, s.dout, to, more, s.attention); });
        return {forward, backward, layer.expected_pairs(c.NH, s_.T).tiles};
    }

    template <class Model>
    void start_weights(Model& gpt) {
        const size_t n = gpt.net.tensors.size();
        HostView<Device> weights(device_, gpt.gradients, n);
        initialise(gpt.net.tensors, 1, weights.data());
        weights.push();
        convert(device_, gpt.weights, gpt.gradients, n);
        gpt_weights_loaded(device_, gpt);
    }

    void print(const std::string& name, const PatternTimes& times) const {
        const double p = times.tiles / dense_.tiles;
        auto columns = [&](double seconds, double dense) {
            return text("%9.3f ms | %6.2f | %4.2f |", seconds * 1e3, dense / seconds, seconds / (p * dense));
        };
        std::printf("| %-34s | %5.3f | %s %s\n", name.c_str(), p, columns(times.forward, dense_.forward).c_str(),
                    columns(times.backward, dense_.backward).c_str());
        std::fflush(stdout);
    }

    Device device_;
    const std::vector<const Variant*>& variants_;
    PatternShape s_;
    TimeWork time_;
    std::string word_;
    PatternTimes dense_{};
};

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
