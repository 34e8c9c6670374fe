// Checksums of arrays in device memory, piece by piece. Equal arrays have equal sums, and a change of one element always changes the sum
// of its piece. Element i with the bits b adds b (2 i + 1) modulo 2^64, so that threads and ranks may add in any order.
#pragma once
#include <bit>
#include <cstdint>
#include <vector>

#include "model/device/memory.cuh"
#include "model/tensors.h"

template <class X>
using BitsOf = std::conditional_t<sizeof(X) == 2, uint16_t, std::conditional_t<sizeof(X) == 4, uint32_t, uint64_t>>;

/// The term of element i in the sum.
template <class X>
constexpr uint64_t checksum_term(const X& x, size_t i) {
    return uint64_t(std::bit_cast<BitsOf<X>>(x)) * (2 * uint64_t(i) + 1);
}

/// Elements [begin, end) of a stored array. The first is element `number` of the summed array.
struct Piece {
    size_t begin, end;
    size_t number = begin;
    size_t size() const { return end - begin; }
};

/// sums[p] = the sum of piece p of x; pieces (count).
template <class X>
void checksum(CPU, uint64_t* sums, const X* x, const Piece* pieces, size_t count) {
    #pragma omp parallel for schedule(dynamic)
    for (size_t p = 0; p < count; p++) {
        const auto [begin, end, number] = pieces[p];
        uint64_t sum = 0;
        for (size_t i = begin; i < end; i++) sum += checksum_term(x[i], number + (i - begin));
        sums[p] = sum;
    }
}

#ifdef WITH_GPU
inline constexpr int CHECKSUM_THREADS = 256;

/// Block p: sums[p] of piece p. The threads' sums meet in shared memory.
template <class X>
__global__ void __launch_bounds__(CHECKSUM_THREADS) checksum_kernel(uint64_t* sums, const X* x, const Piece* pieces) {
    struct Shared {
        uint64_t of_threads[CHECKSUM_THREADS];
    };
    auto& shared = dynamic_shared<Shared>();
    const Piece piece = pieces[blockIdx.x];
    uint64_t sum = 0;
    for (size_t i = piece.begin + threadIdx.x; i < piece.end; i += CHECKSUM_THREADS)
        sum += checksum_term(x[i], piece.number + (i - piece.begin));
    shared.of_threads[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int t = 1; t < CHECKSUM_THREADS; t++) sum += shared.of_threads[t];
    sums[blockIdx.x] = sum;
}

template <class X>
void checksum(GPU device, uint64_t* sums, const X* x, const Piece* pieces, size_t count) {
    launch(device, checksum_kernel<X>, Grid(count), CHECKSUM_THREADS, CHECKSUM_THREADS * sizeof(uint64_t), sums, x, pieces);
}
#endif

/// Sums over pieces of arrays with the same layout.
template <class Device>
class Checksums {
public:
    Checksums(Device device, const std::vector<Piece>& pieces) : count_(pieces.size()) {
        for (int pass = 0; pass < 2; pass++) {   // the first pass computes the size
            pieces_ = memory_.template take<Piece>(count_), sums_ = memory_.template take<uint64_t>(count_);
            if (pass == 0) memory_.allocate();
        }
        to_device(device, pieces_, pieces.data(), count_);
    }

    /// The sum of each piece of x. Blocks on the device.
    template <class X>
    std::vector<uint64_t> of(Device device, const X* x) const {
        std::vector<uint64_t> sums(count_);
        if (count_ == 0) return sums;
        checksum(device, sums_, x, pieces_, count_);
        to_host(device, sums.data(), sums_, count_);
        return sums;
    }

private:
    size_t count_;
    Arena<Device> memory_;
    Piece* pieces_ = nullptr;
    uint64_t* sums_ = nullptr;
};
