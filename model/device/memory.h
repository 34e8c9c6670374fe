// Memory by plan: each class of tensors (weights, gradients, moments, activations, scratch) is one block. The function that cuts
// a block into tensors runs twice, first over nothing to learn the size, so that the plan and the allocation cannot disagree.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "model/device/device.h"
#include "model/base/error.h"
#include "model/device/machine.h"

/// One line of the memory table.
struct MemoryUse {
    std::string what;
    size_t bytes;
};

/// Of the whole table.
inline size_t total_bytes(const std::vector<MemoryUse>& plan) {
    size_t total = 0;
    for (const MemoryUse& use : plan) total += use.bytes;
    return total;
}

/// Copies of n numbers between the host's memory and the device's; done when they return.
template <class Y>
void to_device(CPU, Y* to, const Y* from, size_t n) {
    std::copy(from, from + n, to);
}
template <class Y>
void to_host(CPU, Y* to, const Y* from, size_t n) {
    std::copy(from, from + n, to);
}

/// to (n) = from (n), rounded to X where X is narrower.
template <class X, class W>
void convert(CPU, X* to, const W* from, size_t n) {
    if (static_cast<const void*>(to) != from) std::copy(from, from + n, to);
}

/// n floats of the device as the host sees them: the memory itself on the CPU, a copy of a GPU's. pull() brings the device's
/// numbers, push() takes the host's back.
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

template <class Device>
class Arena;

template <>
class Arena<CPU> {
public:
    /// `count` numbers on a cache line of their own; an address from nowhere until allocate() has been called.
    template <class X>
    X* take(size_t count) {
        const size_t at = used_;
        used_ += (count * sizeof(X) + 63) / 64 * 64;
        most_ = used_ > most_ ? used_ : most_;
        return reinterpret_cast<X*>(block_.get() + at);
    }
    size_t used() const { return used_; }
    size_t bytes() const { return most_; }

    /// Takes after rewind(used()) share memory: for pieces that are never alive together.
    void rewind(size_t used) { used_ = used; }

    /// Gets the memory that the takes so far have asked for, zeroed, and starts cutting anew.
    void allocate() {
        if (most_) block_.reset(static_cast<std::byte*>(std::aligned_alloc(64, most_)));
        if (most_ && !block_)
            fail(Exit::out_of_memory, "no ", most_, " bytes of memory: lower --batch-size or --seq-len, or set --recompute 2");
        prefer_large_pages(block_.get(), most_);   // before the first touch
        if (most_) std::memset(block_.get(), 0, most_);
        used_ = 0;
    }

private:
    struct Free {
        void operator()(std::byte* block) const { std::free(block); }
    };
    std::unique_ptr<std::byte, Free> block_;
    size_t used_ = 0, most_ = 0;
};
