// The part of NCCL's interface that model/collectives.cuh uses, carried out on the CPU: every rank is a process with emulated GPUs.
// The communicator is a star of TCP connections (model/rendezvous.h); as with NCCL, the unique id says where rank 0 is found.
//   - A collective is work of its stream, done when the emulated GPU gets there and not when it is called. Forget an event, and a
//     sum is taken of numbers that are not there yet.
//   - Ranks that do not make the same call are told so. (With NCCL they hang, or worse.)
//   - When a rank has gone, the others' collectives never end, as on a GPU; ncclCommGetAsyncError says so, on any thread.
//   - A stream's work is done by a host that waits for it. So a rank whose host waits for another rank by other means, while that
//     rank's GPU waits in a collective for this one's, waits for ever where a GPU would go on: let hosts wait for their GPU first.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "../streams.h"
#include "model/base/error.h"
#include "model/ranks/rendezvous.h"

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;
typedef enum { ncclInt8 = 0, ncclFloat32 = 7, ncclFloat64 = 8 } ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

namespace emulator::nccl {

/// What the work in the streams shares with the communicator, and may outlive it with.
struct Connection {
    Star star;
    std::atomic<ncclResult_t> error{ncclSuccess};
    bool aborted = false;
    uint64_t calls = 0;   // that the GPU has come to
    Connection(const MeetingPoint& where, int rank, int ranks, int seconds) : star(where, rank, ranks, seconds) {}
};

}   // namespace emulator::nccl

struct ncclComm {
    std::shared_ptr<emulator::nccl::Connection> connection;
};
typedef ncclComm* ncclComm_t;

namespace emulator::nccl {

inline constexpr int SECONDS = 300;   // that ranks wait for each other when a communicator is made
inline thread_local int open_groups = 0;
inline thread_local std::string last_problem;

/// What a rank believes that all ranks do now.
struct Call {
    char function[24];
    uint64_t number, count;
    int32_t type, root;
};

inline size_t size_of(ncclDataType_t type) { return type == ncclInt8 ? 1 : type == ncclFloat32 ? 4 : 8; }

/// Compares this rank's call with that of rank 0.
inline void require_same_call(Star& star, const Call& mine, const Location& at) {
    Call first = mine;
    star.broadcast(&first, sizeof first, 0);
    if (std::memcmp(&first, &mine, sizeof mine) == 0) return;
    throw Error(join(place(at), ": rank ", star.rank, " makes collective ", mine.number, ": ", mine.function, " of ", mine.count,
                     " elements, rank 0 collective ", first.number, ": ", first.function, " of ", first.count));
}

/// Gives a collective to the stream. A rank that has gone makes it wait for ever.
template <class Action>
ncclResult_t enqueue(ncclComm_t communicator, cudaStream_t stream, const char* function, const void* x, uint64_t count,
                     ncclDataType_t type, int root, const Location& at, Action action) {
    if (!communicator) return ncclInvalidArgument;
    runtime().memory.check_range(x, count * size_of(type), "the collective uses", at);
    const Allocation* memory = runtime().memory.find(x);
    if (!memory || memory->memory != Memory::device) throw Error(place(at) + ": the collective is not given memory of the device");
    Call call{};
    std::snprintf(call.function, sizeof call.function, "%s", function);
    call.count = count, call.type = type, call.root = root;
    auto work = [=, connection = communicator->connection]() mutable {
        if (connection->aborted) return;
        try {
            call.number = connection->calls++;
            require_same_call(connection->star, call, at);
            action(connection->star);
        } catch (const ::Error&) {
            connection->error = ncclRemoteError;
            for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
        }
    };
    emulator::enqueue(stream, work, at);
    return ncclSuccess;
}

}   // namespace emulator::nccl

inline ncclResult_t ncclGetVersion(int* version) { return *version = 22809, ncclSuccess; }

inline const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}
inline const char* ncclGetLastError(ncclComm_t) { return emulator::nccl::last_problem.c_str(); }

/// The id is the name of a file that does not exist yet.
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    const std::filesystem::path folder = std::filesystem::temp_directory_path();
    std::memset(id, 0, sizeof *id);
    std::snprintf(id->internal, sizeof id->internal, "%s/emulated_nccl_%d_%d", folder.c_str(), int(getpid()), made++);
    return ncclSuccess;
}

inline ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
    MeetingPoint where;
    where.file = id.internal;
    try {
        *communicator = new ncclComm{std::make_shared<emulator::nccl::Connection>(where, rank, ranks, emulator::nccl::SECONDS)};
        return ncclSuccess;
    } catch (const Error& error) {
        emulator::nccl::last_problem = error.what();
        return ncclSystemError;
    }
}

/// Waits, as NCCL does, until the other ranks want to end too.
inline ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
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
inline ncclResult_t ncclGroupEnd() { return emulator::nccl::open_groups-- > 0 ? ncclSuccess : ncclInvalidUsage; }

inline ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t,
                                  ncclComm_t communicator, cudaStream_t stream,
                                  emulator::Location at = emulator::Location::current()) {
    if (from != to || (type != ncclFloat32 && type != ncclFloat64)) return ncclInvalidArgument;   // what nobody here needs
    return emulator::nccl::enqueue(communicator, stream, "ncclAllReduce", to, count, type, 0, at, [=](Star& star) {
        if (type == ncclFloat32) star.sum(static_cast<float*>(to), count);
        else star.sum(static_cast<double*>(to), count);
    });
}

inline ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t communicator,
                                  cudaStream_t stream, emulator::Location at = emulator::Location::current()) {
    if (from != to || root < 0 || root >= communicator->connection->star.size) return ncclInvalidArgument;
    return emulator::nccl::enqueue(communicator, stream, "ncclBroadcast", to, count, type, root, at, [=](Star& star) {
        star.broadcast(to, count * emulator::nccl::size_of(type), root);
    });
}
