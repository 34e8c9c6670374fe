// The part of NCCL's interface that model/ranks/collectives.cuh uses, on the CPU: every rank is a process with emulated GPUs of one
// machine. The communicator is a star of sockets (../star.h); as in NCCL, the unique id is the address of rank 0.
//   - A collective is work of its stream: it runs when the emulated GPU reaches it, not when it is called. Without an event that it
//     needs, it sums numbers that are not there yet.
//   - Ranks that make different calls get an error. (With NCCL they hang, or worse.)
//   - Calls between ncclGroupStart() and ncclGroupEnd() are enqueued by the latter.
//   - When a rank is lost, the others' collectives never end, as on a GPU; ncclCommGetAsyncError reports it, on any thread.
//   - The host that waits for a stream runs its work. A rank whose host waits for another rank by other means, while that rank's GPU
//     waits in a collective for this one's, therefore hangs where a GPU would not: hosts must first wait for their own GPU.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../star.h"
#include "../streams.h"
#include "model/base/error.h"

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;
typedef enum { ncclInt8 = 0, ncclFloat32 = 7, ncclFloat64 = 8 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

namespace emulator::nccl {

/// State shared by the work in the streams and the communicator, which may outlive the communicator.
struct Connection {
    Star star;
    std::atomic<ncclResult_t> error{ncclSuccess};
    bool aborted = false;
    uint64_t calls = 0;   // calls run by the GPU so far
    uint64_t sent = 0;    // bytes that this rank would have sent in a ring so far
    Connection(const std::string& where, int rank, int ranks, int seconds) : star(where, rank, ranks, seconds) {}
};

}   // namespace emulator::nccl

struct ncclComm {
    std::shared_ptr<emulator::nccl::Connection> connection;
};
typedef ncclComm* ncclComm_t;

namespace emulator::nccl {

inline constexpr int SECONDS = 300;   // timeout for making a communicator
inline thread_local int open_groups = 0;
inline thread_local std::vector<std::function<void()>> grouped;   // work that the open groups will enqueue
inline thread_local std::string last_problem;

/// A rank's view of the current call of all ranks.
struct Call {
    char function[24];
    uint64_t number, count;
    uint64_t type;
};

inline size_t size_of(ncclDataType_t type) { return type == ncclInt8 ? 1 : type == ncclFloat32 ? 4 : 8; }

/// Compares this rank's call with rank 0's.
inline void require_same_call(Star& star, const Call& mine, const Location& at) {
    Call first;
    std::memcpy(&first, star.of_all(&mine, sizeof mine).data(), sizeof first);
    if (std::memcmp(&first, &mine, sizeof mine) == 0) return;
    throw Error(join(place(at), ": rank ", star.rank, " makes collective ", mine.number, ": ", mine.function, " of ", mine.count,
                     " elements, rank 0 collective ", first.number, ": ", first.function, " of ", first.count));
}

/// Whether this collective is to fail (EMULATED_NCCL_FAILS_AT, counted from 1).
inline bool refused() {
    static std::atomic<uint64_t> calls{0};
    static const uint64_t failing = number_from_environment("EMULATED_NCCL_FAILS_AT", 0);
    if (++calls != failing) return false;
    last_problem = "refused by EMULATED_NCCL_FAILS_AT";
    return true;
}

/// Enqueues a collective on the stream, or adds it to the open group. In a ring every rank passes on `rounds` times the count elements
/// except its own part. A lost rank makes it wait forever.
template <class Action>
ncclResult_t enqueue(ncclComm_t communicator, cudaStream_t stream, const char* function, const void* x, uint64_t count,
                     ncclDataType_t type, const Location& at, uint64_t rounds, Action action) {
    if (!communicator) return ncclInvalidArgument;
    if (refused()) return ncclUnhandledCudaError;
    runtime().memory.check_range(x, count * size_of(type), "the collective uses", at);
    const Allocation* memory = runtime().memory.find(x);
    if (!memory || memory->memory != Memory::device) throw Error(place(at) + ": the collective's buffer is not device memory");
    Call call{};
    std::snprintf(call.function, sizeof call.function, "%s", function);
    call.count = count, call.type = uint64_t(type);
    auto work = [=, connection = communicator->connection]() mutable {
        if (connection->aborted) return;
        try {
            call.number = connection->calls++;
            require_same_call(connection->star, call, at);
            action(connection->star);
            const uint64_t ranks = connection->star.size;
            connection->sent += rounds * count * size_of(type) / ranks * (ranks - 1);
        } catch (const ::Error&) {
            connection->error = ncclRemoteError;
            for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
        }
    };
    if (open_groups) grouped.push_back([=] { emulator::enqueue(stream, work, at); });
    else emulator::enqueue(stream, work, at);
    return ncclSuccess;
}

}   // namespace emulator::nccl

inline ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }

