// Arrays of a device for tests, from numbers in double and back. Each is an allocation of its own, so that a checker of memory sees the
// first byte beyond, and has room for a number more: none is empty.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "model/device/memory.h"
#include "tests/operation.h"
#ifdef WITH_GPU
#include "tests/gpu/on_gpu.h"
#endif

using Numbers = std::vector<double>;

/// Arrays that live as long as this.
template <class Device>
struct ArraysOn {
    Device device;
    std::vector<std::shared_ptr<void>> kept = {};
};

/// An array of numbers; `to` keeps it.
template <class Y, class Device>
Y* put(ArraysOn<Device>& to, Numbers numbers) {
    numbers.push_back(0);
    const auto array = std::make_shared<On<Device, Y>>(converted<Wide<Y>>(numbers));
    to.kept.push_back(array);
    return array->data();
}
template <class Y, class Device>
Y* put(ArraysOn<Device>& to, size_t size, double value = NAN) {
    return put<Y>(to, Numbers(size, value));
}
/// The same as numbers in double; none for null.
template <class Y, class Device>
Numbers numbers_at(const ArraysOn<Device>& in, const Y* from, size_t count) {
    std::vector<Y> numbers(from ? count : 0);
    if (!numbers.empty()) to_host(in.device, numbers.data(), from, count);
    return converted<double>(numbers);
}
