// Arrays in GPU memory for tests: of exactly the size asked for, so that a checker of memory sees the first byte beyond; numbers go
// in and out as double, rounded to X on the way in.
#pragma once
#include <cmath>
#include <vector>

#include "model/device/device.h"
#include "tests/check.h"
#include "tests/numbers.h"

/// As many T as `numbers` has, of any type that can be copied as bytes.
template <class T>
class DeviceMemory {
public:
    explicit DeviceMemory(const std::vector<T>& numbers) : size_(numbers.size()) {
        check(cudaMalloc(reinterpret_cast<void**>(&data_), size_ * sizeof(T)));
        if (size_) check(cudaMemcpy(data_, numbers.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
        check(cudaDeviceSynchronize());   // test_gpu()'s stream does not wait for the end of such a copy
    }
    DeviceMemory(const DeviceMemory&) = delete;
    ~DeviceMemory() { cudaFree(data_); }

    T* data() const { return data_; }
    size_t size() const { return size_; }

    /// What it holds once all work on the GPU is done.
    std::vector<T> host() const {
        check(cudaDeviceSynchronize());
        std::vector<T> numbers(size_);
        if (size_) check(cudaMemcpy(numbers.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
        return numbers;
    }

private:
    T* data_ = nullptr;
    size_t size_;
};

template <class X>
class DeviceArray : public DeviceMemory<X> {
public:
    explicit DeviceArray(const std::vector<double>& numbers) : DeviceMemory<X>(converted<X>(numbers)) {}
    DeviceArray(size_t size, double value) : DeviceArray(std::vector<double>(size, value)) {}

    /// What the array holds once all work on the GPU is done.
    std::vector<double> numbers() const { return converted<double>(this->host()); }
};

/// The first GPU, with a stream and a workspace that all tests share one after the other.
inline GPU test_gpu() {
    static const DeviceMemory<std::byte> workspace(std::vector<std::byte>(size_t(32) << 20));
    static const cudaStream_t stream = [] {
        cudaStream_t created = nullptr;
        check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
        return created;
    }();
    return {stream, {workspace.data(), workspace.size()}};
}

/// While it lives, the order in which the emulator runs threads, blocks and streams; a real GPU chooses by itself.
class Order {
public:
#ifdef EMULATED_GPU
    explicit Order(int number) : before_(emulator::options().seed) { emulator::options().seed = uint64_t(number); }
    ~Order() { emulator::options().seed = before_; }
#else
    explicit Order(int) {}
    ~Order() {}
#endif
    Order(const Order&) = delete;

private:
    [[maybe_unused]] uint64_t before_ = 0;
};

/// What rounding explains in an array of X whose numbers are float32 sums of `length` products.
template <class X>
Tolerance device_rounding(int length) {
    if (std::is_same_v<X, float>) return rounding<float>(length);
    return {rounding<float>(length).relative + std::ldexp(1.0, -8), 0};
}
