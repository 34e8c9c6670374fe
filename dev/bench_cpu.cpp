// Times every operation of a training step on the CPU and prints what fraction of the machine's measured ceilings it reaches:
//   make build/dev/bench_cpu && build/dev/bench_cpu [B T]
// The shapes are those of the 7M preset. Then whole steps of the baseline and of each ASGA variant.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "attention/variant.h"
#include "model/base/options.h"
#include "model/base/text.h"
#include "model/device/machine.h"
#include "model/gpt.h"
#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/operations/linear.cuh"
#include "model/operations/residual.cuh"
#include "model/operations/swiglu.cuh"
#include "model/run/feed.cuh"
#include "model/run/machine.cuh"
#include "model/run/summary.h"

namespace {

/// The fastest of the repeats in seconds: other processes only ever add to the time.
double fastest(const std::function<void()>& work, int repeats = 5) {
    work();
    double best = 1e30;
    for (int n = 0; n < repeats; n++) {
        Stopwatch watch;
        work();
        best = std::min(best, watch.seconds());
    }
    return best;
}

struct Ceilings {
    double flops;              // float32 matrix products
    double bytes_per_second;   // memory, read and written
};

Ceilings measure_ceilings() {
    const size_t n = size_t(32) << 20;
    std::vector<float> a(n, 1), b(n, 2);
    const double seconds = fastest([&] {
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) a[i] += b[i] * 3;
    });
    return {measure_matmul(CPU{}), 3.0 * n * sizeof(float) / seconds};
}

void row(const char* name, double seconds, double bytes, double flops, const Ceilings& top) {
    const std::string arithmetic =
        flops > 0 ? text("%7.1f GFLOP/s | %4.0f%%", flops / seconds / 1e9, 100 * flops / seconds / top.flops) : "        |      ";
    std::printf("| %-28s | %9.3f ms | %7.1f GB/s | %4.0f%% | %s |\n", name, seconds * 1e3, bytes / seconds / 1e9,
                100 * bytes / seconds / top.bytes_per_second, arithmetic.c_str());
}

/// The elementwise operations and the linear layers of one layer of the model.
void bench_operations(GPT<CPU, float>& gpt, const Ceilings& top) {
    const Config& c = gpt.net.config;
    const int BT = gpt.B * gpt.T, Q = c.NH * c.HS, heads = c.NH + c.NKV, QKV = (heads + c.NKV) * c.HS;
    const double f = sizeof(float) * double(BT);
    auto& s = gpt.scratch;
    auto& a = gpt.layers[0];
    float *w = gpt.weights, *g = gpt.gradients;
    float* const none = nullptr;
    const auto& layer = gpt.net.layers[0];
    std::vector<int32_t> tokens(BT);
    for (int n = 0; n < BT; n++) tokens[n] = (n * 7919) % c.V;
    const CPU cpu;
    auto time = [&](const char* name, double bytes, double flops, const std::function<void()>& work) {
        row(name, fastest(work), bytes, flops, top);
    };
    BatchFeed<CPU> feed(gpt.B, gpt.T, c.V);
    feed.allocate(cpu);
    const Batch batch = feed.put(cpu, tokens.data(), nullptr, gpt.B, gpt.T);
    time("embedding_forward", f * 2 * c.C, 0, [&] { embedding_forward(cpu, gpt.residual, tokens.data(), w, BT, c.C); });
    time("embedding_backward", f * 3 * c.C, 0, [&] { embedding_backward(cpu, g, s.dresidual, batch.by_token, c.C); });
    time("rmsnorm_forward", f * 2 * c.C, 0, [&] {
        rmsnorm_forward(cpu, a.normed2, a.rstd2, a.middle, w + layer.input_norm.offset, BT, c.C, 1e-6);
    });
    time("residual_forward", f * (3 * c.C + Q), 2.0 * BT * Q * c.C, [&] {
        residual_forward(cpu, a.middle, a.normed2, a.rstd2, gpt.residual, s.dout, w + layer.o_proj.offset,
                         w + layer.post_attention_norm.offset, BT, Q, c.C, 1e-6);
    });
    time("rmsnorm_backward", f * 4 * c.C, 0, [&] {
        rmsnorm_backward(cpu, s.dresidual, g + layer.input_norm.offset, s.dnormed, a.middle, w + layer.input_norm.offset, a.rstd2,
                         BT, c.C, Write::add, Write::add);
    });
    const QkShape<float> shape = gpt.qk_shape(0, gpt.B, gpt.T);
    time("qk_norm_rope_forward", f * 2 * heads * c.HS, 0, [&] { qk_norm_rope_forward(cpu, a.qk, none, a.qk_rstd, a.qkv, shape, 1e-6); });
    time("qk_norm_rope_backward", f * 3 * heads * c.HS, 0, [&] {
        qk_norm_rope_backward(cpu, s.dqkv, g + layer.q_norm.offset, g + layer.k_norm.offset, s.dqk, none, a.qkv, a.qk_rstd, shape,
                              Write::add);
    });
    time("swiglu_forward", f * 3 * c.F, 0, [&] { swiglu_forward(cpu, a.activated, a.gate_up, BT, c.F); });
    time("swiglu_backward", f * 5 * c.F, 0, [&] { swiglu_backward(cpu, s.dgate_up, s.dactivated, a.gate_up, BT, c.F); });
    time("cross_entropy", f * 2 * c.V, 0, [&] {
        for (int r = 0; r + gpt.logit_rows() <= BT; r += gpt.logit_rows())
            cross_entropy(cpu, s.losses + r, s.logits, tokens.data() + r, gpt.logit_rows(), c.V, 1e-6f);
    });
    time("adamw_update", 7.0 * sizeof(float) * double(gpt.net.tensors.size()), 0, [&] { gpt_update(cpu, gpt, AdamW{}, 1); });
    auto linear = [&](const char* name, int IN, int OUT, float* out, float* in, Slot weight) {
        const double flops = 2.0 * BT * IN * OUT, bytes = f * (IN + OUT);
        time((std::string(name) + " forward").c_str(), bytes, flops,
             [&] { linear_forward(cpu, out, in, w + weight.offset, none, BT, IN, OUT); });
        time((std::string(name) + " dinput").c_str(), bytes, flops,
             [&] { linear_backward_input(cpu, in, out, w + weight.offset, BT, IN, OUT, Write::overwrite); });
        time((std::string(name) + " dweight").c_str(), bytes, flops,
             [&] { linear_backward_weight(cpu, g + weight.offset, none, out, in, BT, IN, OUT, Write::add); });
    };
    linear("qkv", c.C, QKV, s.dqkv, s.dnormed, layer.qkv);
    linear("o_proj", Q, c.C, s.dnormed, s.dout, layer.o_proj);
    linear("gate_up", c.C, 2 * c.F, s.dgate_up, s.dnormed, layer.gate_up);
    linear("down_proj", c.F, c.C, s.dnormed, s.dactivated, layer.down_proj);
}

