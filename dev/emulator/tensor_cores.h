// Instructions that CUDA C++ has only as PTX, here behind wrappers: matrix products of a warp, the loads of their operands, and
// asynchronous copies to shared memory. The layouts are those of the PTX manual (chapters "Matrix multiply-accumulate" and
// "cp.async").
#pragma once
#include <bit>
#include <cstdint>

#include "meetings.h"

namespace emulator {

// ---- ldmatrix

struct LoadMatrix {
    const void* row;    // lane 8 m + i: row i of matrix m, eight numbers of 16 bits
    uint32_t* result;   // one register per matrix
};

/// Lane t gets numbers 2 (t mod 4) and + 1 of row t / 4 of each matrix; transposed: of column t / 4.
template <int MATRICES, bool TRANSPOSED>
void load_matrices(LoadMatrix** lanes) {
    for (int m = 0; m < MATRICES; m++) {
        auto number = [&](int i, int j) -> uint32_t { return static_cast<const uint16_t*>(lanes[8 * m + i]->row)[j]; };
        for (int t = 0; t < LANES; t++) {
            const int i = t / 4, j = t % 4 * 2;
            lanes[t]->result[m] = TRANSPOSED ? number(j, i) | number(j + 1, i) << 16 : number(i, j) | number(i, j + 1) << 16;
        }
    }
}

/// ldmatrix.sync.aligned.m8n8.xN(.trans).shared.b16. The first 8 N lanes give the rows' addresses.
template <int N, bool transposed>
void ldmatrix(uint32_t (&registers)[N], const void* row, Location at = Location::current()) {
    static_assert(N == 1 || N == 2 || N == 4);
    if (self->lane() < 8 * N) {
        if (reinterpret_cast<uintptr_t>(row) % 16) fail_at(at, "ldmatrix: the address of a row is not a multiple of 16");
        if (!worker->block->shared.contains(row, 16)) fail_at(at, "ldmatrix: a row does not lie in the block's shared memory");
    }
    LoadMatrix mine{row, registers};
    meet_in_warp("ldmatrix", mine, at, load_matrices<N, transposed>);
}

// ---- mma

struct MultiplyAdd {
    float* d;
    const uint32_t *a, *b;
    bool halves;   // fp16 instead of bf16
};

using EightFloats = float __attribute__((vector_size(32)));

inline float number_of_pair(uint32_t pair, int which, bool halves) {
    if (halves) return which ? floats_of_f16x2(pair).y : floats_of_f16x2(pair).x;
    return std::bit_cast<float>(which ? pair & 0xffff0000 : pair << 16);
}

/// D (16, 8) += A (16, 16) B (16, 8). Lane t holds, for row g = t / 4 and columns k = 2 (t mod 4), k + 1:
///   A: rows g, g + 8 of columns k, then the same rows of columns k + 8;  B: rows k, then k + 8, of column g;  D: rows g, g + 8.
/// The products are added in float32 in the order of k. Tensor cores add in another order and round differently.
inline void multiply_add(MultiplyAdd** lanes) {
    float A[16][16];
    EightFloats B[16], D[16];
    for (int t = 0; t < LANES; t++) {
        const MultiplyAdd& lane = *lanes[t];
        const int g = t / 4, k = t % 4 * 2;
        for (int h = 0; h < 2; h++) {
            A[g][k + h] = number_of_pair(lane.a[0], h, lane.halves);
            A[g + 8][k + h] = number_of_pair(lane.a[1], h, lane.halves);
            A[g][k + 8 + h] = number_of_pair(lane.a[2], h, lane.halves);
            A[g + 8][k + 8 + h] = number_of_pair(lane.a[3], h, lane.halves);
            B[k + h][g] = number_of_pair(lane.b[0], h, lane.halves);
            B[k + 8 + h][g] = number_of_pair(lane.b[1], h, lane.halves);
            D[g][k + h] = lane.d[h];
            D[g + 8][k + h] = lane.d[2 + h];
        }
    }
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 16; i++) D[i] += A[i][k] * B[k];
    for (int t = 0; t < LANES; t++) {
        float* d = lanes[t]->d;
        const int g = t / 4, k = t % 4 * 2;
        for (int h = 0; h < 2; h++) d[h] = D[g][k + h], d[2 + h] = D[g + 8][k + h];
    }
}

