// Sums and gathers over the ranks of arrays in the device's memory. On the CPU they are the network's (ranks.h). Between GPUs:
//   NCCL   where every rank has a GPU of its own. On a stream of its own, so that the sum of one layer's gradients is taken while
//          the backward pass works on the next; the host waits for nothing.
//   host   where ranks share GPUs (NCCL refuses that), or the program was built without NCCL. Through pinned host memory and the
//          network; the host waits for the GPU every time. Correct, and as slow as that sounds.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/device/device.h"
#include "model/ranks/ranks.h"
#include "model/ranks/sockets.h"
#include "model/tensors.h"

#if defined(WITH_GPU) && defined(USE_NCCL)
#include <nccl.h>
#endif

template <class Device>
class Collectives;

template <>
class Collectives<CPU> {
public:
    Collectives(CPU, Ranks& ranks) : ranks_(ranks) {}

    std::string name() const { return ranks_.network(); }

    /// x (n) = its sum over the ranks, for everything that the device does after finish(). Every rank makes the same calls.
    void start_sum(CPU, float* x, size_t n) { ranks_.sum(x, n); }
    void start_sum(CPU, double* x, size_t n) {
        for (size_t i = 0; i < n; i++) x[i] = ranks_.sum(x[i]);
    }
    void finish(CPU) {}

    /// Completes x (n) on every rank from each rank's own shard (shard_begin() in tensors.h).
    template <class X>
    void all_gather(CPU, X* x, size_t n) {
        ranks_.all_gather(x, n, sizeof(X));
    }

private:
    Ranks& ranks_;
};

#ifdef WITH_GPU

/// One way of exchanging the GPU's memory. What has been given to `stream` before comes first; what is given to it after join()
/// sees the result.
class GpuExchange {
public:
    virtual ~GpuExchange() = default;
    virtual std::string name() const = 0;
    virtual void sum(cudaStream_t stream, float* x, size_t n) = 0;
    virtual void sum(cudaStream_t stream, double* x, size_t n) = 0;
    virtual void all_gather(cudaStream_t stream, std::byte* x, size_t n, size_t size) = 0;
    virtual void join(cudaStream_t stream) = 0;
};

// ------------------------------------------------------------------------------------------------------- through the host

class HostExchange : public GpuExchange {
public:
    HostExchange(Ranks& ranks, const std::string& reason) : ranks_(ranks), reason_(reason) {
        check(cudaMallocHost(&staging_, BYTES));
    }
    ~HostExchange() override { cudaFreeHost(staging_); }
    HostExchange(const HostExchange&) = delete;
    HostExchange& operator=(const HostExchange&) = delete;

    std::string name() const override { return std::string(ranks_.network()) + " through host memory: " + reason_; }

    void sum(cudaStream_t stream, float* x, size_t n) override {
        ranks_.at("summing over the ranks through host memory");
        for (size_t at = 0; at < n; at += BYTES / sizeof(float)) {
            const size_t count = std::min(BYTES / sizeof(float), n - at);
            pull(stream, x + at, count * sizeof(float));
            ranks_.sum(static_cast<float*>(staging_), count);
            push(stream, x + at, count * sizeof(float));
        }
    }
    void sum(cudaStream_t stream, double* x, size_t n) override {
        for (size_t i = 0; i < n; i++) {
            double* const one = static_cast<double*>(staging_);
            pull(stream, x + i, sizeof(double));
            *one = ranks_.sum(*one);
            push(stream, x + i, sizeof(double));
        }
    }
    void all_gather(cudaStream_t stream, std::byte* x, size_t n, size_t size) override {
        ranks_.at("gathering from the ranks through host memory");
        for (int r = 0; r < ranks_.size(); r++) {
            const size_t end = shard_begin(n, r + 1, ranks_.size()) * size;
            for (size_t at = shard_begin(n, r, ranks_.size()) * size; at < end; at += BYTES) {
                const size_t bytes = std::min(BYTES, end - at);
                if (r == ranks_.rank()) pull(stream, x + at, bytes);
                ranks_.broadcast(staging_, bytes, r);
                if (r != ranks_.rank()) push(stream, x + at, bytes);
            }
        }
    }
    void join(cudaStream_t) override {}

private:
    static constexpr size_t BYTES = size_t(16) << 20;

    // Both wait: the host may read, or write again, what `staging_` holds.
    void pull(cudaStream_t stream, const void* from, size_t bytes) {
        check(cudaMemcpyAsync(staging_, from, bytes, cudaMemcpyDeviceToHost, stream));
        check(cudaStreamSynchronize(stream));
    }
    void push(cudaStream_t stream, void* to, size_t bytes) {
        check(cudaMemcpyAsync(to, staging_, bytes, cudaMemcpyHostToDevice, stream));
        check(cudaStreamSynchronize(stream));
    }

