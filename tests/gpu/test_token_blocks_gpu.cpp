// The choice of blocks on the GPU: the CPU's. The layer as a whole: test_attention_variant_gpu.
#include "attention/masks/choose_blocks.cuh"
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

/// One warp per row of `blocks` scores.
__global__ void choose_rows_kernel(int* to, const float* scores, TileChoice choice, int blocks) {
    choose_blocks(BlockTeam<1>(), to + blockIdx.x * choice.top, scores + blockIdx.x * blocks, choice, blocks - 1);
}

}   // namespace

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
