// Climbs the ladder of attention's backward kernels: times every rung, compares its gradients with those of the first, and prints a
// markdown table. tests/gpu/test_ladder.cpp compares all of them with gradients by definition.
//   make build/dev/ladder/backward_ladder && build/dev/ladder/backward_ladder [--batch-size 4] [--seq-len 4096] [--heads 12]

#include "dev/ladder/backward_rungs.h"
#include "dev/ladder/options.h"
#include "dev/timing.cuh"
#include "model/device/machine.h"
#include "tests/gpu/device_array.h"

namespace {

/// Random numbers in, and room for the gradients.
class Descent {
public:
    Descent(Bench& bench, int B, int T, int NH, int HS)
        : bench_(bench), sizes_{B, T, NH, HS, nullptr, nullptr, nullptr, nullptr}, q_(room<bf16>(1)), k_(room<bf16>(2)),
          v_(room<bf16>(3)), dout_(room<bf16>(4)), out_(room<bf16>(5)), dv_(room<bf16>(6)), dq_(room<float>(7)), dk_(room<float>(8)),
          lse_(bench.device(), size_t(B) * NH * T, 9), D_(bench.device(), size_t(B) * NH * T, 10),
          memory_(std::vector<std::byte>(backward_3::workspace(sizes_))) {
        static_cast<LadderProblem&>(p_) = sizes_;
        p_.q = q_, p_.k = k_, p_.v = v_, p_.out = out_, p_.dout = dout_;
        p_.lse = lse_, p_.D = D_, p_.dq = dq_, p_.dk = dk_, p_.dv = dv_;
        rung_6::attention(bench.device(), p_, lse_);
    }

    /// Of each rung its time, and how far its gradients are from those of the first, as a fraction of their norm.
    std::vector<std::pair<Timing, double>> results() {
        std::vector<std::pair<Timing, double>> results;
        std::vector<double> first;
        for (const BackwardRung& rung : backward_rungs(memory_.data())) {
            fill(bench_.device(), p_.dq, p_.numbers(), NAN), fill(bench_.device(), p_.dk, p_.numbers(), NAN);
            fill(bench_.device(), p_.dv, p_.numbers(), narrow<bf16>(NAN));   // what is not written shows
            rung.gradients(bench_.device(), p_);
            const std::vector<double> is = gradients();
            if (first.empty()) first = is;
            double squares = 0, norm = 0;
            for (size_t n = 0; n < is.size(); n++) squares += (is[n] - first[n]) * (is[n] - first[n]), norm += first[n] * first[n];
            const double error = std::sqrt(squares / norm);
            if (!(error <= 0.02)) fail(Exit::not_finite, "the rung with ", rung.adds, ", HS ", p_.HS, ", is wrong by ", error);
            results.emplace_back(bench_.time([&] { rung.gradients(bench_.device(), p_); }), error);
        }
        return results;
    }
    double flops() const { return p_.flops(); }

private:
    template <class X>
    RandomArray<X> room(uint64_t seed) const {
        return {bench_.device(), sizes_.numbers(), seed};
    }

    std::vector<double> gradients() const {
        std::vector<float> dq(p_.numbers()), dk(dq);
        std::vector<bf16> dv(p_.numbers());
        to_host(bench_.device(), dq.data(), p_.dq, dq.size()), to_host(bench_.device(), dk.data(), p_.dk, dk.size());
        to_host(bench_.device(), dv.data(), p_.dv, dv.size());
        std::vector<double> all(dq.begin(), dq.end());
        all.insert(all.end(), dk.begin(), dk.end());
        for (bf16 x : dv) all.push_back(widen(x));
        return all;
    }

    Bench& bench_;
    LadderProblem sizes_;
    BackwardProblem p_{};
    RandomArray<bf16> q_, k_, v_, dout_, out_, dv_;
    RandomArray<float> dq_, dk_, lse_, D_;
    DeviceMemory<std::byte> memory_;
};

void run(const LadderOptions& o) {
    const OpenGpu gpu(0, false);
    const Effort effort = effort_of(o.repeats, o.quick);
    Bench bench(gpu.device(), effort);
    const Ceilings top = bench.ceilings();
    std::printf("%s; bf16 matmul %.1f TFLOP/s; causal, backward, B %d, T %d, NH %d; median of %d runs\n\n",
                describe(gpu.device(), 0).c_str(), top.flops / 1e12, o.B, o.T, o.NH, effort.repeats);
    std::printf("| rung | what it adds                          |      HS 64 | TFLOP/s | matmul |     HS 128 | TFLOP/s | matmul "
                "| from rung 1 |\n|---|---|---|---|---|---|---|---|---|\n");
    Descent narrow_heads(bench, o.B, o.T, o.NH, 64), wide_heads(bench, o.B, o.T, o.NH, 128);
    const auto of_64 = narrow_heads.results(), of_128 = wide_heads.results();
    const std::vector<BackwardRung> all = backward_rungs(nullptr);
    for (size_t n = 0; n < all.size(); n++)
        std::printf("|    %zu | %-37s | %7.3f ms | %s %7.3f ms | %s     %7.1e |\n", n + 1, all[n].adds.c_str(),
                    of_64[n].first.seconds * 1e3, flops_columns(narrow_heads.flops(), of_64[n].first.seconds, top).c_str(),
                    of_128[n].first.seconds * 1e3, flops_columns(wide_heads.flops(), of_128[n].first.seconds, top).c_str(),
                    std::max(of_64[n].second, of_128[n].second));
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("backward_ladder", [&] {
        LadderOptions options;
        const char* const what = "Times a ladder of attention's backward kernels, from one thread per row to the one that trains.";
        if (parse(argc, argv, what, options)) run(options);
    });
}
