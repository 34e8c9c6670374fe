// Planned memory: each class of tensors (weights, gradients, moments, activations, scratch) is one block. The function that lays
// out a block runs twice, first without memory to learn its size, so that the plan and the allocation cannot disagree.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/base/error.h"
#include "model/base/text.h"
#include "model/device/device.h"
#include "model/device/machine.h"

/// One line of the memory table.
struct MemoryUse {
    std::string what;
    size_t bytes;
};

/// Sum over the table.
inline size_t total_bytes(const std::vector<MemoryUse>& plan) {
    size_t total = 0;
    for (const MemoryUse& use : plan) total += use.bytes;
    return total;
}

/// Copies n elements between host and device memory; complete on return.
template <class Y>
void to_device(CPU, Y* to, const Y* from, size_t n) {
    std::copy(from, from + n, to);
}
template <class Y>
void to_host(CPU, Y* to, const Y* from, size_t n) {
    std::copy(from, from + n, to);
}

/// to (n) = from (n), rounded to X if X is narrower.
template <class X, class W>
void convert(CPU, X* to, const W* from, size_t n) {
    if (static_cast<const void*>(to) != from) std::copy(from, from + n, to);
}

/// Host access to n floats of device memory: itself on the CPU, a copy on a GPU. pull() reads the device, push() writes it.
template <class Device>
class HostView {
public:
    HostView(Device device, float* x, size_t n) : device_(device), x_(x), copy_(ON_HOST ? 0 : n) {}
    float* data() { return ON_HOST ? x_ : copy_.data(); }
    void pull() { to_host(device_, copy_.data(), x_, copy_.size()); }
    void push() { to_device(device_, x_, copy_.data(), copy_.size()); }

private:
    static constexpr bool ON_HOST = std::is_same_v<Device, CPU>;
    Device device_;
    float* x_;
    std::vector<float> copy_;
};

/// Hands out pieces of one block, or, without a block, only counts their bytes.
class BumpAllocator {
public:
    /// Precondition: `block` is a multiple of ALIGNMENT, or null.
    explicit BumpAllocator(std::byte* block) : block_(block) {}

    /// Room for X (count), aligned to ALIGNMENT bytes. Not a valid address unless there is a block.
    template <class X>
    X* take(size_t count) {
        std::byte* const piece = block_ + used_;
        used_ += (count * sizeof(X) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        peak_ = used_ > peak_ ? used_ : peak_;
        return reinterpret_cast<X*>(piece);
    }

    /// Pieces taken after rewinding to the same used() share memory: for pieces that are never live together.
    void rewind(size_t used) { used_ = used; }
    size_t used() const { return used_; }

    /// Size that the block must have.
    size_t bytes() const { return peak_; }

protected:
    static constexpr size_t ALIGNMENT = 256;   // as cudaMalloc() gives it
    std::byte* block_;
    size_t used_ = 0, peak_ = 0;
};

/// Zeroed memory, or null. Huge pages are requested before the first touch.
inline std::byte* new_block(CPU, size_t bytes, size_t alignment) {
    void* const block = std::aligned_alloc(alignment, bytes);
    if (block) prefer_large_pages(block, bytes), std::memset(block, 0, bytes);
    return static_cast<std::byte*>(block);
}
inline void delete_block(CPU, std::byte* block, size_t) { std::free(block); }

/// A bump allocator that owns its block: count with take(), then allocate(), then take() the same pieces again.
template <class Device>
class Arena : public BumpAllocator {
public:
    Arena() : BumpAllocator(nullptr) {}
    ~Arena() { delete_block(Device{}, block_, allocated_); }
    Arena(const Arena&) = delete;

    /// Allocates the memory counted so far, on the CPU zeroed, and restarts at its beginning. Exit::out_of_memory if there is not enough.
    void allocate() {
        delete_block(Device{}, std::exchange(block_, nullptr), std::exchange(allocated_, peak_));
        if (peak_) block_ = new_block(Device{}, peak_, ALIGNMENT);
        if (peak_ && !block_)
            fail(Exit::out_of_memory, "cannot allocate ", human_bytes(double(peak_)), " on device ", Device::name,
                 ": to train, lower --batch-size or --seq-len, or set --recompute 2; to generate, lower --tokens or --batch");
        used_ = 0;
    }

private:
    size_t allocated_ = 0;   // bytes of the block
};
