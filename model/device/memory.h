// Planned memory: each class of tensors (weights, gradients, moments, activations, scratch) is one block. The function that lays
// out a block runs twice, first without memory to learn its size, so that the plan and the allocation cannot disagree.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/base/error.h"
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

/// *to = value, in device memory.
template <class Y>
void set_value(CPU, Y* to, Y value) {
    *to = value;
}

/// to (n) = from (n), rounded to X if X is narrower.
template <class X, class W>
void convert(CPU, X* to, const W* from, size_t n) {
    if (static_cast<const void*>(to) != from) std::copy(from, from + n, to);
}

/// Host access to n floats of device memory: itself on the CPU, a copy on a GPU. pull() reads the device, push() writes it.
template <class Device>
class HostView;

template <>
class HostView<CPU> {
public:
    HostView(CPU, float* x, size_t) : x_(x) {}
    float* data() { return x_; }
    void pull() {}
    void push() {}

private:
    float* x_;
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

/// A bump allocator that owns its block: count with take(), then allocate(), then take() the same pieces again.
template <class Device>
class Arena;

template <>
class Arena<CPU> : public BumpAllocator {
public:
    Arena() : BumpAllocator(nullptr) {}

    /// Allocates the memory counted so far, zeroed, and restarts at its beginning. Exit::out_of_memory if there is not enough.
    void allocate() {
        if (peak_) memory_.reset(static_cast<std::byte*>(std::aligned_alloc(ALIGNMENT, peak_)));
        if (peak_ && !memory_)
            fail(Exit::out_of_memory, "cannot allocate ", peak_,
                 " bytes: to train, lower --batch-size or --seq-len, or set --recompute 2; to generate, lower --tokens or --batch");
        prefer_large_pages(memory_.get(), peak_);   // before the first touch
        if (peak_) std::memset(memory_.get(), 0, peak_);
        block_ = memory_.get();
        used_ = 0;
    }

private:
    struct Free {
        void operator()(std::byte* block) const { std::free(block); }
    };
    std::unique_ptr<std::byte, Free> memory_;
};
