// NSA's parts on the GPU (attention/nsa/compress.cuh, importance.cuh) against the CPU in double. The layer as a whole is in
// tests/gpu/variant, where float32 also has to choose the same blocks as double. bf16 may choose others where two are almost equal:
// its compressed keys differ by rounding. So here the scores are compared, which are continuous, and the choice that they lead to.
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

/// Scores of the blocks before token t's own, token by token.
Numbers scores_of_token(const ImportanceCase& c, const Numbers& q, const Numbers& keys, const Numbers& lse, int b, int kv, int t) {
    Numbers scores(t / TILE + 1);
    for (int h = kv * (c.NH / c.NKV); h < (kv + 1) * (c.NH / c.NKV); h++)
        for (int n = 0; n * c.grid.d + c.grid.l - 1 <= t; n++) {
            double z = 0;
            for (int d = 0; d < c.HS; d++)
                z += q[((size_t(b) * c.T + t) * c.NH + h) * c.HS + d] *
                     keys[((size_t(b) * c.grid.rows(c.T) + n) * c.NKV + kv) * c.HS + d];
            const double p = std::exp(z / std::sqrt(double(c.HS)) - lse[(size_t(b) * c.NH + h) * c.T + t]);
            for (int of_block = n * c.grid.d; of_block < n * c.grid.d + c.grid.l; of_block++)
                scores[of_block / TILE] += p / c.grid.d;
        }
    return scores;
}

/// Scores (only where no block of threads has taken a second tile of rows, whose scores replace the first's) and choice.
template <class X>
void check_importance(const ImportanceCase& c) {
    INFO(sizeof(X) << " bytes, T " << c.T << ", l " << c.grid.l << ", d " << c.grid.d << ", NH " << c.NH << ", HS " << c.HS
                   << ", every " << c.every);
    const Numbers q = rounded<X>(c.q), keys = rounded<X>(c.keys), lse = rounded<float>(c.lse);
    const BlockChoice choice = c.choice();
    const int N = tiles_of(c.T), tiles = tiles_of(choice.T), lists = c.B * c.NKV;
    const DeviceArray<X> d_q(q), d_keys(keys);
    const DeviceArray<float> d_lse(lse), d_scores(importance_scratch(test_gpu(), choice, c.T), NAN);
    const Importance<X> on_gpu{c.B, c.T, c.NH, c.NKV, c.HS, c.grid, c.every, {d_q.data(), size_t(c.NH) * c.HS}, d_keys.data(),
                               d_lse.data(), d_scores.data()};
    const DeviceMemory<int> d_choice(std::vector<int>(choice.size(), 99));
    choose_by_importance(test_gpu(), d_choice.data(), on_gpu, choice, c.rule);
    const Numbers scores = d_scores.numbers();
    const std::vector<int> found = d_choice.host();
    Numbers expected, got;
    std::vector<int> wanted(c.rule.top), order;
    int wrong = 0;
    for (int n = 0; n < tiles * lists; n++)
        for (int row = (tiles - 1 - n / lists) * TILE, r = 0; r < TILE && row + r < choice.T; r++) {
            const int b = n % lists / c.NKV, kv = n % lists % c.NKV, t = (row + r) * c.every, own = t / TILE;
            Numbers mine = scores_of_token(c, q, keys, lse, b, kv, t);
            const double* const there = &scores[(size_t(n) * TILE + r) * N];
            const int last = std::min(row + TILE, choice.T) - 1;
            const bool compared = candidates_of(c.rule, last * c.every / TILE) > c.rule.top;
            for (int j = 0; j <= own && compared && tiles * lists <= importance::MOST_BLOCKS; j++)
                expected.push_back(mine[j]), got.push_back(there[j]), mine[j] = there[j];
            choose_blocks(CPU{}, wanted.data(), mine.data(), c.rule, own, order);
            wrong += !std::equal(wanted.begin(), wanted.end(), found.begin() + choice.of_token(b, kv, row + r));
        }
    if (!expected.empty()) CHECK(difference(got, expected, {4 * rounding<float>(c.HS).relative}) == "");
    CHECK(wrong == 0);
}

}   // namespace

TEST_CASE("nsa on the GPU: compression of blocks", "[gpu][attention][nsa]") {
    for (const Compression& c : {Compression{1, 40, 2, 8, 16, 4, 2, Write::overwrite}, {2, 37, 1, 32, 8, 5, 3, Write::add},
                                 {2, 30, 2, 8, 8, 3, 4, Write::add}, {1, 3, 2, 8, 8, 5, 2, Write::overwrite},
                                 {1, 1, 1, 8, 8, 1, 1, Write::overwrite}})
        check_on_gpu_in_both_types(c, 40);   // sums of some ten terms of size 10, which bf16 rounds on their way
}

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
