// Every rung of dev/ladder against attention in double; on a machine without a GPU on the emulator.
#include "tests/catch.h"

#include <numeric>

#include "dev/ladder/backward_rungs.h"
#include "dev/ladder/rung_0.h"
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

void check_ladder(int B, int T, int NH, int HS) {
    INFO("B " << B << ", T " << T << ", NH " << NH << ", HS " << HS);
    LadderProblem p{B, T, NH, HS, nullptr, nullptr, nullptr, nullptr};
    const auto q = rounded<bf16>(normal_numbers(p.numbers(), 1)), k = rounded<bf16>(normal_numbers(p.numbers(), 2)),
               v = rounded<bf16>(normal_numbers(p.numbers(), 3));
    const DeviceArray<bf16> dq(q), dk(k), dv(v);
    const DeviceArray<float> lse(size_t(B) * NH * T, NAN);
    p.q = dq.data(), p.k = dk.data(), p.v = dv.data();
    std::vector<double> expected(p.numbers());
    for (int b = 0; b < B; b++)
        for (int i = 0; i < T; i++)
            for (int h = 0; h < NH; h++) {
                const auto row = attention_by_definition(p, q, k, v, b, i, h);
                std::copy(row.begin(), row.end(), expected.begin() + p.at(b, i, h));
            }
    int number = 1;
    for (const Rung& rung : rungs(lse.data())) {
        INFO("rung " << number++ << ", " << rung.adds);
        const DeviceArray<bf16> out(p.numbers(), NAN);
        p.out = out.data();
        rung.attention(GPU{}, p);
        CHECK(difference(out.numbers(), expected, device_rounding<bf16>(T)) == "");
    }
}

void check_backward_ladder(int B, int T, int NH, int HS) {
    INFO("B " << B << ", T " << T << ", NH " << NH << ", HS " << HS);
    BackwardProblem p{};
    p.B = B, p.T = T, p.NH = NH, p.HS = HS;
    const auto q = rounded<bf16>(normal_numbers(p.numbers(), 1)), k = rounded<bf16>(normal_numbers(p.numbers(), 2)),
               v = rounded<bf16>(normal_numbers(p.numbers(), 3)), dout = rounded<bf16>(normal_numbers(p.numbers(), 4));
    const DeviceArray<bf16> inputs[] = {DeviceArray<bf16>(q), DeviceArray<bf16>(k), DeviceArray<bf16>(v), DeviceArray<bf16>(dout)};
    const DeviceArray<bf16> out(p.numbers(), NAN);
    const DeviceArray<float> lse(size_t(B) * NH * T, NAN), D(size_t(B) * NH * T, NAN);
    p.q = inputs[0].data(), p.k = inputs[1].data(), p.v = inputs[2].data(), p.dout = inputs[3].data();
    p.out = out.data(), p.lse = lse.data(), p.D = D.data();
    rung_6::attention(GPU{}, p, lse.data());
    const DeviceMemory<std::byte> memory(std::vector<std::byte>(backward_3::workspace(p)));
    const auto expected = gradients_by_definition(p, q, k, v, dout);
    const Tolerance tolerance{0.01, 2e-4 * std::sqrt(double(HS))};   // as of_attention() in attention_on_gpu.h says, and why
    int number = 1;
    for (const BackwardRung& rung : backward_rungs(memory.data())) {
        INFO("rung " << number++ << ", " << rung.adds);
        const DeviceArray<float> dq(p.numbers(), NAN), dk(p.numbers(), NAN);
        const DeviceArray<bf16> dv(p.numbers(), NAN);
        p.dq = dq.data(), p.dk = dk.data(), p.dv = dv.data();
        rung.gradients(GPU{}, p);
        CHECK(difference(dq.numbers(), expected[0], tolerance) == "");
        CHECK(difference(dk.numbers(), expected[1], tolerance) == "");
        CHECK(difference(dv.numbers(), expected[2], tolerance) == "");
    }
}

/// check(B, T, NH, HS) for one token; less than a tile; whole tiles; tiles and a part of every rung's queries and keys.
template <class Check>
void for_sizes(Check check) {
    for (int HS : {64, 128}) {
        check(1, 1, 1, HS);
        check(2, 29, 1, HS);
        check(1, 128, 2, HS);
        check(1, 139, 1, HS);
    }
}

}   // namespace

TEST_CASE("ladder of attention kernels against double", "[gpu][ladder]") { for_sizes(check_ladder); }

TEST_CASE("ladder of attention's backward kernels against double", "[gpu][ladder]") { for_sizes(check_backward_ladder); }

/// The rung on the CPU has one head: tokens before, at and behind the end of a tile, and scores that rise along the row.
TEST_CASE("ladder, rung 0: tiles on the CPU against double", "[ladder]") {
    for (int T : {1, 63, 64, 65, 200}) {
        const int HS = 24;
        const LadderProblem p{1, T, 1, HS, nullptr, nullptr, nullptr, nullptr};
        auto q = normal_numbers(p.numbers(), 1), k = normal_numbers(p.numbers(), 2);
        const auto v = normal_numbers(p.numbers(), 3);
        for (int t = 0; t < T; t++) q[size_t(t) * HS] = 10, k[size_t(t) * HS] = 0.1 * t;
        std::vector<double> out(p.numbers(), NAN), lse(T, NAN), scores_lse(T);
        rung_0::attention(out.data(), lse.data(), q.data(), k.data(), v.data(), T, HS);
        std::vector<double> expected;
        for (int i = 0; i < T; i++) {
            const auto row = attention_by_definition(p, q, k, v, 0, i, 0);
            expected.insert(expected.end(), row.begin(), row.end());
            double sum = 0;
            for (int j = 0; j <= i; j++)
                sum += std::exp(std::inner_product(&q[i * HS], &q[i * HS] + HS, &k[j * HS], 0.0) / std::sqrt(double(HS)));
            scores_lse[i] = std::log(sum);
        }
        INFO("T " << T);
        CHECK(difference(out, expected, {1e-12}) == "");
        CHECK(difference(lse, scores_lse, {1e-12}) == "");
    }
}