inline const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}
inline const char* ncclGetLastError(ncclComm_t) { return emulator::nccl::last_problem.c_str(); }

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    std::memset(id, 0, sizeof *id);
    std::snprintf(id->internal, sizeof id->internal, "emulated_nccl_%d_%d", int(getpid()), made++);
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
    try {
        *communicator = new ncclComm{std::make_shared<emulator::nccl::Connection>(id.internal, rank, ranks, emulator::nccl::SECONDS)};
        return ncclSuccess;
    } catch (const Error& error) {
        emulator::nccl::last_problem = error.what();
        return ncclSystemError;
    }
}

/// Waits, as NCCL does, until the other ranks end, too.
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    const emulator::nccl::Connection& connection = *communicator->connection;
    if (std::getenv("EMULATED_NCCL_TRAFFIC"))
        std::fprintf(stderr, "rank %d sent %llu bytes in %llu collectives\n", connection.star.rank,
                     static_cast<unsigned long long>(connection.sent), static_cast<unsigned long long>(connection.calls));
    communicator->connection->star.leave();
    delete communicator;
    return ncclSuccess;
}
inline ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    communicator->connection->aborted = true;
    delete communicator;
    return ncclSuccess;
}

inline ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
    *error = communicator->connection->error;
    return ncclSuccess;
}

inline ncclResult_t ncclGroupStart() { return emulator::nccl::open_groups++, ncclSuccess; }
inline ncclResult_t ncclGroupEnd() {
    if (emulator::nccl::open_groups == 0) return ncclInvalidUsage;
    if (--emulator::nccl::open_groups > 0) return ncclSuccess;
    for (const auto& give : std::exchange(emulator::nccl::grouped, {})) give();
    return ncclSuccess;
}

inline ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                                  ncclComm_t communicator, cudaStream_t stream,
                                  emulator::Location at = emulator::Location::current()) {
    if (from != to || (type != ncclFloat32 && type != ncclFloat64)) return ncclInvalidArgument;   // other cases are not used
    return emulator::nccl::enqueue(communicator, stream, "ncclAllReduce", to, count, type, at, 2, [=](emulator::nccl::Star& star) {
        if (type == ncclFloat32) std::ranges::copy(star.sums(static_cast<float*>(to), count), static_cast<float*>(to));
        else std::ranges::copy(star.sums(static_cast<double*>(to), count), static_cast<double*>(to));
    });
}

// The next two in place only: `to` or `from` is this rank's part of the whole, which has `count` elements of every rank.

inline ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                                      ncclComm_t communicator, cudaStream_t stream,
                                      emulator::Location at = emulator::Location::current()) {
    const emulator::nccl::Star& star = communicator->connection->star;
    float* const whole = static_cast<float*>(const_cast<void*>(from));
    if (to != whole + count * star.rank || type != ncclFloat32) return ncclInvalidArgument;   // other cases are not used
    return emulator::nccl::enqueue(communicator, stream, "ncclReduceScatter", from, count * star.size, type, at, 1,
                                   [=](emulator::nccl::Star& all) {
                                       const std::vector<float> total = all.sums(whole, count * all.size);
                                       std::copy_n(total.data() + count * all.rank, count, whole + count * all.rank);
                                   });
}

inline ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator,
                                  cudaStream_t stream, emulator::Location at = emulator::Location::current()) {
    const emulator::nccl::Star& star = communicator->connection->star;
    const size_t bytes = count * emulator::nccl::size_of(type);
    if (from != static_cast<char*>(to) + bytes * star.rank) return ncclInvalidArgument;
    return emulator::nccl::enqueue(communicator, stream, "ncclAllGather", to, count * star.size, type, at, 1,
                                   [=](emulator::nccl::Star& all) {
                                       std::ranges::copy(all.of_all(from, bytes), static_cast<std::byte*>(to));
                                   });
}
