// The pieces of block-sparse attention on the GPU against the CPU: small products, the pooled map's distillation. The whole of it is in
// tests/gpu/variant.
#include "attention/blocks/block_sparse.cuh"

#include "tests/attention_problem.h"
#include "tests/gpu/device_array.h"

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
    }
}
