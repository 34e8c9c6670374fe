// Counts what a training step launches, and the bytes that its operations move: on paper, nothing is timed and no GPU is needed.
//   make build/emulated/dev/count_step && build/emulated/dev/count_step [--model 124m] [--batch-size 64] [--seq-len 1024]
// Launches are the nodes of recorded CUDA graphs, of each operation and, to see that none is left out, of the whole step. They are
// recorded with a small model of as many layers: the other sizes change only how many chunks of logits there are. On the emulator a
// product is one launch; cuBLASLt may need a second one to add up its parts. Bytes are those of step_kernels.cuh, of the model that
// was asked for, which takes no memory here.
#include "attention/causal.cuh"
#include "dev/step_kernels.cuh"
#include "dev/trainee.cuh"
#include "model/device/machine.h"
#include "model/run/machine.cuh"

namespace {

bool parse(int argc, char** argv, StepOptions& o) {
    CLI::App app("Counts the launches and the bytes of a training step of causal.");
    app.option_defaults()->always_capture_default();
    o.add_to(app);
    return parse_options(app, argc, argv);
}

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

void run(const StepOptions& o) {
    const OpenGpu gpu(0, false);
    const GPU device = gpu.device();
    const Config config = config_of(o.model);
    Trainee trainee(device, variant_of<GpuLayer, causal>, small(config), 1, 64);
    trainee.train_step();   // lets libraries allocate what no graph may
    const StepKernels<bf16, causal> recorded(device, trainee.gpt, trainee.batch, trainee.different);

    GPT<GPU, bf16> gpt(variant_of<GpuLayer, causal>, config, o.B, o.T, Mode::training);   // a plan: no memory
    const Batch batch{o.B, o.T, nullptr};
    const StepKernels<bf16, causal> asked(device, gpt, batch, count_different(random_tokens(size_t(o.B) * o.T, config.V, 1)));

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

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("count_step", [&] {
        StepOptions options;
        if (parse(argc, argv, options)) run(options);
    });
}
