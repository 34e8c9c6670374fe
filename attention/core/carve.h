// Memory that a mechanism lays out by itself: cut from one block, or, over no block, only counted.
#pragma once
#include <cstddef>

class Carve {
public:
    /// `block` begins at a multiple of 64 bytes (CPU) or 256 (GPU), or is null.
    explicit Carve(std::byte* block) : block_(block) {}

    /// `count` numbers on a boundary of 256 bytes from the block's beginning.
    template <class Y>
    Y* take(size_t count) {
        std::byte* const piece = block_ + used_;
        used_ += (count * sizeof(Y) + 255) / 256 * 256;
        return reinterpret_cast<Y*>(piece);
    }
    size_t bytes() const { return used_; }

private:
    std::byte* block_;
    size_t used_ = 0;
};
