// Implementation of the CUDA runtime's functions. Conditions that a correct program handles (no device, no memory, work not yet done)
// are error codes, as in CUDA; a mistake of the program throws an Error that names its line.
#pragma once
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "launch.h"
#include "runtime_types.h"
#include "streams.h"

namespace emulator {

inline constinit thread_local int current_device = 0;

inline cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}

/// The result of a successful call: an error of the GPU's work persists, as on a GPU.
inline cudaError_t done() { return result(runtime().broken); }

/// For calls in destructors: a second exception would end the program.
template <class Action>
cudaError_t destroy(Action action) {
    try {
        std::lock_guard inside(runtime().mutex);
        action();
        return done();
    } catch (const Error&) {
        if (std::uncaught_exceptions() == 0) throw;
        return result(cudaErrorLaunchFailure);
    }
}

inline CUevent_st& event(cudaEvent_t handle, const Location& at) {
    if (!handle || !handle->alive) throw Error(place(at) + ": uses an event that does not exist");
    return *handle;
}

inline cudaError_t allocate(void** data, size_t bytes, Memory memory, const Location& at) {
    *data = nullptr;
    if (options().devices == 0) return result(cudaErrorNoDevice);
    std::lock_guard inside(runtime().mutex);
    runtime().require_no_capture(at);
    if (bytes == 0 || done() != cudaSuccess) return done();
    *data = runtime().memory.allocate(bytes, memory, current_device, at);
    return result(*data ? cudaSuccess : cudaErrorMemoryAllocation);
}

/// Frees after all work given to the device, for which CUDA waits too.
inline cudaError_t free(void* data, Memory memory, const Location& at) {
    if (!data) return cudaSuccess;
    return destroy([&] {
        runtime().require_no_capture(at);
        runtime().run_all();
        runtime().memory.release(data, memory, at);
    });
}

// ---- copies

/// Throws if an address is not on the side given by `kind`, or the bytes are not all inside their allocation.
inline void check_copy(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const Location& at) {
    const DeviceMemory& memory = runtime().memory;
    auto on_device = [&](const void* address) {
        const Allocation* allocation = memory.find(address);
        return allocation && allocation->memory == Memory::device;
    };
    auto check_side = [&](const char* which, const void* address, bool device) {
        if (on_device(address) == device) return;
        throw Error(join(place(at), ": the ", which, " of the copy is", device ? " not" : "", " device memory"));
    };
    check_side("destination", to, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice);
    check_side("source", from, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
    memory.check_range(to, bytes, "the copy writes", at);
    memory.check_range(from, bytes, "the copy reads", at);
}

/// Host memory that the device cannot access. With it cudaMemcpyAsync is not asynchronous: the driver copies a source aside before
/// the call returns, and the call returns only when a destination has its bytes.
inline bool pageable(const void* address) { return !runtime().memory.find(address); }

}   // namespace emulator