/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, or .f32.f16.f16.f32.
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool halves,
                         Location at = Location::current()) {
    MultiplyAdd mine{d, a, b, halves};
    meet_in_warp("mma.m16n8k16", mine, at, multiply_add);
}

// ---- the asynchronous proxy

/// The address of shared memory as descriptors have it.
inline uint32_t shared_address(const void* at) {
    return uint32_t(static_cast<const char*>(at) - worker->block->shared.begin()) + SharedMemory::RESERVED;
}

/// Marks bytes of shared memory, in pieces of 16, as written by this thread past the asynchronous proxy.
inline void generic_write(const void* at, size_t bytes) {
    Quiet quiet;
    const uint32_t first = shared_address(at) / 16, last = (shared_address(at) + uint32_t(bytes) - 1) / 16;
    for (uint32_t piece = first; piece <= last; piece++) worker->block->shared.writers[piece] = {self->index + 1, self->proxy_fences};
}

/// fence.proxy.async.shared::cta: what this thread has written is visible to products after the next barrier.
inline void fence_proxy_async() { self->proxy_fences++; }

// ---- cp.async

/// Copies `take` bytes to shared memory and fills up to `bytes` with zeros, at some time before cp_async_wait() covers it. Here
/// as late as possible. Until then the destination is unwritten (with AddressSanitizer: forbidden).
inline void cp_async(void* to, const void* from, int bytes, int take, Location at = Location::current()) {
    if (bytes != 4 && bytes != 8 && bytes != 16) fail_at(at, "cp.async copies 4, 8 or 16 bytes, not ", bytes);
    if (take < 0 || take > bytes) fail_at(at, "cp.async: takes ", take, " of ", bytes, " bytes");
    auto misplaced = [bytes](const void* address) { return reinterpret_cast<uintptr_t>(address) % unsigned(bytes) != 0; };
    if (misplaced(to)) fail_at(at, "cp.async: the destination's address is not a multiple of ", bytes);
    if (take && misplaced(from)) fail_at(at, "cp.async: the source's address is not a multiple of ", bytes);
    if (!worker->block->shared.contains(to, size_t(bytes))) fail_at(at, "cp.async: the destination is not in shared memory");
    char* destination = static_cast<char*>(to);
    const char unwritten = char(poison());
    for (int i = 0; i < bytes; i++) destination[i] = unwritten;   // not quiet: from here on another thread's access is a race
    Quiet quiet;
    if (bytes >= 8) forbid(to, size_t(bytes));   // AddressSanitizer's smallest piece
    self->copies.push_back({destination, static_cast<const char*>(from), bytes, take, self->groups});
}

/// Closes a group of copies.
inline void cp_async_commit() { self->groups++; }

/// Waits until at most `left` of the newest groups are pending.
inline void cp_async_wait(int left) {
    std::vector<PendingCopy>& copies = self->copies;
    auto stays = [first = self->groups - left](const PendingCopy& copy) { return copy.group >= first; };
    const auto end = std::find_if(copies.begin(), copies.end(), stays);
    for (auto copy = copies.begin(); copy != end; copy++) {
        permit(copy->to, size_t(copy->bytes));
        for (int i = 0; i < copy->bytes; i++) copy->to[i] = i < copy->take ? copy->from[i] : 0;   // byte by byte, for the sanitizers
        generic_write(copy->to, size_t(copy->bytes));
    }
    copies.erase(copies.begin(), end);
}

}   // namespace emulator
