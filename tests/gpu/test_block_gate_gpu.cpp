// The pieces of block-sparse attention on the GPU against the CPU: small products, chosen tiles, the pooled map's distillation. The
// whole of it is in tests/gpu/variant.
#include "attention/blocks/block_sparse.cuh"

#include "tests/attention_problem.h"
#include "tests/gpu/device_array.h"
#include "tests/select_case.h"

namespace {

/// Matrices of B sequences and H heads, either way round, as the sum of `summands` products.
template <class Y>
void check_products(int M, int N, int K, int summands, bool a_transposed, bool b_transposed, Write write) {
    INFO(M << " x " << N << " x " << K << ", " << summands << " summands, A^T " << a_transposed << ", B^T " << b_transposed);
    const int B = 2, H = 3;
    const size_t a_size = size_t(M) * K, b_size = size_t(K) * N, copies = size_t(B) * H * summands;
    const Numbers a = rounded<float>(normal_numbers(copies * a_size, 1)), b = rounded<Y>(normal_numbers(copies * b_size, 2)),
                  start = rounded<float>(normal_numbers(size_t(B) * H * M * N, 3));
    auto factor = [&](const auto* data, size_t size, int rows, int columns, bool transposed) {
        return Factor<std::decay_t<decltype(*data)>>{data, size * summands * H, size * summands, size,
                                                     transposed ? 1 : size_t(columns), transposed ? size_t(rows) : 1};
    };
    const ProductShape shape{B, H, M, N, K, summands};
    const size_t sequence = size_t(H) * M * N, head = size_t(M) * N;
    Numbers expected = start;
    small_products(CPU{}, SmallProduct<double>{expected.data(), sequence, head}, factor(a.data(), a_size, M, K, a_transposed),
                   factor(b.data(), b_size, K, N, b_transposed), shape, 0.5, write);
    const DeviceArray<float> a_there(a), out(start);
    const DeviceArray<Y> b_there(b);
    small_products(test_gpu(), SmallProduct<float>{out.data(), sequence, head},
                   factor(static_cast<const float*>(a_there.data()), a_size, M, K, a_transposed),
                   factor(static_cast<const Y*>(b_there.data()), b_size, K, N, b_transposed), shape, 0.5f, write);
    CHECK(difference(out.numbers(), expected, rounding<float>(K * summands)) == "");
}

}   // namespace

TEST_CASE("GPU: small products, each way round, partial blocks, several summands, two number types", "[gpu][attention]") {
    for (bool a_transposed : {false, true})
        for (bool b_transposed : {false, true}) {
            check_products<float>(1, 1, 1, 1, a_transposed, b_transposed, Write::overwrite);
            check_products<float>(1, 33, 70, 1, a_transposed, b_transposed, Write::overwrite);
            check_products<bf16>(65, 32, 7, 1, a_transposed, b_transposed, Write::add);
            check_products<float>(3, 96, 33, 4, a_transposed, b_transposed, Write::add);
        }
}

TEST_CASE("GPU: chosen tiles are the CPU's", "[gpu][attention]") {
    for (const SelectCase& c : select_cases()) {
        INFO(c.text());
        const TileLists expected = c.choose();
        const DeviceArray<float> scores(c.scores);
        const DeviceMemory<int> count(std::vector<int>(c.lists(), -1)), tiles(std::vector<int>(c.lists() * c.s.N, -1));
        choose_tiles(test_gpu(), count.data(), tiles.data(), scores.data(), c.s, c.choice);
        CHECK(count.host() == expected.count);
        CHECK(tiles.host() == expected.tiles);
    }
}

