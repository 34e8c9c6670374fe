// Products of a warpgroup (wgmma.mma_async) and the asynchronous proxy, by which they read shared memory. The layouts are those of the
// PTX manual (chapter "Asynchronous warpgroup level matrix instructions"). Of these only the 128-byte swizzle and bf16 are here.
//
// A product's accumulators hold poison until the wait that covers it. With an even seed products are computed in that wait, with an odd
// one each warp's part as soon as the warp has issued it: what they read must be there and stay there in between.
#pragma once
#include <bit>
#include <cstdint>

#include "tensor_cores.h"

namespace emulator {

// ---- matrices in shared memory

/// Rows (of A) or columns (of B) `i` by terms of the sum `k`, as a descriptor places them. Eight rows of 128 bytes are an atom of 1024,
/// in which the 16-byte pieces of row r lie in the order of (piece ^ r).
class DescribedMatrix {
public:
    DescribedMatrix(uint64_t descriptor, bool transposed, int count, const Location& at)
        : start_(uint32_t(descriptor & 0x3fff) << 4), leading_(uint32_t(descriptor >> 16 & 0x3fff) << 4),
          stride_(uint32_t(descriptor >> 32 & 0x3fff) << 4), transposed_(transposed), at_(at) {
        if (descriptor >> 62 != 1) fail_at(at, "wgmma: the descriptor does not say the swizzle of 128 bytes");
        if (start_ & 0x380 || descriptor >> 49 & 7)
            fail_at(at, "wgmma: the matrix does not begin in the first row of an atom of 1024 bytes");
        if (stride_ % 1024 || (transposed && leading_ % 1024 && count > 64))
            fail_at(at, "wgmma: atoms are not a multiple of 1024 bytes apart");
        if ((start_ & 0x7f) + 2 * (transposed ? std::min(count, 64) : 16) > 128)
            fail_at(at, "wgmma: a row of the matrix leaves the 128 bytes of its atom");
    }

    /// Calls use(i, k, number) for first <= i < last, multiples of 16.
    template <class Use>
    void each(int first, int last, Use use) const {
        for (int i = first; i < last; i += transposed_ ? 8 : 1)
            for (int k = 0; k < 16; k += transposed_ ? 1 : 8) {
                const uint16_t* numbers = piece(transposed_ ? start_ + i / 64 * leading_ + i % 64 * 2 + k / 8 * stride_ + k % 8 * 128
                                                            : start_ + i / 8 * stride_ + i % 8 * 128 + k * 2);
                for (int n = 0; n < 8; n++)
                    use(transposed_ ? i + n : i, transposed_ ? k : k + n, std::bit_cast<float>(uint32_t(numbers[n]) << 16));
            }
    }

private:
    const uint16_t* piece(uint32_t address) const {
        Block& block = *worker->block;
        address ^= address >> 3 & 0x70;
        const char* at = block.shared.begin() + (address - SharedMemory::RESERVED);
        if (!block.shared.contains(at, 16)) fail_at(at_, "wgmma: the matrix leaves the block's shared memory");
        Quiet quiet;
        const auto [thread, fences] = block.shared.writers[address / 16];
        if (thread && block.threads[size_t(thread - 1)].proxy_fences == fences)
            fail_at(at_, "wgmma reads byte ", address - SharedMemory::RESERVED, " of shared memory, which thread ", thread - 1,
                    " wrote without a fence.proxy.async since");
        return reinterpret_cast<const uint16_t*>(at);
    }