    Ranks& ranks_;
    std::string reason_;
    void* staging_ = nullptr;
};

// -------------------------------------------------------------------------------------------------------------------- NCCL

#ifdef USE_NCCL

/// Throws when a call of NCCL failed. NCCL_DEBUG=INFO in the environment makes it say much more.
inline void check(ncclResult_t result, std::source_location at = std::source_location::current()) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fail(Exit::rank, at.file_name(), ":", at.line(), ": NCCL reports: ", ncclGetErrorString(result), " (",
         ncclGetLastError(nullptr), ")");
}

class NcclExchange : public GpuExchange {
public:
    /// Waits for all ranks; the watchdog ends it when one does not come.
    explicit NcclExchange(Ranks& ranks) : ranks_(ranks) {
        setenv("NCCL_ALGO", WITHOUT_NVLS, 0);   // before NCCL looks; what the user has chosen stays
        ncclUniqueId id{};
        if (ranks.first()) check(ncclGetUniqueId(&id));
        ranks.broadcast(&id, sizeof id);
        ranks.at("connecting the GPUs with NCCL");
        check(ncclCommInitRank(&communicator_, ranks.size(), id, ranks.rank()));
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        check(cudaEventCreateWithFlags(&given_, cudaEventDisableTiming));
        check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
        ranks.watch_for([this] { return problem(); });
    }

    /// After an error other ranks may never come to what has been given to the stream: then it is given up.
    ~NcclExchange() override {
        ranks_.watch_for({});
        if (std::uncaught_exceptions() > 0) {
            ncclCommAbort(communicator_);
        } else {
            cudaStreamSynchronize(stream_);
            ncclCommDestroy(communicator_);
        }
        cudaEventDestroy(given_);
        cudaEventDestroy(done_);
        cudaStreamDestroy(stream_);
    }
    NcclExchange(const NcclExchange&) = delete;
    NcclExchange& operator=(const NcclExchange&) = delete;

    std::string name() const override {
        int version = 0;
        check(ncclGetVersion(&version));
        char text[128];
        const char* const algorithms = getenv("NCCL_ALGO");
        std::snprintf(text, sizeof text, "NCCL %d.%d.%d, NCCL_ALGO=%s", version / 10000, version / 100 % 100, version % 100,
                      algorithms ? algorithms : "");
        return text;
    }

    void sum(cudaStream_t stream, float* x, size_t n) override { sum(stream, x, n, ncclFloat32); }
    void sum(cudaStream_t stream, double* x, size_t n) override { sum(stream, x, n, ncclFloat64); }

    /// Shards differ in size, which ncclAllGather cannot do.
    void all_gather(cudaStream_t stream, std::byte* x, size_t n, size_t size) override {
        follow(stream);
        check(ncclGroupStart());
        for (int r = 0; r < ranks_.size(); r++) {
            std::byte* const shard = x + shard_begin(n, r, ranks_.size()) * size;
            const size_t bytes = size_t(x + shard_begin(n, r + 1, ranks_.size()) * size - shard);
            if (bytes) check(ncclBroadcast(shard, shard, bytes, ncclInt8, r, communicator_, stream_));
        }
        check(ncclGroupEnd());
    }

    /// The host goes on, and will next wait for the GPU, which then waits for the other ranks: the watchdog should say so.
    void join(cudaStream_t stream) override {
        throw_problem();
        ranks_.at("waiting for the GPU and for sums over the ranks");
        check(cudaEventRecord(done_, stream_));
        check(cudaStreamWaitEvent(stream, done_, 0));
    }

private:
    void sum(cudaStream_t stream, void* x, size_t n, ncclDataType_t type) {
        follow(stream);
        check(ncclAllReduce(x, x, n, type, ncclSum, communicator_, stream_));
    }

    /// What the communication does next comes after everything that `stream` has been given.
    void follow(cudaStream_t stream) {
        throw_problem();
        check(cudaEventRecord(given_, stream));
        check(cudaStreamWaitEvent(stream_, given_, 0));
    }

    /// Errors that NCCL notices later, such as a rank that has gone: what waits for that rank on the GPU would wait for ever.
    std::string problem() const {
        ncclResult_t result;
        if (ncclCommGetAsyncError(communicator_, &result) != ncclSuccess) return "NCCL does not answer";
        if (result == ncclSuccess || result == ncclInProgress) return "";
        return std::string("NCCL reports: ") + ncclGetErrorString(result) + "; another rank has probably died";
    }
    void throw_problem() const {
        const std::string sentence = problem();
        if (!sentence.empty()) fail(Exit::rank, sentence);
    }

