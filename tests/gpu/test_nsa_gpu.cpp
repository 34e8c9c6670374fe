// NSA's choice of blocks on the GPU (attention/nsa/importance.cuh) against the CPU's in double, from the same compressed keys. (In a
// whole layer, tests/gpu/variant, bf16 may choose others where two are almost equal: its compressed keys differ by rounding.)
#include "attention/nsa.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/gpu/on_gpu.h"

namespace {

using Numbers = std::vector<double>;

struct ImportanceCase {
    int B, T, NH, NKV, HS;
    BlockGrid grid;
    int every;
    TileChoice rule;
    Numbers q, keys, lse;   // (B, T, NH, HS), (B, R, NKV, HS), (B, NH, T): any numbers will do, log-sum-exps too

    ImportanceCase(int B_, int T_, int NH_, int NKV_, int HS_, BlockGrid grid_, int every_, int top = 1)
        : B(B_), T(T_), NH(NH_), NKV(NKV_), HS(HS_), grid(grid_), every(every_), rule{.top = top, .leading = 1, .local = 2},
          q(normal_numbers(size_t(B) * T * NH * HS, 1)), keys(normal_numbers(size_t(B) * grid.rows(T) * NKV * HS, 2)),
          lse(normal_numbers(size_t(B) * NH * T, 3)) {
        for (double& x : lse) x += 4;
    }
    BlockChoice choice() const { return {B, (T + every - 1) / every, NH, NKV, TILE, rule.top}; }
};

/// The choice from numbers that X holds.
template <class X>
void check_importance(const ImportanceCase& c) {
    INFO(sizeof(X) << " bytes, T " << c.T << ", l " << c.grid.l << ", d " << c.grid.d << ", NH " << c.NH << ", HS " << c.HS
                   << ", every " << c.every);
    const Numbers q = rounded<X>(c.q), keys = rounded<X>(c.keys), lse = rounded<float>(c.lse);
    const BlockChoice choice = c.choice();
    const size_t row = size_t(c.NH) * c.HS;
    std::vector<int> expected(choice.size(), 99);
    const Importance<double> on_cpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, c.every, {q.data(), row}, keys.data(), lse.data(), nullptr};
    choose_by_importance(CPU{}, expected.data(), on_cpu, choice, c.rule);
    const DeviceArray<X> q_there(q), keys_there(keys);
    const DeviceArray<float> lse_there(lse), scores(importance_scratch(test_gpu(), choice, c.T), NAN);
    const Importance<X> on_gpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, c.every, {q_there.data(), row}, keys_there.data(),
                               lse_there.data(), scores.data()};
    const DeviceMemory<int> found(std::vector<int>(choice.size(), 99));
    choose_by_importance(test_gpu(), found.data(), on_gpu, choice, c.rule);
    CHECK(found.host() == expected);
}

}   // namespace

TEST_CASE("nsa on the GPU: importance of blocks, and the choice", "[gpu][attention][nsa]") {
    for (const ImportanceCase& c :
         {ImportanceCase{1, 330, 2, 1, 32, {32, 16}, 1}, {2, 330, 5, 1, 64, {8, 8}, TILE}, {1, 450, 8, 2, 128, {12, 5}, 1, 2},
          {1, 400, 2, 2, 32, {2, 1}, 1}, {1, 330, 1, 1, 32, {250, 30}, TILE}, {1, 65, 2, 1, 32, {32, 16}, 1}}) {
        check_importance<float>(c);
        check_importance<bf16>(c);
    }
}

TEST_CASE("nsa on the GPU: more tiles of queries than blocks of threads", "[gpu][attention][nsa]") {
    check_importance<float>({52, 257, 2, 2, 32, {16, 16}, 1});
}
