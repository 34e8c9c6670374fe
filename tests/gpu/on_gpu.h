// The descriptions of operations (operation.h) on a GPU, real or emulated.
#pragma once
#include "tests/gpu/device_array.h"
#include "tests/operation.h"

template <class X>
class On<GPU, X> : public DeviceMemory<X> {
public:
    explicit On(const std::vector<Wide<X>>& numbers) : DeviceMemory<X>(converted<X>(numbers)) {}
    std::vector<Wide<X>> numbers() const { return converted<Wide<X>>(this->host()); }
};

/// Both number types; absolute errors in bf16 as a share of its half unit in the last place of 1.
template <class Op>
void check_on_gpu(const Op& op, double bf16_roundings = 0) {
    const double absolute = bf16_roundings * 0x1p-8;
    check_on<float>(test_gpu(), op);
    check_on<bf16>(test_gpu(), op, std::max(absolute, 1e-6), absolute);
}
