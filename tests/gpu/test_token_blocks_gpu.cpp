// The rows of a choice of blocks on the GPU: the CPU's, to the bit. The layer as a whole: test_attention_variant_gpu.
#include <random>
#include <tuple>

#include "attention/blocks/block_rows.cuh"
#include "attention/masks/choose_blocks.cuh"
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

/// A choice at random: of the blocks before its own every token takes some.
std::vector<int> random_choice(const BlockChoice& c) {
    std::vector<int> choice(c.size(), -1);
    std::mt19937 random(c.T);
    for (int n = 0; n < c.B * c.choosers * c.T; n++)
        for (int block = 0, taken = 0; block < n % c.T / c.block && taken < c.slots; block++)
            if (random() % 3) choice[size_t(n) * c.slots + taken++] = block;
    return choice;
}

/// One warp per row of `blocks` scores.
__global__ void choose_rows_kernel(int* to, const float* scores, TileChoice choice, int blocks) {
    choose_blocks(BlockTeam<1>(), to + blockIdx.x * choice.top, scores + blockIdx.x * blocks, choice, blocks - 1);
}

}   // namespace

TEST_CASE("GPU block rows: the CPU's lists, to the bit", "[gpu][attention][blocks]") {
    const int T = GENERATE(40, 64, 65, 400, 700), order = GENERATE(0, 1, 2);
    const Order in_this(order);
    const std::tuple<BlockChoice, int, int> passes[] = {{{2, T, 4, 2, 64, 3}, 0, 3}, {{1, T, 4, 4, 128, 2}, 0, 2},
                                                        {{1, T, 2, 1, 64, 5}, 4, 1}, {{1, T, 2, 1, 64, 5}, 1, 2}};
    for (const auto& [c, first, slots] : passes) {
        INFO("T " << T << ", blocks of " << c.block << ", pass " << first << " + " << slots);
        const std::vector<int> chosen = random_choice(c);
        BlockRows rows(c, first, slots);
        BumpAllocator measure(nullptr);
        rows.take(measure);
        const size_t ints = measure.bytes() / sizeof(int) + 1;
        const DeviceMemory<int> memory(std::vector<int>(ints, 0x55)), choice(chosen);
        BumpAllocator there(reinterpret_cast<std::byte*>(memory.data()));
        rows.take(there);
        list_block_rows(test_gpu(), rows, choice.data());
        const std::vector<int> found = memory.host();

        std::vector<int> expected(ints, 0x55);
        BumpAllocator here(reinterpret_cast<std::byte*>(expected.data()));
        BlockRows on_host(c, first, slots);
        on_host.take(here);
        list_block_rows(CPU{}, on_host, chosen.data());
        const size_t last = on_host.tiles - expected.data();   // of tiles that count none nothing is said
        CHECK(std::equal(expected.begin(), expected.begin() + last, found.begin()));
        int wrong = 0;
        for (int n = 0; n < c.B * c.NH * tiles_of(rows.count); n++)
            for (int m = 0; m < on_host.tile_count[n]; m++)
                wrong += on_host.tiles[n * rows.of_block() + m] != found[last + n * rows.of_block() + m];
        CHECK(wrong == 0);
    }
}

TEST_CASE("GPU chosen blocks: the CPU's, with ties and more blocks than a warp has lanes", "[gpu][attention][blocks]") {
    const int rows = 20;
    for (int blocks : {1, 5, 33, 100})
        for (const TileChoice& choice :
             {TileChoice{.top = 3}, TileChoice{.top = 13, .leading = 1, .local = 2}, TileChoice{.top = 200}, TileChoice{9, 0.02f}}) {
            std::vector<float> scores;
            for (double x : normal_numbers(size_t(rows) * blocks, blocks)) scores.push_back(std::round(float(x) * 4));
            const DeviceMemory<float> there(scores);
            const DeviceMemory<int> to(std::vector<int>(size_t(rows) * choice.top, 99));
            launch(test_gpu(), choose_rows_kernel, rows, WARP, 0, to.data(), there.data(), choice, blocks);
            std::vector<int> expected(size_t(rows) * choice.top);
            for (int r = 0; r < rows; r++)
                choose_blocks(ThreadTeam<float>(0), &expected[r * choice.top], &scores[r * blocks], choice, blocks - 1);
            CHECK(to.host() == expected);
        }
}
