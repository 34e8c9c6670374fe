// The emulator names what is wrong with products of a warpgroup, or lets their result be wrong. That correct ones are right is
// tested in tests/gpu/test_conformance_wgmma.cpp.
#include "attention/kernel/wgmma.cuh"

#include "tests/emulator/emulated.h"

namespace {

enum Fault {
    none, no_fence, no_publishing, published_before_the_write, no_barrier, no_wait, waits_for_too_little, accumulator_read_early,
    accumulator_written_early, factor_written_early, tile_written_early, plain_swizzle, inside_an_atom, stride_of_half_an_atom,
    beyond_the_row, beyond_shared_memory, a_warp_missing, a_warp_only_waits, another_matrix
};

struct Tiles {
    SwizzledTile<bf16, 64, 64> a, b;
};

/// out (64, 64) = A B^T + C B, where A, B and C are all ones: 64 + 16, unless there is a fault.
__global__ void ones_kernel(float* out, int fault) {
    auto& shared = dynamic_shared<Tiles>();
    Two<bf16> ones;
    make_two(ones, 1, 1);
    if (fault == published_before_the_write) shared.a.publish();
    for (int n = threadIdx.x; n < 64 * 32; n += 128) shared.a.store(n / 32, n % 32 * 2, ones), shared.b.store(n / 32, n % 32 * 2, ones);
    if (fault != no_publishing && fault != published_before_the_write) shared.a.publish();
    if (fault != no_barrier) __syncthreads();
    if (fault == a_warp_missing && threadIdx.x < WARP) return;

    Accumulator<1, 8> sums;
    FragmentA<bf16> left;
    for (auto& part : left.part) part = ones;
    if (fault != no_fence) fence_registers();
    for (int k = 0; k < 64; k += 16) {
        uint64_t b = shared.b.describe(0, k);
        if (fault == plain_swizzle) b &= ~(uint64_t(3) << 62);
        if (fault == inside_an_atom) b += 128 >> 4;
        if (fault == stride_of_half_an_atom) b -= uint64_t(512 >> 4) << 32;
        if (fault == beyond_the_row) b += 16 >> 4;
        if (fault == beyond_shared_memory) b += 4096 >> 4;
        if (fault == another_matrix && threadIdx.x == 5) b += 8192 >> 4;
        if (fault == a_warp_only_waits && threadIdx.x < WARP) continue;
        start_product<false, false>(sums.d[0], shared.a.describe(0, k), b, k > 0);
    }
    commit_products();
    if (fault != no_fence) fence_registers();
    start_product(sums.d[0], left, shared.b.describe(0, 0));
    commit_products();
    const float early = sums.at(0, 0, 0);
    if (fault == accumulator_written_early) sums.at(0, 0, 0) = 1;
    if (fault == factor_written_early) left.part[0].bits = 0;
    if (fault == tile_written_early) shared.b.store(threadIdx.x / 2, 0, Two<bf16>{});
    if (fault == no_wait) return;
    if (fault == waits_for_too_little) shared.a.finish_products<1>(sums);
    else shared.a.finish_products(sums);
    for (int n = threadIdx.x; n < 64 * 64; n += 128) out[n] = 0;
    __syncthreads();
    sums.for_each([&](float& x, int r, int c) { out[(warp_row() + r) * 64 + c] = x; });
    if (fault == accumulator_read_early && threadIdx.x == 0) out[0] = early;
    if (fault == waits_for_too_little) shared.a.finish_products(sums);
}

std::vector<float> result(Fault fault) {
    DeviceMemory<float> out(std::vector<float>(64 * 64));
    launch(GPU{}, ones_kernel, Grid(1), 128, sizeof(Tiles), out.data(), int(fault));
    return out.host();
}
bool right(Fault fault) { return result(fault) == std::vector<float>(64 * 64, 80); }

TEST_CASE("emulator: products of a warpgroup that are used wrongly", "[emulator][wgmma]") {
    for (const int seed : SEEDS) {
        Order order(seed);
        CHECK(right(none));
        auto says = [](Fault fault) { return complaint([&] { result(fault); }); };
        CHECK(contains(says(no_fence), "wgmma: no wgmma.fence since this thread's last group of products"));
        CHECK(contains(says(no_publishing), "wrote without a fence.proxy.async since"));
        CHECK(contains(says(published_before_the_write), "wrote without a fence.proxy.async since"));
        CHECK(contains(says(no_wait), "ends with wgmma products that it never waited for"));
        CHECK(contains(says(accumulator_written_early), "wgmma: accumulators were changed before the wait for their product"));
        CHECK(contains(says(plain_swizzle), "does not say the swizzle of 128 bytes"));
        CHECK(contains(says(inside_an_atom), "does not begin in the first row of an atom of 1024 bytes"));
        CHECK(contains(says(stride_of_half_an_atom), "atoms are not a multiple of 1024 bytes apart"));
        CHECK(contains(says(beyond_the_row), "a row of the matrix leaves the 128 bytes of its atom"));
        CHECK(contains(says(beyond_shared_memory), "the matrix leaves the block's shared memory"));
        CHECK(contains(says(a_warp_missing), "96 threads, first 32: at wgmma.wait_group"));
        CHECK(contains(says(a_warp_only_waits), "of the warpgroup wait for different numbers of products"));
        CHECK(contains(says(another_matrix), "threads 0 and 5 of the warpgroup have different arguments"));
        CHECK_FALSE(right(accumulator_read_early));
        CHECK_FALSE(right(waits_for_too_little));
        if (seed % 2 == 0) CHECK(contains(says(tile_written_early), "wrote without a fence.proxy.async since"));
        if (seed % 2 == 0) CHECK_FALSE(right(factor_written_early));   // computed in the wait
        if (seed % 2 == 1 && !emulator::FINDS_RACES) CHECK_FALSE(right(no_barrier));   // computed at once
    }
}

}   // namespace
