// NSA's parts on the GPU (attention/nsa/compress.cuh, importance.cuh) against the CPU in double. The layer as a whole is in
// tests/gpu/variant, where float32 also has to choose the same blocks as double. bf16 may choose others where two are almost equal:
// its compressed keys differ by rounding. So here the scores are compared, which are continuous, not the choice.
#include "attention/nsa.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/compression.h"
#include "tests/gpu/on_gpu.h"

namespace {

using Numbers = std::vector<double>;

struct ImportanceCase {
    int B, T, NH, NKV, HS;
    BlockGrid grid;
    Numbers q, keys, lse;   // (B, T, NH, HS), (B, R, NKV, HS), (B, NH, T): any numbers will do, log-sum-exps too

    ImportanceCase(int B_, int T_, int NH_, int NKV_, int HS_, BlockGrid grid_)
        : B(B_), T(T_), NH(NH_), NKV(NKV_), HS(HS_), grid(grid_), q(normal_numbers(size_t(B) * T * NH * HS, 1)),
          keys(normal_numbers(size_t(B) * grid.rows(T) * NKV * HS, 2)), lse(normal_numbers(size_t(B) * NH * T, 3)) {
        for (double& x : lse) x += 4;
    }
    size_t scores() const { return size_t(B) * NKV * tiles_of(T) * tiles_of(T); }
    size_t shares() const { return size_t(B) * NKV * tiles_of(T) * grid.rows(T); }
};

template <class X>
void check_importance(const ImportanceCase& c) {
    INFO(sizeof(X) << " bytes, l " << c.grid.l << ", d " << c.grid.d << ", NH " << c.NH << ", HS " << c.HS);
    const Numbers q = rounded<X>(c.q), keys = rounded<X>(c.keys), lse = rounded<float>(c.lse);
    const double untouched = -7;
    Numbers expected(c.scores(), untouched), shares(c.shares());
    const size_t row = size_t(c.NH) * c.HS;
    const Importance<double> on_cpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, {q.data(), row}, keys.data(), lse.data(), shares.data()};
    importance_of_blocks(CPU{}, expected.data(), on_cpu);
    const DeviceArray<X> d_q(q), d_keys(keys);
    const DeviceArray<float> d_lse(lse), d_shares(c.shares(), NAN);
    const Importance<X> on_gpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, {d_q.data(), row}, d_keys.data(), d_lse.data(),
                               d_shares.data()};
    Numbers first;
    for (int run = 0; run < 2; run++) {
        const DeviceArray<float> scores(c.scores(), untouched);
        importance_of_blocks(test_gpu(), scores.data(), on_gpu);
        if (run == 0) first = scores.numbers();
        CHECK(bit_difference(scores.numbers(), first) == "");
    }
    CHECK(difference(first, expected, {4 * rounding<float>(c.HS).relative}) == "");
}

}   // namespace

TEST_CASE("nsa on the GPU: compression of blocks", "[gpu][attention][nsa]") {
    for (const Compression& c : {Compression{1, 40, 2, 8, 16, 4, 2, Write::overwrite}, {2, 37, 1, 32, 8, 5, 3, Write::add},
                                 {2, 30, 2, 8, 8, 3, 4, Write::add}, {1, 3, 2, 8, 8, 5, 2, Write::overwrite},
                                 {1, 1, 1, 8, 8, 1, 1, Write::overwrite}})
        check_on_gpu_in_both_types(c, 40);   // sums of some ten terms of size 10, which bf16 rounds on their way
}

TEST_CASE("nsa on the GPU: importance of blocks", "[gpu][attention][nsa]") {
    for (const ImportanceCase& c : {ImportanceCase{1, 330, 2, 1, 32, {32, 16}}, {2, 257, 5, 1, 64, {8, 8}},
                                    {1, 450, 8, 2, 128, {12, 5}}, {1, 400, 2, 2, 32, {2, 1}}, {1, 330, 1, 1, 32, {250, 30}},
                                    {1, 65, 2, 1, 32, {32, 16}}}) {
        check_importance<float>(c);
        check_importance<bf16>(c);
    }
}
