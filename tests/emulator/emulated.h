// Shared by the tests of the emulator.
#pragma once
#include <string>
#include <vector>

#include "model/device/gpu.cuh"

/// The seeds that a kernel should be run with: in order, last first, and two random orders; streams at once, late and mixed.
inline const std::vector<uint64_t> SEEDS{0, 1, 2, 3, 4};

/// Sets options until the end of the scope.
class WithOptions {
public:
    explicit WithOptions(uint64_t seed, int threads = 0) {
        emulator::options().seed = seed;
        emulator::options().threads = threads;
    }
    ~WithOptions() { emulator::options() = before_; }
    WithOptions(const WithOptions&) = delete;

private:
    emulator::Options before_ = emulator::options();
};

/// What the emulator says about `action`; empty when it has nothing to say.
template <class Action>
std::string complaint(Action action) {
    try {
        action();
        cudaDeviceSynchronize();
    } catch (const emulator::Error& error) {
        return error.what();
    }
    return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Numbers in GPU memory.
template <class X>
class Numbers {
public:
    explicit Numbers(size_t size) : size_(size) { check(cudaMalloc(&data_, size * sizeof(X))); }
    explicit Numbers(const std::vector<X>& values) : Numbers(values.size()) {
        check(cudaMemcpy(data_, values.data(), size_ * sizeof(X), cudaMemcpyHostToDevice));
    }
    Numbers(const Numbers&) = delete;
    ~Numbers() { cudaFree(data_); }

    X* data() const { return data_; }
    std::vector<X> host() const {
        std::vector<X> values(size_);
        check(cudaDeviceSynchronize());
        check(cudaMemcpy(values.data(), data_, size_ * sizeof(X), cudaMemcpyDeviceToHost));
        return values;
    }

private:
    X* data_ = nullptr;
    size_t size_;
};
