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
    BackwardProblem problem{};

    explicit LadderOnGpu(const Problem& p)
        : q(p.q), k(p.k), v(p.v), dout(p.dout), out(p.q.size(), NAN), dv(p.q.size(), NAN), lse(p.rows(), NAN), D(p.rows(), NAN),
          dq(p.q.size(), NAN), dk(p.q.size(), NAN) {
        problem.B = p.B, problem.T = p.T, problem.NH = p.NH, problem.HS = p.HS;
        problem.q = q.data(), problem.k = k.data(), problem.v = v.data(), problem.out = out.data(), problem.dout = dout.data();
        problem.lse = lse.data(), problem.D = D.data(), problem.dq = dq.data(), problem.dk = dk.data(), problem.dv = dv.data();
    }
};

}   // namespace

TEST_CASE("ladder of attention kernels against double", "[gpu][ladder]") {
    for (const Problem& p : problems()) {
        INFO("B " << p.B << ", T " << p.T << ", NH " << p.NH << ", HS " << p.HS);
        const Numbers expected = by_definition(p, raw, causal).out;
        for (size_t n = 0; n < rungs(nullptr).size(); n++) {
            const LadderOnGpu gpu(p);
            const Rung rung = rungs(gpu.lse.data())[n];
            INFO("rung " << n + 1 << ", " << rung.adds);
            rung.attention(GPU{}, gpu.problem);
            CHECK(difference(gpu.out.numbers(), expected, device_rounding<bf16>(p.T)) == "");
        }
    }
}

TEST_CASE("ladder of attention's backward kernels against double", "[gpu][ladder]") {
    for (const Problem& p : problems()) {
        INFO("B " << p.B << ", T " << p.T << ", NH " << p.NH << ", HS " << p.HS);
        Results results = forward(p, Causal());
        const Gradients expected = backward(p, Causal(), results);
        for (size_t n = 0; n < backward_rungs(nullptr).size(); n++) {
            const LadderOnGpu gpu(p);
            const DeviceMemory<std::byte> memory(std::vector<std::byte>(backward_3::workspace(gpu.problem)));
            const Rung rung = backward_rungs(memory.data())[n];
            INFO("rung " << n + 1 << ", " << rung.adds);
            rung_6::attention(GPU{}, gpu.problem, gpu.lse.data());
            rung.attention(GPU{}, gpu.problem);
            CHECK(difference(gpu.dq.numbers(), expected.q, of_attention<bf16>(p)) == "");
            CHECK(difference(gpu.dk.numbers(), expected.k, of_attention<bf16>(p)) == "");
            CHECK(difference(gpu.dv.numbers(), expected.v, of_attention<bf16>(p)) == "");
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
