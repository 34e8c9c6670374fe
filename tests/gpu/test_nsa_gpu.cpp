// NSA's choice of blocks on the GPU (attention/nsa/importance.cuh) against the CPU's in double, from the same compressed keys. (In a
// whole layer, tests/gpu/variant, bf16 may choose others where two are almost equal: its compressed keys differ by rounding.)
#include "attention/nsa.cuh"

#include "tests/attention_case.h"
#include "tests/gpu/on_gpu.h"

namespace {

using Numbers = std::vector<double>;

struct ImportanceCase {
    int B, T, NH, NKV, HS;
    BlockGrid grid;
    int every, top = 1;
};

/// The choice from numbers that X holds: any will do, for log-sum-exps too.
template <class X>
void check_importance(const ImportanceCase& c) {
    INFO(sizeof(X) << " bytes, T " << c.T << ", l " << c.grid.l << ", d " << c.grid.d << ", NH " << c.NH << ", HS " << c.HS
                   << ", every " << c.every);
    const size_t row = size_t(c.NH) * c.HS;
    const Numbers q = rounded<X>(normal_numbers(c.B * c.T * row, 1)),
                  keys = rounded<X>(normal_numbers(size_t(c.B) * c.grid.rows(c.T) * c.NKV * c.HS, 2));
    Numbers lse = normal_numbers(size_t(c.B) * c.NH * c.T, 3);
    for (double& x : lse) x = float(x + 4);
    const TileChoice rule{.top = c.top, .leading = 1, .local = 2};
    const BlockChoice choice{c.B, (c.T + c.every - 1) / c.every, c.NH, c.NKV, TILE, c.top};
    std::vector<int> expected(choice.size(), 99);
    const Importance<double> on_cpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, c.every, {q.data(), row}, keys.data(), lse.data(), nullptr};
    choose_by_importance(CPU{}, expected.data(), on_cpu, choice, rule);
    const DeviceArray<X> q_there(q), keys_there(keys);
    const DeviceArray<float> lse_there(lse), scores(importance_scratch(test_gpu(), choice, c.T), NAN);
    const Importance<X> on_gpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, c.every, {q_there.data(), row}, keys_there.data(),
                               lse_there.data(), scores.data()};
    const DeviceMemory<int> found(std::vector<int>(choice.size(), 99));
    choose_by_importance(test_gpu(), found.data(), on_gpu, choice, rule);
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
    check_importance<float>({52, 257, 2, 2, 32, {16, 16}, 1});   // more tiles of queries than blocks of threads
}
