// The CUDA runtime's functions under their own names. Conditions that a correct program handles (no device, no memory, work not yet
// done) are error codes, as in CUDA; a mistake of the program throws an Error that names the line of the call.
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

#define EMULATOR_AT emulator::Location at = emulator::Location::current()

// ---- devices
inline cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) {
    int built_for = 0;
    cudaRuntimeGetVersion(&built_for);
    *count = 0;
    if (emulator::options().driver < built_for) return emulator::result(cudaErrorInsufficientDriver);
    *count = emulator::options().devices;
    return emulator::result(*count ? cudaSuccess : cudaErrorNoDevice);
}
inline cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= emulator::options().devices) return emulator::result(cudaErrorInvalidDevice);
    emulator::current_device = device;
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
    *device = emulator::current_device;
    return emulator::result(emulator::options().devices ? cudaSuccess : cudaErrorNoDevice);
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    const emulator::Options& options = emulator::options();
    if (device < 0 || device >= options.devices) return emulator::result(cudaErrorInvalidDevice);
    *properties = {.name = "emulated GPU", .totalGlobalMem = options.device_bytes, .sharedMemPerBlockOptin = emulator::max_shared(),
                   .major = options.capability / 10, .minor = options.capability % 10, .multiProcessorCount = 4,
                   .l2CacheSize = 50 << 20, .pciDomainID = 0, .pciBusID = device, .pciDeviceID = 0};
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(properties.sharedMemPerBlockOptin); break;
    }
    return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) { return *version = emulator::options().driver, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize(EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    emulator::runtime().require_no_capture(at);
    emulator::runtime().run_all();
    return emulator::done();
}
inline cudaError_t cudaGetLastError() { return emulator::done(), std::exchange(emulator::last_error, cudaSuccess); }

// ---- memory
inline cudaError_t cudaMalloc(void** data, size_t bytes, EMULATOR_AT) {
    return emulator::allocate(data, bytes, emulator::Memory::device, at);
}
template <class T>
cudaError_t cudaMalloc(T** data, size_t bytes, EMULATOR_AT) {
    return cudaMalloc(reinterpret_cast<void**>(data), bytes, at);
}
inline cudaError_t cudaFree(void* data, EMULATOR_AT) { return emulator::free(data, emulator::Memory::device, at); }
inline cudaError_t cudaMallocHost(void** data, size_t bytes, EMULATOR_AT) {
    return emulator::allocate(data, bytes, emulator::Memory::pinned, at);
}
template <class T>
cudaError_t cudaMallocHost(T** data, size_t bytes, EMULATOR_AT) {
    return cudaMallocHost(reinterpret_cast<void**>(data), bytes, at);
}
inline cudaError_t cudaFreeHost(void* data, EMULATOR_AT) { return emulator::free(data, emulator::Memory::pinned, at); }
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    std::lock_guard inside(emulator::runtime().mutex);
    *free = emulator::runtime().memory.free_bytes(emulator::current_device);
    *total = emulator::options().device_bytes;
    return emulator::options().devices ? emulator::done() : emulator::result(cudaErrorNoDevice);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, EMULATOR_AT) {
    using namespace emulator;
    std::lock_guard inside(runtime().mutex);
    runtime().require_no_capture(at);
    check_copy(to, from, bytes, kind, at);
    CUstream_st& stream = runtime().stream(nullptr, at);
    runtime().enqueue(stream, at, [=] { std::memmove(to, from, bytes); });
    if (kind != cudaMemcpyDeviceToDevice) runtime().run_until_empty(stream);   // between device buffers the host does not wait
    return done();
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = nullptr,
                                   EMULATOR_AT) {
    using namespace emulator;
    std::lock_guard inside(runtime().mutex);
    CUstream_st& in = runtime().stream(stream, at);
    check_copy(to, from, bytes, kind, at);
    if (!in.capture && pageable(from)) {
        const char* source = static_cast<const char*>(from);
        std::vector<char> aside(source, source + bytes);
        runtime().enqueue(in, at, [to, aside = std::move(aside)] { std::memcpy(to, aside.data(), aside.size()); });
    } else {
        runtime().enqueue(in, at, [=] { std::memcpy(to, from, bytes); });
    }
    if (!in.capture && pageable(to)) runtime().run_until_empty(in);
    return done();
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr, EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    emulator::check_copy(to, to, bytes, cudaMemcpyDeviceToDevice, at);
    emulator::enqueue(stream, [=] { std::memset(to, value, bytes); }, at);
    return emulator::done();
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes, EMULATOR_AT) {
    return cudaMemsetAsync(to, value, bytes, nullptr, at);
}

