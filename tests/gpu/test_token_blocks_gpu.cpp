// The rows of a choice of blocks on the GPU: the CPU's, to the bit. The layer as a whole: test_attention_variant_gpu.
#include "attention/blocks/mean_gate.cuh"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/on_gpu.h"
#include "tests/token_blocks.h"

namespace {

/// One warp per row of `blocks` scores.
__global__ void choose_rows_kernel(int* to, const float* scores, TileChoice choice, int blocks) {
    choose_blocks(to + blockIdx.x * choice.top, scores + blockIdx.x * blocks, choice, blocks - 1);
}

}   // namespace

TEST_CASE("GPU block rows: the CPU's lists, to the bit", "[gpu][attention][blocks]") {
    for (int order : {0, 1, 2})
        for (const ChoiceCase& one : choice_cases()) {
            const Order chosen(order);
            INFO(one.text());
            BlockRows rows(one.c, one.first, one.slots);
            BumpAllocator measure(nullptr);
            rows.take(measure);
            const size_t ints = measure.bytes() / sizeof(int) + 1;
            const DeviceMemory<int> memory(std::vector<int>(ints, 0x55)), choice(one.choice);
            BumpAllocator there(reinterpret_cast<std::byte*>(memory.data()));
            rows.take(there);
            list_block_rows(test_gpu(), rows, choice.data());
            const std::vector<int> found = memory.host();

            std::vector<int> expected(ints, 0x55);
            BumpAllocator here(reinterpret_cast<std::byte*>(expected.data()));
            BlockRows on_host(one.c, one.first, one.slots);
            on_host.take(here);
            list_block_rows(CPU{}, on_host, one.choice.data());
            const size_t last = on_host.tiles - expected.data();   // of tiles that count none nothing is said
            CHECK(std::equal(expected.begin(), expected.begin() + last, found.begin()));
            int wrong = 0;
            for (int n = 0; n < one.c.B * one.c.NH * tiles_of(rows.count); n++)
                for (int m = 0; m < on_host.tile_count[n]; m++)
                    wrong += on_host.tiles[n * rows.of_block() + m] != found[last + n * rows.of_block() + m];
            CHECK(wrong == 0);
        }
}

TEST_CASE("GPU chosen blocks: the CPU's, with ties and more blocks than a warp has lanes", "[gpu][attention][blocks]") {
    const int rows = 20;
    for (int blocks : {1, 5, 33, 100})
        for (const TileChoice& choice :
             {TileChoice{.top = 3}, TileChoice{.top = 13, .leading = 1, .local = 2}, TileChoice{.top = 200}}) {
            std::vector<float> scores;
            for (double x : normal_numbers(size_t(rows) * blocks, blocks)) scores.push_back(std::round(float(x) * 4));
            const DeviceMemory<float> there(scores);
            const DeviceMemory<int> to(std::vector<int>(size_t(rows) * choice.top, 99));
            launch(test_gpu(), choose_rows_kernel, rows, WARP, 0, to.data(), there.data(), choice, blocks);
            std::vector<int> expected(size_t(rows) * choice.top), order;
            for (int r = 0; r < rows; r++)
                choose_blocks(CPU{}, &expected[r * choice.top], &scores[r * blocks], choice, blocks - 1, order);
            CHECK(to.host() == expected);
        }
}

// Halves, so that every sum is exact and ties are ties on both devices.
TEST_CASE("GPU gate of means: the CPU's choice, grouped heads, two sequences", "[gpu][attention][blocks]") {
    LayerInputs<float> in{};
    in.B = 2, in.T = 500, in.NH = 4, in.NKV = 2, in.HS = 32, in.qk_row = size_t(in.NH + in.NKV) * in.HS;
    std::vector<float> qk;
    for (double x : normal_numbers(in.B * in.T * in.qk_row, 5)) qk.push_back(std::round(2 * float(x)) / 2);
    const DeviceMemory<float> qk_there(qk);
    for (int block : {64, 128}) {
        INFO("blocks of " << block);
        const BlockChoice c{in.B, in.T, in.NH, in.NH, block, 2};
        auto choose = [&](auto device, const float* numbers, float* means, int* choice) {
            in.q = numbers, in.k = numbers + size_t(in.NH) * in.HS;
            choose_by_means(device, choice, BlockMeans<float>{means, in.k, in.qk_row, in, block}, in, c);
        };
        std::vector<float> means(size_t(in.B) * in.NKV * ((in.T + block - 1) / block) * in.HS, NAN);
        std::vector<int> expected(c.size(), 99);
        const DeviceMemory<float> means_there(means);
        const DeviceMemory<int> found(expected);
        choose(CPU{}, qk.data(), means.data(), expected.data());
        choose(test_gpu(), qk_there.data(), means_there.data(), found.data());
        CHECK(found.host() == expected);
        CHECK(std::count(expected.begin(), expected.end(), 0) > 0);
    }
}
