// Arrays of a device for tests, from numbers in double and back. Each is an allocation of its own, so that a checker of memory sees the
// first byte beyond, and has room for a number more: none is empty.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "model/device/memory.h"
#ifdef WITH_GPU
#include "tests/gpu/device_array.h"
#endif

using Numbers = std::vector<double>;

template <class Device>
class ArraysOn {
public:
    explicit ArraysOn(Device device) : device_(device) {}

    template <class Y>
    Y* keep(const std::vector<Y>& numbers) {
        using Memory = MemoryFor<Device, Y>;
        arrays_.push_back(std::make_shared<typename Memory::type>(numbers));
        return static_cast<typename Memory::type*>(arrays_.back().get())->data();
    }
    template <class Y>
    std::vector<Y> read(const Y* from, size_t count) const {
        std::vector<Y> numbers(count);
        to_host(device_, numbers.data(), from, count);
        return numbers;
    }

private:
    template <class Any, class Y>
    struct MemoryFor {
        using type = std::vector<Y>;
    };
#ifdef WITH_GPU
    template <class Y>
    struct MemoryFor<GPU, Y> {
        using type = DeviceMemory<Y>;
    };
#endif
    Device device_;
    std::vector<std::shared_ptr<void>> arrays_;
};

/// An array of numbers; `to` keeps it.
template <class Y, class Device>
Y* put(ArraysOn<Device>& to, const Numbers& numbers) {
    std::vector<Y> narrow(numbers.size() + 1);
    std::transform(numbers.begin(), numbers.end(), narrow.begin(), [](double number) { return narrowed<Y>(Wide<Y>(number)); });
    return to.keep(narrow);
}
template <class Y, class Device>
Y* put(ArraysOn<Device>& to, size_t size, double value = NAN) {
    return put<Y>(to, Numbers(size, value));
}
/// The same as numbers in double; none for null.
template <class Y, class Device>
Numbers numbers_at(const ArraysOn<Device>& in, const Y* from, size_t count) {
    Numbers wide;
    if (!from || count == 0) return wide;
    for (Y number : in.read(from, count)) wide.push_back(double(widened(number)));
    return wide;
}
