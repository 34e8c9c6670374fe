// Rows of branches and the merging of branches on the GPU, against the CPU in double.
#include "attention/scores/each_element.cuh"
#include "tests/attention_case.h"
#include "tests/branches.h"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/on_gpu.h"

TEST_CASE("GPU branches: rows are gathered and sent back, added up over the heads of a group", "[gpu][attention][branches]") {
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        for (int step : {1, 2, 3, 70})
            for (auto [NH, heads] : {std::pair{2, 2}, {4, 2}, {4, 1}}) {
                check_on_gpu_in_both_types(GatherRows{{2, 65, NH, heads, 32}, SomeRows(65, step), false, Write::overwrite});
                check_on_gpu_in_both_types(GatherRows{{2, 65, NH, heads, 32}, SomeRows(65, step), true, Write::add});
            }
    }
}

TEST_CASE("GPU branches: numbers of rows are gathered", "[gpu][attention][branches]") {
    for (int T : {1, 65, 600})
        for (int step : {1, 3}) check_on_gpu_in_both_types(GatherNumbers{2, T, 3, SomeRows(T, step)});
}

TEST_CASE("GPU branches: merged outputs", "[gpu][attention][branches]") {
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        for (int HS : {32, 64, 128}) {
            const RowShape s{2, 65, 2, 2, HS};
            check_on_gpu_in_both_types(Merge{s, {SomeRows(65, 1)}});
            check_on_gpu_in_both_types(Merge{s, {SomeRows(65, 1), SomeRows(65, 1)}});
            check_on_gpu_in_both_types(Merge{s, {SomeRows(65, 2), SomeRows(65, 3), SomeRows(65, 65)}});
        }
    }
}

TEST_CASE("GPU branches: statistics of merged branches, rows that see nothing", "[gpu][attention][branches]") {
    const Merge merge{{2, 130, 2, 2, 32}, {SomeRows(130, 1), SomeRows(130, 2)}};
    Arrays<float> in = random_inputs<float>(merge);
    for (size_t n = 0; n < in[2].size(); n += 3) in[2][n] = -INFINITY;
    for (int kind = 0; kind < 2; kind++)   // entropies and pairs
        for (const SomeRows& rows : merge.rows) in.push_back(random_numbers<float>(4 * rows.count, 40 + in.size()));
    for (const SomeRows& rows : merge.rows) in.push_back(random_numbers<float>(4 * tiles_of(rows.count), 50));
    Arrays<double> exact;
    for (const std::vector<float>& array : in) exact.push_back(in_double(array));
    auto finite = [](auto numbers) {
        for (auto& number : numbers) number = std::isinf(number) ? 0 : number;
        return numbers;
    };
    const std::vector<double> expected = finite(merge.statistics<double>(exact));
    const std::vector<float> once = merge.statistics<float>(in, test_gpu());
    CHECK(difference(finite(once), expected, {1e-5, 1e-6}) == "");
    for (int order = 1; order <= 4; order++) {
        const Order chosen(order);
        CHECK(bit_difference(merge.statistics<float>(in, test_gpu()), once) == "");
    }
}

TEST_CASE("GPU branches: heads are added up, rows longer than a thread block, rows that do not divide one",
          "[gpu][attention][branches]") {
    for (int width : {96, 192, 257, 768}) {
        const size_t n = size_t(5) * width;
        const std::vector<double> start = rounded<float>(normal_numbers(n, 1)), more = rounded<float>(normal_numbers(n, 2));
        std::vector<double> expected(n);
        for (size_t at = 0; at < n; at++) expected[at] = start[at] + more[at];
        const DeviceArray<float> to(start), from(more);
        add_heads(test_gpu(), Heads<float>{to.data(), size_t(width)}, Heads<const float>{from.data(), size_t(width)}, 5, 1, width);
        CHECK(difference(to.numbers(), expected, {1e-6}) == "");
    }
}