// ---- streams
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    *stream = nullptr;
    if (emulator::options().devices == 0) return emulator::result(cudaErrorNoDevice);
    std::lock_guard inside(emulator::runtime().mutex);
    *stream = &emulator::runtime().create_stream(flags != cudaStreamNonBlocking);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
    return cudaStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t handle, EMULATOR_AT) {
    return emulator::destroy([&] {
        CUstream_st& stream = emulator::runtime().stream(handle, at);
        emulator::runtime().run_until_empty(stream);
        stream.alive = stream.index == 0;
    });
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t handle, EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    CUstream_st& stream = emulator::runtime().stream(handle, at);
    if (stream.capture) throw emulator::Error(emulator::place(at) + ": waits for a stream that is being captured");
    emulator::runtime().run_until_empty(stream);
    return emulator::done();
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/ = 0, EMULATOR_AT) {
    using namespace emulator;
    std::lock_guard inside(runtime().mutex);
    const CUevent_st& awaited = emulator::event(event, at);
    CUstream_st& waits = runtime().stream(stream, at);
    if (awaited.capture) {   // the stream becomes part of the capture
        if (waits.capture && waits.capture != awaited.capture) throw emulator::Error(place(at) + ": joins two captures");
        waits.capture = awaited.capture;
        waits.heads.insert(waits.heads.end(), awaited.heads.begin(), awaited.heads.end());
        return cudaSuccess;
    }
    if (waits.capture) throw emulator::Error(place(at) + ": a captured stream waits for an event from outside of the capture");
    if (awaited.point.stream) runtime().enqueue(waits, at, [] {}, {awaited.point});
    return done();
}

// ---- events
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
    *event = nullptr;
    if (emulator::options().devices == 0) return emulator::result(cudaErrorNoDevice);
    std::lock_guard inside(emulator::runtime().mutex);
    *event = &emulator::runtime().create_event();
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event, EMULATOR_AT) {
    return emulator::destroy([&] { emulator::event(event, at).alive = false; });
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr, EMULATOR_AT) {
    using namespace emulator;
    std::lock_guard inside(runtime().mutex);
    CUevent_st& recorded = emulator::event(event, at);
    CUstream_st& in = runtime().stream(stream, at);
    recorded.capture = in.capture;
    recorded.heads = in.heads;
    if (in.capture) return cudaSuccess;
    recorded.point = {&in, runtime().enqueue(in, at, [&recorded] { recorded.time = Clock::now(); })};
    return done();
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event, EMULATOR_AT) {
    using namespace emulator;
    std::lock_guard inside(runtime().mutex);
    const CUevent_st& awaited = emulator::event(event, at);
    if (awaited.capture) throw emulator::Error(place(at) + ": the event was recorded in a capture; the host cannot wait for it");
    if (awaited.point.stream) runtime().run_until(awaited.point);
    return done();
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end, EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    const emulator::Runtime& runtime = emulator::runtime();
    const CUevent_st &first = emulator::event(start, at), &second = emulator::event(end, at);
    if (!first.point.stream || !second.point.stream) throw emulator::Error(emulator::place(at) + ": the event was never recorded");
    if (!runtime.happened(first.point) || !runtime.happened(second.point)) return emulator::result(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(second.time - first.time).count();
    return cudaSuccess;
}

// ---- graphs
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode, EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    emulator::runtime().begin_capture(emulator::runtime().stream(stream, at), mode == cudaStreamCaptureModeRelaxed, at);
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph, EMULATOR_AT) {
    std::lock_guard inside(emulator::runtime().mutex);
    *graph = emulator::runtime().end_capture(emulator::runtime().stream(stream, at), at);
    return cudaSuccess;
}
/// Returns the number of nodes; the nodes themselves are not available.
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    *count = graph->nodes.size();
    return emulator::result(nodes ? cudaErrorInvalidValue : cudaSuccess);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long /*flags*/ = 0) {
    *executable = new CUgraphExec_st{std::make_shared<const std::vector<emulator::Node>>(graph->nodes)};
    return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream, EMULATOR_AT) {
    emulator::enqueue(stream, [nodes = executable->nodes] { emulator::runtime().replay(*nodes); }, at);
    return emulator::done();
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }

// ---- kernels
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute attribute, int value) {
    const bool possible = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || size_t(value) <= emulator::max_shared();
    return emulator::result(possible ? cudaSuccess : cudaErrorInvalidValue);
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads, size_t shared) {
    *blocks = int(std::min<size_t>(2048 / threads, emulator::max_shared() / std::max<size_t>(shared, 1)));
    return cudaSuccess;
}

#undef EMULATOR_AT
