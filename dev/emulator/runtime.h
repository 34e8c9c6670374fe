// Implementation of the CUDA runtime's functions. Conditions that a correct program handles (no device, no memory, work not yet done)
// are error codes, as in CUDA; a mistake of the program throws an Error that names its line.
#pragma once
#include <cstdio>
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
        if (kind == cudaMemcpyDefault || on_device(address) == device) return;
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

inline cudaError_t copy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle,
                              const Location& at) {
    std::lock_guard inside(runtime().mutex);
    CUstream_st& stream = runtime().stream(handle, at);
    check_copy(to, from, bytes, kind, at);
    if (!stream.capture && pageable(from)) {
        const char* source = static_cast<const char*>(from);
        std::vector<char> aside(source, source + bytes);
        runtime().enqueue(stream, at, [to, aside = std::move(aside)] { std::memcpy(to, aside.data(), aside.size()); });
    } else {
        runtime().enqueue(stream, at, [=] { std::memcpy(to, from, bytes); });
    }
    if (!stream.capture && pageable(to)) runtime().run_until_empty(stream);
    return done();
}

inline cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const Location& at) {
    std::lock_guard inside(runtime().mutex);
    runtime().require_no_capture(at);
    check_copy(to, from, bytes, kind, at);
    CUstream_st& stream = runtime().stream(nullptr, at);
    runtime().enqueue(stream, at, [=] { std::memmove(to, from, bytes); });
    if (kind != cudaMemcpyDeviceToDevice) runtime().run_until_empty(stream);   // between device buffers the host does not wait
    return done();
}

inline cudaError_t set_bytes(void* to, int value, size_t bytes, cudaStream_t handle, const Location& at) {
    std::lock_guard inside(runtime().mutex);
    check_copy(to, to, bytes, cudaMemcpyDeviceToDevice, at);
    runtime().enqueue(runtime().stream(handle, at), at, [=] { std::memset(to, value, bytes); });
    return done();
}

// ---- events

/// Throws for a captured event: it is an edge of the graph and never occurs by itself.
inline void require_not_captured(const CUevent_st& event, const Location& at) {
    if (event.capture) throw Error(place(at) + ": the event was recorded in a capture; the host cannot wait for it");
}

inline cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle, const Location& at) {
    std::lock_guard inside(runtime().mutex);
    CUevent_st& recorded = event(handle, at);
    CUstream_st& stream = runtime().stream(stream_handle, at);
    recorded.capture = stream.capture;
    recorded.heads = stream.heads;
    if (stream.capture) return cudaSuccess;
    recorded.point = {&stream, runtime().enqueue(stream, at, [&recorded] { recorded.time = Clock::now(); })};
    return done();
}

inline cudaError_t wait_for(cudaStream_t stream_handle, cudaEvent_t handle, const Location& at) {
    std::lock_guard inside(runtime().mutex);
    const CUevent_st& awaited = event(handle, at);
    CUstream_st& stream = runtime().stream(stream_handle, at);
    if (awaited.capture) {   // the stream becomes part of the capture
        if (stream.capture && stream.capture != awaited.capture) throw Error(place(at) + ": joins two captures");
        stream.capture = awaited.capture;
        stream.heads.insert(stream.heads.end(), awaited.heads.begin(), awaited.heads.end());
        return cudaSuccess;
    }
    if (stream.capture) throw Error(place(at) + ": a captured stream waits for an event from outside of the capture");
    if (awaited.point.stream) runtime().enqueue(stream, at, [] {}, {awaited.point});
    return done();
}

inline cudaDeviceProp properties(int device) {
    cudaDeviceProp properties{};
    std::snprintf(properties.name, sizeof properties.name, "%s", options().name);
    properties.totalGlobalMem = options().device_bytes;
    properties.sharedMemPerBlock = 48 << 10;
    properties.sharedMemPerBlockOptin = max_shared();
    properties.sharedMemPerMultiprocessor = 228 << 10;
    properties.regsPerBlock = properties.regsPerMultiprocessor = 64 << 10;
    properties.warpSize = LANES;
    properties.maxThreadsPerBlock = MAX_THREADS;
    properties.maxThreadsPerMultiProcessor = 2048;
    properties.major = options().capability / 10, properties.minor = options().capability % 10;
    properties.multiProcessorCount = 4;
    properties.l2CacheSize = 50 << 20;
    properties.memoryBusWidth = 5120;
    properties.pciBusID = device;
    return properties;
}

}   // namespace emulator
