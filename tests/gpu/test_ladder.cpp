// Every rung of dev/ladder against attention in double; on a machine without a GPU on the emulator.
#include "dev/ladder/rung_0.h"
#include "dev/ladder/rungs.h"
#include "tests/attention_policies.h"
#include "tests/gpu/attention_on_gpu.h"

namespace {

/// One token; less than a tile; whole tiles; tiles and a part of every rung's queries and keys.
std::vector<Problem> problems() {
    std::vector<Problem> all;
    for (int HS : {64, 128})
        for (auto [B, T, NH] : {std::array{1, 1, 1}, {2, 29, 1}, {1, 128, 2}, {1, 139, 1}})
            all.push_back(rounded_problem<bf16>(Problem(B, T, T, NH, NH, HS)));
    return all;
}

/// A problem in the GPU's memory, and room for what the rungs write.
struct LadderOnGpu {
    DeviceArray<bf16> q, k, v, dout, out, dv;
    DeviceArray<float> lse, D, dq, dk;
    LadderProblem problem;
    DeviceMemory<std::byte> workspace;

    explicit LadderOnGpu(const Problem& p)
        : q(p.q), k(p.k), v(p.v), dout(p.dout), out(p.q.size(), NAN), dv(p.q.size(), NAN), lse(p.rows(), NAN), D(p.rows(), NAN),
          dq(p.q.size(), NAN), dk(p.q.size(), NAN),
          problem{.B = p.B, .T = p.T, .NH = p.NH, .HS = p.HS, .q = q.data(), .k = k.data(), .v = v.data(), .out = out.data(),
                  .lse = lse.data(), .dout = dout.data(), .D = D.data(), .dq = dq.data(), .dk = dk.data(), .dv = dv.data()},
          workspace(std::vector<std::byte>(backward_3::workspace(problem))) {
        problem.workspace = workspace.data();
    }
};

}   // namespace

TEST_CASE("ladder of attention kernels against double", "[gpu][ladder]") {
    for (const Problem& p : problems()) {
        INFO("B " << p.B << ", T " << p.T << ", NH " << p.NH << ", HS " << p.HS);
        const Numbers expected = by_definition(p, raw, causal).out;
        for (const Rung& rung : FORWARD) {
            if (!rung.exists()) continue;
            INFO("rung: " << rung.adds);
            const LadderOnGpu gpu(p);
            rung(GPU{}, gpu.problem);
            CHECK(difference(gpu.out.numbers(), expected, device_rounding<bf16>(p.T)) == "");
        }
        AttentionOn<CPU, double, Causal> on_cpu({}, p, Causal());
        on_cpu.forward();
        const Gradients gradients = on_cpu.backward();
        for (const Rung& rung : BACKWARD) {
            if (!rung.exists()) continue;
            INFO("backward, rung: " << rung.adds);
            const LadderOnGpu gpu(p);
            rung_6::attention(GPU{}, gpu.problem);
            rung(GPU{}, gpu.problem);
            CHECK(difference(gpu.dq.numbers(), gradients.q, of_attention<bf16>(p)) == "");
            CHECK(difference(gpu.dk.numbers(), gradients.k, of_attention<bf16>(p)) == "");
            CHECK(difference(gpu.dv.numbers(), gradients.v, of_attention<bf16>(p)) == "");
        }
    }
}

/// The rung on the CPU has one head: tokens before, at and behind the end of a tile, and scores that rise along the row.
TEST_CASE("ladder, rung 0: tiles on the CPU against double", "[ladder]") {
    for (int T : {1, 63, 64, 65, 200}) {
        Problem p(1, T, T, 1, 1, 24);
        for (int t = 0; t < T; t++) p.q[size_t(t) * p.HS] = 10, p.k[size_t(t) * p.HS] = 0.1 * t;
        Numbers out(p.q.size(), NAN), lse(p.rows(), NAN);
        rung_0::attention(out.data(), lse.data(), p.q.data(), p.k.data(), p.v.data(), T, p.HS);
        const Results expected = by_definition(p, raw, causal);
        INFO("T " << T);
        CHECK(difference(out, expected.out, {1e-12}) == "");
        CHECK(difference(lse, expected.lse, {1e-12}) == "");
    }
}
