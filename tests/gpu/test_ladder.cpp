// Every rung of dev/ladder against attention in double; on a machine without a GPU on the emulator.
#include "tests/catch.h"

#include "dev/ladder/rungs.h"
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

}   // namespace

/// One token; less than a tile; whole tiles; tiles and a part of every rung's queries and keys.
TEST_CASE("ladder of attention kernels against double", "[gpu][ladder]") {
    for (int HS : {64, 128}) {
        check_ladder(1, 1, 1, HS);
        check_ladder(2, 29, 1, HS);
        check_ladder(1, 128, 2, HS);
        check_ladder(1, 139, 1, HS);
    }
}