    // Sums that NVSwitches take (NVLink SHARP) may differ from one call to the next; the same command has to give the same bits.
    static constexpr const char* WITHOUT_NVLS = "^NVLS,NVLSTree";

    Ranks& ranks_;
    ncclComm_t communicator_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t given_ = nullptr, done_ = nullptr;
};

inline constexpr bool BUILT_WITH_NCCL = true;
inline std::unique_ptr<GpuExchange> connect_nccl(Ranks& ranks) { return std::make_unique<NcclExchange>(ranks); }
#else
inline constexpr bool BUILT_WITH_NCCL = false;
inline std::unique_ptr<GpuExchange> connect_nccl(Ranks&) { return nullptr; }
#endif

// ------------------------------------------------------------------------------------------------------------ the choice

template <>
class Collectives<GPU> {
public:
    /// Every rank has chosen its GPU. Sums of less than `together` numbers wait for their neighbours in memory.
    Collectives(const GPU&, Ranks& ranks, size_t together = size_t(1) << 22) : together_(together) {
        if (ranks.size() > 1) choose(ranks);
    }

    std::string name() const { return exchange_ ? exchange_->name() : "none"; }

    /// x (n) = its sum over the ranks, for everything that the device does after finish(). Every rank makes the same calls. The sum
    /// takes x as what the device has been given so far leaves it; nothing may touch it before finish().
    void start_sum(const GPU& device, float* x, size_t n) {
        if (!exchange_) return;
        const bool below = x + n == waiting_, above = waiting_ + count_ == x;
        if (count_ && !below && !above) flush(device);
        waiting_ = count_ && above ? waiting_ : x;
        count_ += n;
        if (count_ >= together_) flush(device);
    }
    void start_sum(const GPU& device, double* x, size_t n) {
        if (exchange_) exchange_->sum(device.stream, x, n);
    }
    void finish(const GPU& device) {
        if (!exchange_) return;
        flush(device);
        exchange_->join(device.stream);
    }

    /// Completes x (n) on every rank from each rank's own shard (shard_begin() in tensors.h), for what the device does afterwards.
    template <class X>
    void all_gather(const GPU& device, X* x, size_t n) {
        if (!exchange_) return;
        exchange_->all_gather(device.stream, reinterpret_cast<std::byte*>(x), n, sizeof(X));
        exchange_->join(device.stream);
    }

private:
    void flush(const GPU& device) {
        if (count_) exchange_->sum(device.stream, waiting_, count_);
        waiting_ = nullptr, count_ = 0;
    }

    /// NCCL when no rank has a reason against it: all ranks see the same answers and choose the same.
    void choose(Ranks& ranks) {
        const int gpus = count_gpus(ranks);
        const bool without_nccl = ranks.any(!BUILT_WITH_NCCL);
        if (gpus < ranks.size())
            exchange_ = std::make_unique<HostExchange>(
                ranks, std::to_string(ranks.size()) + " ranks share " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs"));
        else if (without_nccl) exchange_ = std::make_unique<HostExchange>(ranks, "built without NCCL");
        else exchange_ = connect_nccl(ranks);
    }

    /// How many different GPUs the ranks have chosen. A GPU is known by its machine and its place on the bus.
    static int count_gpus(Ranks& ranks) {
        constexpr size_t PLACE = 128;   // 16 elements of 8 bytes: what makes all shards of a gather equally long
        int device = 0;
        cudaDeviceProp gpu{};
        check(cudaGetDevice(&device));
        check(cudaGetDeviceProperties(&gpu, device));
        std::vector<char> places(PLACE * size_t(ranks.size()));
        std::snprintf(places.data() + PLACE * size_t(ranks.rank()), PLACE, "%s %d:%d:%d", machine_id().c_str(), gpu.pciDomainID,
                      gpu.pciBusID, gpu.pciDeviceID);
        ranks.all_gather(places.data(), 16 * size_t(ranks.size()), PLACE / 16);
        std::set<std::string> different;
        for (int r = 0; r < ranks.size(); r++) different.insert(places.data() + PLACE * size_t(r));
        return int(different.size());
    }

    std::unique_ptr<GpuExchange> exchange_;   // null for one rank alone
    size_t together_;
    float* waiting_ = nullptr;   // (count_) sums that were asked for and are not begun
    size_t count_ = 0;
};
#endif