/// Attention of one layer and whole steps of one variant; returns the seconds of a step.
double bench_variant(const std::string& variant, int B, int T, const Ceilings& top) {
    GPT<CPU, float> gpt(named(variant), preset("qwen-7m"), B, T, Mode::training);
    gpt.allocate(CPU{});
    initialise(gpt.net.tensors, 1, gpt.weights);
    const Config& c = gpt.net.config;
    std::vector<int32_t> tokens(size_t(B) * T), targets(tokens.size());
    for (size_t n = 0; n < tokens.size(); n++) tokens[n] = int(n * 7919 % 512), targets[n] = int(n * 31 % 512);
    const CPU cpu;
    BatchFeed<CPU> feed(B, T, c.V);
    feed.allocate(cpu);
    const Batch batch = feed.put(cpu, tokens.data(), targets.data(), B, T);
    auto step = [&] {
        gpt_forward(cpu, gpt, batch);
        gpt_loss(cpu, gpt, batch, Write::overwrite, 1.0f / float(B * T));
        gpt_backward(cpu, gpt, batch, Write::overwrite);
        gpt_norm(cpu, gpt);
        gpt_update(cpu, gpt, AdamW{}, 1);
    };
    const double whole = fastest(step, 3);
    const LayerPasses<CPU, float>& attention = gpt.attention(0);
    auto& a = gpt.layers[0];
    auto& s = gpt.scratch;
    const LayerInputs<float> in = attention_inputs(gpt, 0, B, T);
    const size_t k_at = size_t(c.NH) * c.HS, v_at = in.qk_row;
    const double forward = fastest([&] { attention.forward(cpu, in, gpt.weights, a.attention, s.attention, {}); });
    ScoreInputGradients<float> score_inputs{s.dscore_inputs[0], s.dqk_pre, s.dqk_pre ? s.dqk_pre + k_at : nullptr, nullptr, gpt.gradients};
    const double backward = fastest([&] {
        attention.backward(cpu, in, gpt.weights, a.attention, s.dout,
                           {{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, in.v_row}}, score_inputs, s.attention);
    });
    const double flops = count_flops(gpt.net, T).per_token * B * T;
    std::printf("| %-17s | %8.2f ms | %8.2f ms | %4.2f | %8.1f ms | %8.0f | %7.1f GFLOP/s | %3.0f%% |\n", variant.c_str(), forward * 1e3,
                backward * 1e3, backward / forward, whole * 1e3, B * T / whole, flops / whole / 1e9,
                100 * flops / whole / top.flops);
    return whole;
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    return run_program("bench_cpu", [&] {
        const int B = argc > 2 ? std::atoi(argv[1]) : 8, T = argc > 2 ? std::atoi(argv[2]) : 512;
        if (B < 1 || T < 1) fail(Exit::usage, "bench_cpu [B T]: two positive numbers");
        const int threads = use_threads(0, 1);
        const Ceilings top = measure_ceilings();
        std::printf("%s: sgemm %.1f GFLOP/s, memory %.1f GB/s; B %d, T %d\n\n", describe_cpu(threads).c_str(), top.flops / 1e9,
                    top.bytes_per_second / 1e9, B, T);
        std::printf(
            "| operation                    |         time |    memory    |      |    arithmetic   |      "
            "|\n|---|---|---|---|---|---|\n");
        {
            GPT<CPU, float> gpt(named("causal"), preset("qwen-7m"), B, T, Mode::training);
            gpt.allocate(CPU{});
            initialise(gpt.net.tensors, 1, gpt.weights);
            bench_operations(gpt, top);
        }
        std::printf(
            "\n| variant           | attention forward | backward | ratio | whole step | tokens/s | arithmetic | of sgemm "
            "|\n|---|---|---|---|---|---|---|---|\n");
        const double baseline = bench_variant("causal", B, T, top);
        const double whole = bench_variant("asga", B, T, top);
        bench_variant("asga_no_geometry", B, T, top);
        bench_variant("asga_fixed", B, T, top);
        bench_variant("asga_neither", B, T, top);
        std::printf("\na step with asga takes %.2f times a step of the baseline\n", whole / baseline);
    });
}