TEST_CASE("GPU: distillation from made-up maxima, more blocks than threads, blocks of several tiles", "[gpu][attention]") {
    for (const auto& [T, block, skip] : {std::tuple{64, 64, 0.0f}, {330, 64, 0.0f}, {330, 128, 0.7f}, {64 * 131 + 5, 64, 0.305f}}) {
        const GateShape s{1, T, 2, 1, 32, block, GateQuery::first};
        const Distillation d{0.7f, 1, skip};
        const size_t N = s.blocks(), rows = size_t(s.NH) * T;
        INFO("T " << T << ", block " << block);
        const Numbers tile_max = rounded<float>(normal_numbers(rows * tiles_of(T), 1, 2)),
                      lse = rounded<float>(normal_numbers(rows, 2)), scores = rounded<float>(normal_numbers(s.NH * N * N, 3));
        Numbers dscores(scores.size(), NAN), divergences(s.NH * N, NAN), sums(s.NH, NAN);
        distil(CPU{}, dscores.data(), divergences.data(), scores.data(), BlockTeacher<double>{{tile_max.data(), lse.data()}, s, d});
        sum_divergences(CPU{}, sums.data(), divergences.data(), s.NH, int(N));
        const DeviceArray<float> max_there(tile_max), lse_there(lse), scores_there(scores), dscores_there(dscores.size(), NAN),
            divergences_there(divergences.size(), NAN), sums_there(s.NH, NAN);
        distil(test_gpu(), dscores_there.data(), divergences_there.data(), scores_there.data(),
               BlockTeacher<float>{{max_there.data(), lse_there.data()}, s, d});
        sum_divergences(test_gpu(), sums_there.data(), divergences_there.data(), s.NH, int(N));
        CHECK(difference(dscores_there.numbers(), dscores, {1e-5, 1e-5}) == "");
        CHECK(difference(divergences_there.numbers(), divergences, {1e-5, 1e-5}) == "");
        CHECK(difference(sums_there.numbers(), sums, {1e-5, 1e-5}) == "");

        Numbers of_map(scores.size(), 7);   // what is not past stays as it was
        const DeviceArray<float> of_map_there(scores.size(), 7);
        scores_of_map(CPU{}, of_map.data(), DenseMap<double>{tile_max.data(), lse.data()}, s);
        scores_of_map(test_gpu(), of_map_there.data(), DenseMap<float>{max_there.data(), lse_there.data()}, s);
        CHECK(difference(of_map_there.numbers(), of_map, {1e-5, 1e-5}) == "");
    }
}

// More tiles, and more blocks, than a thread block has threads.
TEST_CASE("GPU: blocks are spread over tiles and tiles' gradients gathered over blocks, many of them", "[gpu][attention]") {
    for (const auto& [T, block] : {std::pair{64 * 67 + 5, 64}, {128 * 66 + 70, 128}}) {
        const BlockTiles t{{1, T, 2, 1, 32, block, GateQuery::first}, 1};
        const int N = t.s.blocks(), tiles = t.tiles();
        INFO("T " << T << ", block " << block);
        std::vector<int> block_count(size_t(t.s.NH) * N), blocks(block_count.size() * N, -1);
        for (int h = 0; h < t.s.NH; h++)
            for (int r = 0; r < N; r++)   // every block but some, its own the last
                for (int c = 0; c <= r; c++)
                    if (c == r || (c + h) % 7) blocks[t.s.of_query(0, h, r) * N + block_count[t.s.of_query(0, h, r)]++] = c;
        const size_t pairs = size_t(t.s.NH) * tiles * tiles;
        const Numbers scores = rounded<float>(normal_numbers(blocks.size(), 1)),
                      distilled = rounded<float>(normal_numbers(blocks.size(), 2)),
                      dnumbers = rounded<float>(normal_numbers(pairs, 3));

        std::vector<int> count(size_t(t.s.NH) * tiles), list(pairs, -1);
        Numbers numbers(pairs, NAN), dscores(blocks.size(), NAN);
        spread_blocks(CPU{}, count.data(), list.data(), numbers.data(), block_count.data(), blocks.data(), scores.data(), t);
        gather_dscores(CPU{}, dscores.data(), dnumbers.data(), scores.data(), distilled.data(), 0.5, t);

        const DeviceMemory<int> block_count_there(block_count), blocks_there(blocks);
        const DeviceMemory<int> count_there(std::vector<int>(count.size(), -1)), list_there(std::vector<int>(pairs, -1));
        const DeviceArray<float> scores_there(scores), distilled_there(distilled), dnumbers_there(dnumbers);
        const DeviceArray<float> numbers_there(pairs, NAN), dscores_there(dscores.size(), NAN);
        spread_blocks(test_gpu(), count_there.data(), list_there.data(), numbers_there.data(), block_count_there.data(),
                      blocks_there.data(), scores_there.data(), t);
        gather_dscores(test_gpu(), dscores_there.data(), dnumbers_there.data(), scores_there.data(), distilled_there.data(), 0.5f,
                       t);
        CHECK(count_there.host() == count);
        CHECK(list_there.host() == list);
        CHECK(difference(numbers_there.numbers(), numbers, {1e-5, 1e-6}) == "");
        CHECK(difference(dscores_there.numbers(), dscores, {1e-5, 1e-5}) == "");
    }
}
