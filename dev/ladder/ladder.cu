// Climbs the ladder of attention kernels: checks every rung against attention in double, times it, and prints a markdown table.
//   make build/dev/ladder/ladder && build/dev/ladder/ladder [--batch-size 4] [--seq-len 4096] [--heads 12]
// The rungs are the files rung_1.cuh to rung_6.cuh beside this one; rung_0.h is the CPU's, and backward_ladder.cu climbs the way back.

#include "dev/ladder/options.h"
#include "dev/ladder/rungs.h"
#include "dev/timing.cuh"
#include "model/device/machine.h"
#include "tests/gpu/device_array.h"

namespace {

struct Result {
    Timing time;
    double error;   // of the rows that were checked, as a fraction of their norm
};

/// Random numbers on both sides. Rows are checked one by one: all of them would keep the CPU busy for hours.
class Climb {
public:
    Climb(Bench& bench, const LadderProblem& sizes)
        : bench_(bench), p_(sizes), q_(bench.device(), p_.numbers(), 1), k_(bench.device(), p_.numbers(), 2),
          v_(bench.device(), p_.numbers(), 3), out_(bench.device(), p_.numbers(), 4),
          lse_(bench.device(), size_t(p_.B) * p_.NH * p_.T, 5), host_q_(on_host(q_)), host_k_(on_host(k_)), host_v_(on_host(v_)) {
        p_.q = q_, p_.k = k_, p_.v = v_, p_.out = out_;
    }

    std::vector<Result> results() {
        std::vector<Result> results;
        for (const Rung& rung : rungs(lse_)) {
            fill(bench_.device(), p_.out, p_.numbers(), narrow<bf16>(NAN));   // what is not written shows
            rung.attention(bench_.device(), p_);
            const double error = error_of(rung);
            results.push_back({bench_.time([&] { rung.attention(bench_.device(), p_); }), error});
        }
        return results;
    }
    const LadderProblem& problem() const { return p_; }

private:
    std::vector<float> on_host(const bf16* from) const {
        std::vector<bf16> rounded(p_.numbers());
        to_host(bench_.device(), rounded.data(), from, rounded.size());
        std::vector<float> wide(rounded.size());
        for (size_t n = 0; n < wide.size(); n++) wide[n] = float(widen(rounded[n]));
        return wide;
    }

    double error_of(const Rung& rung) const {
        const std::vector<float> out = on_host(p_.out);
        std::vector<double> is, should;
        const int rows = 96;
        for (int n = 0; n < rows; n++) {   // the first rows, the last, and some between
            const int i = n < 8 ? std::min(n, p_.T - 1) : int(int64_t(p_.T - 1) * n / (rows - 1)), b = n % p_.B, h = n % p_.NH;
            const auto row = attention_by_definition(p_, host_q_, host_k_, host_v_, b, i, h);
            should.insert(should.end(), row.begin(), row.end());
            is.insert(is.end(), &out[p_.at(b, i, h)], &out[p_.at(b, i, h)] + p_.HS);
        }
        const std::string wrong = difference(is, should, device_rounding<bf16>(p_.T));
        if (!wrong.empty()) fail(Exit::not_finite, "the rung with ", rung.adds, ", HS ", p_.HS, ", is wrong: ", wrong);
        double squares = 0, norm = 0;
        for (size_t n = 0; n < is.size(); n++) squares += (is[n] - should[n]) * (is[n] - should[n]), norm += should[n] * should[n];
        return std::sqrt(squares / norm);
    }

    Bench& bench_;
    LadderProblem p_;
    RandomArray<bf16> q_, k_, v_, out_;
    RandomArray<float> lse_;
    std::vector<float> host_q_, host_k_, host_v_;
};

void run(const LadderOptions& o) {
    const OpenGpu gpu(0, false);
    const Effort effort = effort_of(o.repeats, o.quick);
    Bench bench(gpu.device(), effort);
    const Ceilings top = bench.ceilings();
    std::printf("%s; copy %.0f GB/s read and written, bf16 matmul %.1f TFLOP/s; causal, forward, B %d, T %d, NH %d; median of %d "
                "runs\n\n",
                describe(gpu.device(), 0).c_str(), top.bytes_per_second / 1e9, top.flops / 1e12, o.B, o.T, o.NH, effort.repeats);
    std::printf("| rung | what it adds                       |      HS 64 | TFLOP/s | matmul |     HS 128 | TFLOP/s | matmul "
                "|   error |\n|---|---|---|---|---|---|---|---|---|\n");
    Climb narrow_heads(bench, {o.B, o.T, o.NH, 64, nullptr, nullptr, nullptr, nullptr});
    Climb wide_heads(bench, {o.B, o.T, o.NH, 128, nullptr, nullptr, nullptr, nullptr});
    const std::vector<Result> of_64 = narrow_heads.results(), of_128 = wide_heads.results();
    const std::vector<Rung> all = rungs(nullptr);
    for (size_t n = 0; n < all.size(); n++)
        std::printf("|    %zu | %-34s | %7.3f ms | %s %7.3f ms | %s %7.1e |\n", n + 1, all[n].adds.c_str(),
                    of_64[n].time.seconds * 1e3, flops_columns(narrow_heads.problem().flops(), of_64[n].time.seconds, top).c_str(),
                    of_128[n].time.seconds * 1e3, flops_columns(wide_heads.problem().flops(), of_128[n].time.seconds, top).c_str(),
                    std::max(of_64[n].error, of_128[n].error));
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("ladder", [&] {
        LadderOptions options;
        if (parse(argc, argv, "Times a ladder of attention kernels, from one thread per row to the one that trains.", options)) run(options);
    });
}
