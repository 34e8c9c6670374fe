// Times every operation of a training step on a GPU, attention alone, and whole steps, against what the device reaches in this run:
//   make build/dev/bench_gpu && build/dev/bench_gpu [--batch-size 64] [--seq-len 1024] [--model 124m] [--parts kernels steps ...]
// Everything is bf16. The model is one of 124M parameters in Qwen3 form unless --model names a preset or a Hugging Face folder.

#include "attention/asga.cuh"
#include "attention/causal.cuh"
#include "dev/step_kernels.cuh"
#include "dev/timing.cuh"
#include "dev/trainee.cuh"
#include "model/base/text.h"
#include "model/device/machine.h"

namespace {

/// Causal attention within reach of the 256 tokens before each.
struct window_256 : Policy {
    static constexpr const char* name = "left window 256";
    static constexpr int LEFT = 256;
    using Policy::Policy;
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(LEFT, i0, i1, j0, j1); }
    constexpr bool visible(int, int i, int j) const { return j <= i && i - j <= LEFT; }
};

struct Options : StepOptions {
    int attention_T = 8192, repeats = 30;
    std::vector<std::string> parts = {"kernels", "attention", "steps"};
    bool quick = false;
    bool has(const std::string& part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Times the kernels of a training step, attention and whole steps on a GPU.");
    app.option_defaults()->always_capture_default();
    o.add_to(app);
    app.add_option("--attention-seq-len", o.attention_T, "T of the table of attention alone")->transform(whole_number_from(1, 1 << 28));
    app.add_option("--repeats", o.repeats, "runs of which the median is printed")->transform(whole_number_from(1, 10000));
    app.add_option("--parts", o.parts, "tables to print")->check(CLI::IsMember({"kernels", "attention", "steps"}));
    app.add_flag("--quick", o.quick, "run everything once to see that it runs; the times mean nothing");
    return parse_options(app, argc, argv);
}

// ---- the tables

void print_kernel(const StepKernel& k, const Timing& t, const Ceilings& top) {
    std::printf("| %-29s | %5.1f | %8.4f ms | %4.1f%% | %s %s %8.3f ms |\n", k.name.c_str(), k.count, t.seconds * 1e3,
                100 * t.spread / t.seconds, bytes_columns(k.bytes, t.seconds, top).c_str(),
                flops_columns(k.flops, t.seconds, top).c_str(), k.count * t.seconds * 1e3);
}

struct StepTime {
    Timing whole;
    double of_kind[3] = {};   // seconds of the step's kernels on their own, by Kind
    size_t bytes = 0;
    double operator[](Kind kind) const { return of_kind[int(kind)]; }
};

/// Whole steps, and each of their kernels: a line for it if `print`.
template <class A>
StepTime time_variant(Bench& bench, const Config& config, const Options& o, const Ceilings& top, bool print) {
    StepTime times;
    const size_t before = card_memory(bench.device()).used;
    Trainee trainee(bench.device(), variant_of<GpuLayer, A>, config, o.B, o.T);
    times.bytes = card_memory(bench.device()).used - before;
    for (int n = 0; n < 2; n++) trainee.train_step();   // the second one records the graph
    times.whole = bench.time([&] { trainee.train_step(); }, Caches::as_they_are);
    trainee.require_finite();
    if (print)
        std::printf("\n%s, B %d, T %d:\n\n"
                    "| kernel                        | count |        time | +/-   |    GB/s | copy | TFLOP/s | matmul | "
                    "  of a step |\n|---|---|---|---|---|---|---|---|---|\n",
                    A::name, o.B, o.T);
    const StepKernels<bf16, A> kernels(bench.device(), trainee.gpt, trainee.batch, trainee.different);
    for (const StepKernel& k : kernels.list()) {
        if (!print && k.kind == Kind::other) continue;
        if (k.prepare) k.prepare();
        const Timing t = bench.time(k.run);
        times.of_kind[int(k.kind)] += k.count * t.seconds;
        if (print) print_kernel(k, t, top);
    }
    if (!print) return times;
    std::printf("\nall kernels of a step together: %.3f ms; a whole step: %.3f ms\n",
                (times[Kind::matmul] + times[Kind::attention] + times[Kind::other]) * 1e3, times.whole.seconds * 1e3);
    trainee.require_finite();
    return times;
}

template <class A>
void print_step(const StepTime& times, const Config& config, const Options& o, const Ceilings& top) {
    const double tokens = double(o.B) * o.T, seconds = times.whole.seconds;
    const double flops = count_flops(Qwen(variant_of<GpuLayer, A>, config), o.T).per_token * tokens;
    const double rest = seconds - times[Kind::matmul] - times[Kind::attention];
    std::printf("| %-15s | %9.3f ms | %4.1f%% | %9.0f | %s %10s | %8.3f ms | %8.3f ms | %8.3f ms | %4.1f%% |\n", A::name,
                seconds * 1e3, 100 * times.whole.spread / seconds, tokens / seconds, flops_columns(flops, seconds, top).c_str(),
                human_bytes(double(times.bytes)).c_str(), times[Kind::matmul] * 1e3, times[Kind::attention] * 1e3, rest * 1e3,
                100 * rest / seconds);
}

void bench_steps(Bench& bench, const Config& config, const Options& o, const Ceilings& top) {
    const bool kernels = o.has("kernels");
    const StepTime baseline = time_variant<causal>(bench, config, o, top, kernels);
    if (!o.has("steps")) return;
    const StepTime gated = time_variant<asga>(bench, config, o, top, kernels);
    const StepTime windowed = time_variant<window_256>(bench, config, o, top, false);
    std::printf("\nWhole steps, B %d, T %d. The rest: what is neither matrix product nor attention, launches included.\n\n"
                "| variant         |       a step | +/-   |  tokens/s | TFLOP/s | matmul |     memory |    products |   attention "
                "|        rest |       |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
                o.B, o.T);
    print_step<causal>(baseline, config, o, top);
    print_step<asga>(gated, config, o, top);
    print_step<window_256>(windowed, config, o, top);
    std::printf("\nasga against causal: attention takes %.2f times as long, a step %.2f times; the speed is %.2f of the "
                "baseline's\n",
                gated[Kind::attention] / baseline[Kind::attention], gated.whole.seconds / baseline.whole.seconds,
                baseline.whole.seconds / gated.whole.seconds);
}

/// Attention of policy P alone, on random numbers.
template <class P>
void bench_attention(Bench& bench, const Options& o, int B, int NH, int HS, const Ceilings& top) {
    const GPU device = bench.device();
    const int T = o.attention_T;
    Config config;
    config.NH = config.NKV = NH, config.HS = HS;
    const P policy(config, 0);
    const size_t row = size_t(NH) * HS, n = size_t(B) * T * row;
    const RandomArray<bf16> q(device, n, 1), k(device, n, 2), v(device, n, 3), dout(device, n, 4);
    const RandomArray<bf16> out(device, n, 5), dv(device, n, 6);
    const RandomArray<float> lse(device, size_t(B) * NH * T, 7), dq(device, n, 8), dk(device, n, 9);
    const RandomArray<float> workspace(device, attention_workspace(device, policy, B, T, T, NH) / sizeof(float) + 1, 10);
    AttentionForward<bf16> a{};
    a.B = B, a.T = a.S = T, a.NH = a.NKV = NH, a.HS = HS;
    a.q = {q, row}, a.k = {k, row}, a.v = {v, row};
    a.out = out, a.lse = lse;
    AttentionBackward<bf16> g{};
    g.dout = dout;
    g.dq = {dq, row}, g.dk = {dk, row}, g.dv = {dv, row};
    g.workspace = reinterpret_cast<std::byte*>(static_cast<float*>(workspace));
    const double product = 2.0 * HS * B * count_pairs(policy, NH, T).pairs;
    const Timing forward = bench.time([&] { attention_forward(device, policy, a); });
    const Timing backward = bench.time([&] { attention_backward(device, policy, a, g); });
    std::printf("| %-15s | %5d | %3d | %2d | %2d | %8.3f ms | %4.1f%% | %s %8.3f ms | %4.1f%% | %s\n", P::name, T, HS, B, NH,
                forward.seconds * 1e3, 100 * forward.spread / forward.seconds,
                flops_columns(2 * product, forward.seconds, top).c_str(), backward.seconds * 1e3,
                100 * backward.spread / backward.seconds, flops_columns(5 * product, backward.seconds, top).c_str());
}

void bench_attention(Bench& bench, const Options& o, const Ceilings& top) {
    std::printf("\nAttention alone. TFLOP/s count visible pairs only: two products forward, five backward (the scores are computed "
                "again).\n\n"
                "| attention       |     T |  HS |  B | NH |     forward | +/-   | TFLOP/s | matmul |    backward | +/-   "
                "| TFLOP/s | matmul |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    const int B = o.quick ? 1 : 4, NH = o.quick ? 2 : 12;
    bench_attention<causal>(bench, o, B, NH, 128, top);
    bench_attention<causal>(bench, o, B, NH, 64, top);
    bench_attention<window_256>(bench, o, B, NH, 128, top);
    bench_attention<window_256>(bench, o, B, NH, 64, top);
}

void run(const Options& o) {
    const OpenGpu gpu(0, false);
    const Effort effort = effort_of(o.repeats, o.quick);
    Bench bench(gpu.device(), effort);
    const Config config = config_of(o.model);
    const Ceilings top = bench.ceilings();
    std::printf("%s; copy %.0f GB/s read and written, bf16 matmul %.1f TFLOP/s (side %d, random numbers)\n",
                describe(gpu.device(), 0).c_str(), top.bytes_per_second / 1e9, top.flops / 1e12, effort.matmul_side);
    std::printf("medians of %d runs, +/- half the distance between the quartiles; bytes are the fewest possible; kernels start on "
                "cold caches\n",
                effort.repeats);
    if (o.has("attention")) bench_attention(bench, o, top);
    if (o.has("kernels") || o.has("steps")) bench_steps(bench, config, o, top);
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("bench_gpu", [&] {
        Options options;
        if (parse(argc, argv, options)) run(options);
    });
}
