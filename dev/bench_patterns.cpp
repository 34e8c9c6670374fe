// Times the attention layer of sparse variants on the CPU against dense causal attention of the same size:
//   make build/dev/bench_patterns && build/dev/bench_patterns [T [WORD]]
// A pattern that visits the share p of causal's tiles should take little more than p of its time: the column "of p" is time / (p x
// causal's time). One layer with 4 query heads and 2 key/value heads of 64, B = 1, random weights; whatever the variant needs
// besides the kernel (gathering, gates, choices) is in its time, the linear layers around it are not. WORD: only variants with it.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "attention/adaptive_sparse.cuh"
#include "attention/bigbird.cuh"
#include "attention/causal.cuh"
#include "attention/deepspeed_fixed.cuh"
#include "attention/dsa.cuh"
#include "attention/fixed_factorized.cuh"
#include "attention/longformer.cuh"
#include "attention/longnet.cuh"
#include "attention/nsa.cuh"
#include "attention/sinks_cache.cuh"
#include "attention/sliding_window.cuh"
#include "attention/strided.cuh"
#include "model/feed.cuh"
#include "model/gpt.cuh"
#include "model/machine.h"
#include "model/options.h"
#include "model/report.h"

namespace {

struct Times {
    double forward, backward;
    double tiles;   // visited, or expected where the data select
};

double fastest(const std::function<void()>& work) {
    double best = 1e30;
    for (int n = 0; n < 3; n++) {
        Stopwatch watch;
        work();
        best = std::min(best, watch.seconds());
    }
    return best;
}

template <class A>
Times measure(int T, const std::map<std::string, double>& settings) {
    Config c;
    c.V = 64, c.C = 64, c.L = 1, c.NH = 4, c.NKV = 2, c.HS = 64, c.F = 64;
    c.settings = settings;
    GPT<CPU, float, A> gpt(c, 1, T, Mode::training);
    gpt.allocate(CPU{});
    initialise(gpt.net.tensors, 1, gpt.weights);
    std::vector<int32_t> tokens(T);
    for (int t = 0; t < T; t++) tokens[t] = int(t * 7919LL % c.V);
    Feed<CPU> feed(1, T, c.V);
    gpt_forward(CPU{}, gpt, feed.put(CPU{}, tokens.data(), tokens.data(), 1, T));   // q, k and v

    const CPU cpu;
    const auto& layer = gpt.net.layers[0];
    auto& a = gpt.layers[0];
    auto& s = gpt.scratch;
    const LayerInputs<float> in = attention_inputs(gpt, 0, 1, T);
    const size_t k_at = size_t(c.NH) * c.HS, v_at = in.qk_row;
    std::fill_n(s.dout, size_t(T) * c.NH * c.HS, 1e-3f);
    const QkvGradients<float> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, in.v_row}};
    ExtraGradients<float> more{s.dextras, s.dqk_pre, s.dqk_pre ? s.dqk_pre + k_at : nullptr, A::reads_x ? s.dnormed : nullptr,
                               gpt.gradients};
    const double forward =
        fastest([&] { attention_layer_forward(cpu, layer.attention, in, gpt.weights, a.attention, s.attention); });
    const double backward = fastest(
        [&] { attention_layer_backward(cpu, layer.attention, in, gpt.weights, a.attention, s.dout, to, more, s.attention); });
    return {forward, backward, expected_pairs(layer.attention, c.NH, T).tiles};
}

void print(const std::string& name, const Times& times, const Times& dense) {
    const double p = times.tiles / dense.tiles;
    std::printf("| %-34s | %5.3f | %8.1f ms | %5.2f | %4.2f | %8.1f ms | %5.2f | %4.2f |\n", name.c_str(), p, times.forward * 1e3,
                dense.forward / times.forward, times.forward / (p * dense.forward), times.backward * 1e3,
                dense.backward / times.backward, times.backward / (p * dense.backward));
    std::fflush(stdout);
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    keep_freed_memory();
    return run_program("bench_patterns", [&] {
        const int T = argc > 1 ? std::atoi(argv[1]) : 8192;
        const std::string word = argc > 2 ? argv[2] : "";
        if (T < 64 || T > 1 << 20) fail(Exit::usage, "T is ", argv[1], ", expected 64 to ", 1 << 20);
        use_threads(0, 1);
        std::printf("T %d, 4 query heads, 2 key/value heads, head size 64, float32\n\n", T);
        std::printf("| variant                            | p     | forward     | faster | of p | backward    | faster | of p |\n");
        std::printf("| ---------------------------------- | ----- | ----------- | ------ | ---- | ----------- | ------ | ---- |\n");
        const Times dense = measure<causal>(T, {});
        print("causal", dense, dense);
        auto row = [&]<class A>(const char* text, const std::map<std::string, double>& settings) {
            const std::string name = std::string(A::name) + text;
            if (name.find(word) != std::string::npos) print(name, measure<A>(T, settings), dense);
        };
        row.template operator()<sliding_window>(", 256", {});
        row.template operator()<sinks>(", 4 + 256", {});
        row.template operator()<sinks_cache>(", 4 + 256", {});
        row.template operator()<longformer>(", 64 + 256", {});
        row.template operator()<strided>(", l 128", {});
        row.template operator()<fixed_factorized>(", l 128, c 32", {});
        row.template operator()<bigbird>(", 3 + 1 + 1 blocks of 64", {});
        row.template operator()<deepspeed_fixed>(", 4 + 1 blocks of 64", {});
        row.template operator()<longnet>(", 4 branches from 256", {});
        row.template operator()<dsa>(", row rule 512, 256", {});
        const double tenth = T / 64 / 2 * 0.1;   // of the blocks that a query tile has before it on average
        row.template operator()<adaptive_sparse>(", hard, a tenth of blocks",
                                                 {{"adaptive_sparse_mask", 1},
                                                  {"adaptive_sparse_dense_heads", 0},
                                                  {"adaptive_sparse_top_k", std::max(1.0, std::floor(tenth))}});
        row.template operator()<adaptive_sparse>(", soft-hard, a tenth of blocks",
                                                 {{"adaptive_sparse_dense_heads", 0},
                                                  {"adaptive_sparse_top_k", std::max(1.0, std::floor(tenth))}});
        row.template operator()<nsa>(", the paper's constants", {});
    });
}