    uint32_t start_, leading_, stride_;
    bool transposed_;
    const Location& at_;
};

// ---- products

inline void require_same(const Thread* threads, int count, size_t n, const Location& at) {
    const Product& first = threads[0].products[n];
    for (int t = 1; t < count; t++) {
        const std::vector<Product>& of_thread = threads[t].products;
        if (of_thread.size() <= n || !of_thread[n].has_arguments_of(first))
            fail_at(at, "wgmma: threads ", threads[0].index, " and ", threads[t].index, " of the warpgroup have different arguments");
    }
}

/// Product n of `count` threads, a warp or all of the group:
/// D (64, N) = A (64, 16) B (16, N), or D += A B, summed in float32 in the order of k. Warp w has rows 16 w .. of A and D, in fragments as
/// of mma.m16n8k16; N / 8 of D's.
inline void compute(Thread* threads, int count, size_t n) {
    const Product& first = threads[0].products[n];
    static thread_local float A[GROUP / 2][16];
    static thread_local EightFloats B[16][16], D[GROUP / 2][16];
    const int N = first.columns, row0 = threads[0].index % GROUP / LANES * 16;
    auto row_of = [](const Thread& thread) { return thread.index % GROUP / LANES * 16 + thread.lane() / 4; };
    if (!first.a)
        DescribedMatrix(first.a_matrix, first.a_transposed, GROUP / 2, first.at).each(row0, row0 + count / 2, [](int i, int k, float x) {
            A[i][k] = x;
        });
    DescribedMatrix(first.b_matrix, first.b_transposed, N, first.at).each(0, N, [](int i, int k, float x) { B[k][i / 8][i % 8] = x; });
    auto each_accumulator = [&](auto use) {
        for (Thread* thread = threads; thread < threads + count; thread++) {
            float* d = thread->accumulators_of(thread->products[n].d, N / 2).values.data();
            for (int e = 0; e < N / 2; e++) use(d[e], D[row_of(*thread) + e % 4 / 2 * 8][e / 4], thread->lane() % 4 * 2 + e % 2);
        }
    };
    each_accumulator([&](float& d, EightFloats& row, int column) { row[column] = first.adds ? d : 0; });
    for (Thread* thread = threads; first.a && thread < threads + count; thread++)
        for (int e = 0; e < 8; e++) {
            const uint32_t pair = thread->products[n].a[e / 2];
            A[row_of(*thread) + e / 2 % 2 * 8][thread->lane() % 4 * 2 + e / 4 * 8 + e % 2] = number_of_pair(pair, e % 2, false);
        }
    for (int i = row0; i < row0 + count / 2; i++)
        for (int k = 0; k < 16; k++)
            for (int c = 0; c < N / 8; c++) D[i][c] += A[i][k] * B[k][c];
    each_accumulator([&](float& d, EightFloats& row, int column) { d = row[column]; });
    for (Thread* thread = threads; thread < threads + count; thread++) thread->products[n].computed = true;
}

/// wgmma.fence: what this thread has written to registers is visible to its products.
inline void wgmma_fence() { self->registers_fenced = true; }

/// wgmma.mma_async.m64nNk16.f32.bf16.bf16 with `d` of N / 2 numbers and A in the registers `a` or, where that is null, in shared memory.
inline void wgmma(float* d, int N, const uint32_t* a, uint64_t a_matrix, uint64_t b_matrix, bool a_transposed, bool b_transposed,
                  bool adds, Location at = Location::current()) {
    if (!self->registers_fenced) fail_at(at, "wgmma: no wgmma.fence since this thread's last group of products");
    {
        Quiet quiet;
        self->products.push_back({d, N, a, a_matrix, b_matrix, a_transposed, b_transposed, adds, self->product_groups, false, at});
        self->accumulators_of(d, N / 2).group = self->product_groups;
    }
    Meeting& warp = *self->warp;
    meet(warp, "wgmma", nullptr, at, [&] {
        const size_t n = self->products.size() - 1;
        require_same(warp.threads, LANES, n, at);
        if (options().seed % 2) compute(warp.threads, LANES, n);
    });
}

/// wgmma.commit_group: closes a group of products.
inline void wgmma_commit() {
    self->product_groups++;
    self->registers_fenced = false;
}

/// wgmma.wait_group: waits until at most `left` of the newest groups are pending.
inline void wgmma_wait(int left, Location at = Location::current()) {
    Meeting& group = worker->block->warpgroups[size_t(self->index / GROUP)];
    meet(group, "wgmma.wait_group", nullptr, at, [&] {
        for (int t = 1; t < GROUP; t++)
            if (group.threads[t].products.size() != group.threads[0].products.size())
                fail_at(at, "wgmma: threads ", group.threads[0].index, " and ", group.threads[t].index,
                        " of the warpgroup wait for different numbers of products");
        const std::vector<Product>& products = self->products;
        for (size_t n = 0; n < products.size() && products[n].group < self->product_groups - left; n++) {
            require_same(group.threads, GROUP, n, at);
            if (!products[n].computed) compute(group.threads, GROUP, n);
        }
    });
    Quiet quiet;
    const int first = self->product_groups - left;
    std::erase_if(self->products, [&](const Product& product) { return product.group < first; });
    std::erase_if(self->accumulators, [&](PendingAccumulators& pending) {
        if (pending.group >= first) return false;
        if (!pending.untouched()) fail_at(at, "wgmma: accumulators were changed before the wait for their product");
        std::copy(pending.values.begin(), pending.values.begin() + pending.count, pending.d);
        return true;
    });
}

}   // namespace emulator
