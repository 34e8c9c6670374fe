// Climbs the ladder of attention kernels, forward and backward: times every rung, compares its results with those of the first, and
// prints a markdown table for each way. tests/gpu/test_ladder.cpp compares all of them with attention in double.
//   make build/dev/ladder/ladder && build/dev/ladder/ladder [--batch-size 4] [--seq-len 4096] [--heads 12]

#include "dev/ladder/rungs.h"
#include "dev/timing.cuh"
#include "model/base/command_line.h"
#include "model/device/machine.h"

namespace {

struct Options {
    int B = 4, T = 4096, NH = 12, repeats = 10;
    bool quick = false;
};

bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Times a ladder of attention kernels, from one thread per row to the one that trains.");
    app.option_defaults()->always_capture_default();
    const auto positive = whole_number_from(1, 1 << 20);
    app.add_option("--batch-size", o.B, "sequences")->transform(positive);
    app.add_option("--seq-len", o.T, "tokens per sequence, T")->transform(positive);
    app.add_option("--heads", o.NH, "heads, of 64 and then of 128 numbers")->transform(positive);
    app.add_option("--repeats", o.repeats, "runs of which the median is printed")->transform(positive);
    app.add_flag("--quick", o.quick, "run everything once to see that it runs; the times mean nothing");
    return parse_options(app, argc, argv);
}

struct Result {
    std::string adds;
    double seconds, flops;
    double error;   // distance from the first rung's results, as a fraction of their norm
};

/// Random numbers in, and room for what the rungs write.
class Ladder {
public:
    Ladder(Bench& bench, const Options& o, int HS)
        : bench_(bench), p_{.B = o.B, .T = o.T, .NH = o.NH, .HS = HS}, q_(room<bf16>(1)), k_(room<bf16>(2)), v_(room<bf16>(3)),
          dout_(room<bf16>(4)), out_(room<bf16>(5)), dv_(room<bf16>(6)), dq_(room<float>(7)), dk_(room<float>(8)),
          lse_(bench.device(), size_t(o.B) * o.NH * o.T, 9), D_(bench.device(), size_t(o.B) * o.NH * o.T, 10),
          workspace_(bench.device(), backward_3::workspace(p_) / sizeof(float) + 1, 11) {
        p_.q = q_, p_.k = k_, p_.v = v_, p_.out = out_, p_.lse = lse_, p_.dout = dout_;
        p_.D = D_, p_.dq = dq_, p_.dk = dk_, p_.dv = dv_;
        p_.workspace = reinterpret_cast<std::byte*>(static_cast<float*>(workspace_));
    }

    std::vector<Result> forward() {
        return climb(FORWARD, p_.flops(), [&](auto visit) { visit(p_.out); });
    }
    /// Needs the output and LSE that forward() leaves.
    std::vector<Result> backward() {
        return climb(BACKWARD, 2.5 * p_.flops(), [&](auto visit) { visit(p_.dq), visit(p_.dk), visit(p_.dv); });
    }

private:
    template <class X>
    RandomArray<X> room(uint64_t seed) const {
        return {bench_.device(), p_.numbers(), seed};
    }

    /// `visit_results` calls its argument with every array that the rungs write.
    template <class VisitResults>
    std::vector<Result> climb(const std::vector<Rung>& all, double flops, VisitResults visit_results) {
        std::vector<Result> results;
        std::vector<double> first;
        for (const Rung& rung : all) {
            if (!rung.exists()) continue;
            visit_results([&]<class X>(X* x) { fill(bench_.device(), x, p_.numbers(), narrowed<X>(NAN)); });   // what is not written shows
            rung(bench_.device(), p_);
            std::vector<double> is;
            visit_results([&]<class X>(const X* x) { append(is, x); });
            if (first.empty()) first = is;
            double squares = 0, norm = 0;
            for (size_t n = 0; n < is.size(); n++) squares += (is[n] - first[n]) * (is[n] - first[n]), norm += first[n] * first[n];
            const double error = std::sqrt(squares / norm);
            if (!(error <= 0.02)) fail(Exit::not_finite, "the rung with ", rung.adds, ", HS ", p_.HS, ", is wrong by ", error);
            const Timing time = bench_.time([&] { rung(bench_.device(), p_); });
            results.push_back({rung.adds, time.seconds, flops, error});
        }
        return results;
    }

    template <class X>
    void append(std::vector<double>& to, const X* x) const {
        std::vector<X> numbers(p_.numbers());
        to_host(bench_.device(), numbers.data(), x, numbers.size());
        for (X number : numbers) to.push_back(widened(number));
    }

    Bench& bench_;
    LadderProblem p_;
    RandomArray<bf16> q_, k_, v_, dout_, out_, dv_;
    RandomArray<float> dq_, dk_, lse_, D_, workspace_;
};

void print(const char* way, const std::vector<Result>& of_64, const std::vector<Result>& of_128, const Ceilings& top) {
    std::printf("\n| %-8s | what it adds                          |      HS 64 | TFLOP/s | matmul |     HS 128 | TFLOP/s | matmul "
                "| from rung 1 |\n|---|---|---|---|---|---|---|---|---|\n", way);
    for (size_t n = 0; n < of_64.size(); n++)
        std::printf("| %8zu | %-37s | %7.3f ms | %s %7.3f ms | %s     %7.1e |\n", n + 1, of_64[n].adds.c_str(),
                    of_64[n].seconds * 1e3, flops_columns(of_64[n].flops, of_64[n].seconds, top).c_str(),
                    of_128[n].seconds * 1e3, flops_columns(of_128[n].flops, of_128[n].seconds, top).c_str(),
                    std::max(of_64[n].error, of_128[n].error));
}

void run(const Options& o) {
    const OpenGpu gpu(0, false);
    Bench bench(gpu.device(), {o.repeats, o.quick});
    const Ceilings top = bench.ceilings();
    std::printf("%s; copy %.0f GB/s read and written, bf16 matmul %.1f TFLOP/s; causal, B %d, T %d, NH %d; median of %d runs\n",
                describe(gpu.device(), 0).c_str(), top.bytes_per_second / 1e9, top.flops / 1e12, o.B, o.T, o.NH, bench.effort().repeats);
    Ladder narrow_heads(bench, o, 64), wide_heads(bench, o, 128);
    print("forward", narrow_heads.forward(), wide_heads.forward(), top);
    print("backward", narrow_heads.backward(), wide_heads.backward(), top);
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("ladder", [&] {
        Options options;
        if (parse(argc, argv, options)) run(options);
    });
}
