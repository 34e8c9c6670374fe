// Times every operation of a training step on a GPU, attention alone, and whole steps, against what the device reaches in this run:
//   make build/dev/bench_gpu && build/dev/bench_gpu [--batch-size 64] [--seq-len 1024] [--model 124m] [--parts kernels steps ...]
// Everything is bf16. The model is one of 124M parameters in Qwen3 form unless --model names a preset or a Hugging Face folder.
// --count prints what a step of causal launches, and the bytes that its operations move, on paper: nothing is timed and no GPU is
// needed. Launches are the nodes of recorded CUDA graphs, of each operation and, to see that none is left out, of the whole step. They are
// recorded with a small model of as many layers: the other sizes change only how many chunks of logits there are. On the emulator a
// product is one launch; cuBLASLt may need a second one to add up its parts. Bytes are those of step_kernels.cuh for the
// model of --model, which takes no memory here.

#include "dev/step_kernels.cuh"
#include "dev/timing.cuh"
#include "dev/trainee.cuh"
#include "model/base/command_line.h"
#include "model/base/text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/device/machine.h"

namespace {

/// "124m", a preset, or a Hugging Face folder with a config.json.
Config config_of(const std::string& model) {
    if (is_preset(model)) return preset(model);
    if (model != "124m") return load_config(model);
    Config c;
    c.V = 50304, c.C = 768, c.L = 12, c.NH = 12, c.NKV = 12, c.HS = 64, c.F = 2048;
    return c;
}

struct Options {
    std::string model = "124m";
    int B = 64, T = 1024, attention_T = 8192, repeats = 30;
    std::vector<std::string> parts = {"kernels", "attention", "steps"};
    bool quick = false, count = false;
    bool has(const std::string& part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Times the kernels of a training step, attention and whole steps on a GPU.");
    app.option_defaults()->always_capture_default();
    const auto positive = whole_number_from(1, 1 << 28);
    app.add_option("--model", o.model, "124m, a preset, or a Hugging Face folder with a config.json");
    app.add_option("--batch-size", o.B, "sequences of a micro-step")->transform(positive);
    app.add_option("--seq-len", o.T, "tokens per sequence, T")->transform(positive);
    app.add_option("--attention-seq-len", o.attention_T, "T of the table of attention alone")->transform(positive);
    app.add_option("--repeats", o.repeats, "runs of which the median is printed")->transform(whole_number_from(1, 10000));
    app.add_option("--parts", o.parts, "tables to print")->check(CLI::IsMember({"kernels", "attention", "steps"}));
    app.add_flag("--quick", o.quick, "run everything once to see that it runs; the times mean nothing");
    app.add_flag("--count", o.count, "print launches and bytes of a step instead; nothing is timed");
    return parse_options(app, argc, argv);
}

// ---- launches and bytes of a step, counted

/// The same operations on the fewest numbers.
Config small(Config c) {
    c.NKV = c.NKV == c.NH ? 2 : 1;
    c.NH = 2, c.HS = 32, c.C = 64, c.F = 64, c.V = 264;
    return c;
}

/// How many nodes a graph of `work` has.
template <class Work>
size_t launches_of(GPU device, Work work) {
    cudaGraph_t graph;
    size_t nodes = 0;
    check(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
    work();
    check(cudaStreamEndCapture(device.stream, &graph));
    check(cudaGraphGetNodes(graph, nullptr, &nodes));
    check(cudaGraphDestroy(graph));
    return nodes;
}

struct Count {
    size_t launches = 0;
    double bytes = 0, again = 0;
    void operator+=(const Count& other) {
        launches += other.launches;
        bytes += other.bytes, again += other.again;
    }
};

void print(const std::string& name, const std::string& runs, const Count& count) {
    std::printf("| %-29s | %4s | %8zu | %10.1f | %10.1f |\n", name.c_str(), runs.c_str(), count.launches, count.bytes / 1e6,
                count.again / 1e6);
}

/// How often a step runs an operation; the last chunk of logits is smaller than the others.
size_t runs_of(const StepKernel& k) { return size_t(std::ceil(k.count)); }

void print_counts(GPU device, const Config& config, const Options& o) {
    Trainee<GPU, bf16> trainee(device, on_gpu::causal, small(config), 1, 64);
    trainee.train_step();   // lets libraries allocate what no graph may
    const StepKernels<bf16> recorded(device, trainee.gpt, trainee.batch, trainee.different);

    GPT<GPU, bf16> gpt(on_gpu::causal, config, o.B, o.T, Mode::training);   // a plan: no memory
    const Batch batch{o.B, o.T, nullptr};
    const StepKernels<bf16> asked(device, gpt, batch, count_different(random_tokens(size_t(o.B) * o.T, config.V, 1)));

    std::printf("A step of causal, %s, B %d, T %d, in bf16. Bytes: inputs read once, outputs written once; again: what is read a "
                "second time, and partial sums. MB are 10^6.\n\n"
                "| operation                     | runs | launches |         MB |  again, MB |\n|---|---|---|---|---|\n",
                o.model.c_str(), o.B, o.T);
    Count of_kind[3], all;
    size_t described = 0;
    for (size_t n = 0; n < asked.list().size(); n++) {
        const StepKernel &k = asked.list()[n], &of_small = recorded.list()[n];
        const size_t launches = launches_of(device, of_small.run);
        described += runs_of(of_small) * launches;
        const Count count{runs_of(k) * launches, k.count * k.bytes, k.count * k.again};
        print(k.name, std::to_string(runs_of(k)), count);
        of_kind[int(k.kind)] += count;
        all += count;
    }
    const char* const names[3] = {"matrix products", "attention", "everything else"};
    for (int kind = 0; kind < 3; kind++) print(names[kind], "", of_kind[kind]);
    print("a step", "", all);
    const size_t launched = launches_of(device, [&] { trainee.launch_step(); });
    if (launched != described)
        fail(Exit::usage, "a step of the small model has ", launched, " launches, and dev/step_kernels.cuh describes ", described);
}

// ---- times

void print_kernel(const StepKernel& k, const Timing& t, const Ceilings& top) {
    std::printf("| %-29s | %5.1f | %8.4f ms | %4.1f%% | %s %s %8.3f ms | %s\n", k.name.c_str(), k.count, t.seconds * 1e3,
                100 * t.spread / t.seconds, bytes_columns(k.bytes, t.seconds, top).c_str(),
                flops_columns(k.flops, t.seconds, top).c_str(), k.count * t.seconds * 1e3, card_columns(t.card).c_str());
}

struct StepTime {
    Timing whole;
    double of_kind[3] = {};   // seconds of the step's kernels on their own, by Kind
    size_t bytes = 0;
    double flops = 0;
    double operator[](Kind kind) const { return of_kind[int(kind)]; }
};

/// Whole steps, and each of their kernels: a line for it if `print`.
StepTime time_variant(Bench& bench, const std::string& variant, const Config& config, const Options& o, const Ceilings& top, bool print) {
    StepTime times;
    const size_t before = gpu_bytes.now;
    Trainee<GPU, bf16> trainee(bench.device(), named(variant, all_variants_on_gpu()), config, o.B, o.T);
    times.bytes = gpu_bytes.now - before;
    times.flops = count_flops(trainee.gpt.net, o.T).per_token * o.B * o.T;
    for (int n = 0; n < 2; n++) trainee.train_step();   // the second one records the graph
    times.whole = bench.time([&] { trainee.train_step(); }, Caches::as_they_are);
    trainee.require_finite();
    if (print)
        std::printf("\n%s, B %d, T %d:\n\n"
                    "| kernel                        | count |        time | +/-   |    GB/s | copy | TFLOP/s | matmul | "
                    "  of a step |  MHz |   W |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
                    variant.c_str(), o.B, o.T);
    const StepKernels<bf16> kernels(bench.device(), trainee.gpt, trainee.batch, trainee.different);
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

void print_step(const char* variant, const StepTime& times, const Options& o, const Ceilings& top) {
    const double tokens = double(o.B) * o.T, seconds = times.whole.seconds;
    std::printf("| %-15s | %9.3f ms | %4.1f%% | %9.0f | %s %10s | %8.3f ms | %8.3f ms | %s\n", variant, seconds * 1e3,
                100 * times.whole.spread / seconds, tokens / seconds, flops_columns(times.flops, seconds, top).c_str(),
                human_bytes(double(times.bytes)).c_str(), times[Kind::matmul] * 1e3, times[Kind::attention] * 1e3,
                card_columns(times.whole.card).c_str());
}

void bench_steps(Bench& bench, const Config& config, const Options& o, const Ceilings& top) {
    const bool kernels = o.has("kernels");
    const StepTime baseline = time_variant(bench, "causal", config, o, top, kernels);
    if (!o.has("steps")) return;
    const StepTime gated = time_variant(bench, "asga", config, o, top, kernels);
    const StepTime windowed = time_variant(bench, "sliding_window", config, o, top, false);
    std::printf("\nWhole steps, B %d, T %d. Products and attention were timed one kernel at a time: with the other kernels they need not "
                "add up to the step.\n\n"
                "| variant         |       a step | +/-   |  tokens/s | TFLOP/s | matmul |     memory |    products |   attention "
                "|  MHz |   W |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
                o.B, o.T);
    print_step("causal", baseline, o, top);
    print_step("asga", gated, o, top);
    print_step("sliding_window", windowed, o, top);
    std::printf("\nasga against causal: attention takes %.2f times as long, a step %.2f times; the speed is %.2f of the "
                "baseline's\n",
                gated[Kind::attention] / baseline[Kind::attention], gated.whole.seconds / baseline.whole.seconds,
                baseline.whole.seconds / gated.whole.seconds);
}

/// The attention of a layer of B sequences and NH heads alone, by the instructions that attention_kernels() says.
void bench_attention(Bench& bench, const char* variant, const Options& o, int B, int NH, int HS, const Ceilings& top) {
    const int T = o.attention_T;
    const std::string name = std::string(variant) + (attention_kernels() == AttentionKernels::wgmma ? " wgmma" : "");
    Config c;
    c.V = 64, c.C = 64, c.L = 1, c.NH = c.NKV = NH, c.HS = HS, c.F = 64;
    Trainee<GPU, bf16> trainee(bench.device(), named(variant, all_variants_on_gpu()), c, B, T);
    trainee.launch_gradients();
    const auto [forward, backward] = trainee.time_attention([&](const auto& work) { return bench.time(work); });
    const double product = 2.0 * HS * B * trainee.gpt.net.layers[0].attention->expected_pairs(NH, T).pairs;
    std::printf("| %-20s | %5d | %3d | %2d | %2d | %8.3f ms | %4.1f%% | %s %s %8.3f ms | %4.1f%% | %s %s\n", name.c_str(), T, HS, B, NH,
                forward.seconds * 1e3, 100 * forward.spread / forward.seconds,
                flops_columns(2 * product, forward.seconds, top).c_str(), card_columns(forward.card).c_str(), backward.seconds * 1e3,
                100 * backward.spread / backward.seconds, flops_columns(5 * product, backward.seconds, top).c_str(),
                card_columns(backward.card).c_str());
}

void bench_attention(Bench& bench, const Options& o, const Ceilings& top) {
    std::printf("\nAttention alone. TFLOP/s count visible pairs only: two products forward, five backward (the scores are computed "
                "again).\n\n"
                "| attention            |     T |  HS |  B | NH |     forward | +/-   | TFLOP/s | matmul |  MHz |   W |    backward "
                "| +/-   | TFLOP/s | matmul |  MHz |   W |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    const int B = o.quick ? 1 : 4, NH = o.quick ? 2 : 12;
    for (const char* variant : {"causal", "sliding_window"})
        for (int HS : {128, 64})
            for (const AttentionKernels kernels : {AttentionKernels::mma, AttentionKernels::wgmma}) {
                if (kernels == AttentionKernels::wgmma && !has_wgmma()) continue;
                const MultiplyingBy chosen(kernels);
                bench_attention(bench, variant, o, B, NH, HS, top);
            }
}

void run(const Options& o) {
    const OpenGpu gpu(0, false);
    const Config config = config_of(o.model);
    if (o.count) return print_counts(gpu.device(), config, o);
    Bench bench(gpu.device(), {o.repeats, o.quick});
    const Ceilings top = bench.ceilings();
    std::printf("%s; copy %.0f GB/s read and written, bf16 matmul %.1f TFLOP/s (side %d, random numbers)\n",
                describe(gpu.device(), 0).c_str(), top.bytes_per_second / 1e9, top.flops / 1e12, bench.effort().matmul_side());
    std::printf("medians of %d runs, +/- half the distance between the quartiles; bytes are the fewest possible; kernels start on "
                "cold caches; MHz and W: the multiprocessors' clock and the card's power during the last run (- without NVML)\n",
                bench.effort().repeats);
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
