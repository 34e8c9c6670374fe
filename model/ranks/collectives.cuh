// Collectives on arrays in device memory. On the CPU they use the network (ranks.h). Between GPUs:
//   NCCL   if every rank has its own GPU. It uses a separate stream, so that summing one layer's gradients overlaps with the backward
//          pass of the next; the host never blocks.
//   host   if ranks share GPUs, which NCCL refuses, or if the program was built without NCCL. Arrays go through pinned host memory and
//          the network, and the host blocks on the GPU every time. Correct but slow.
#pragma once
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/device/device.h"
#include "model/ranks/ranks.h"
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

    /// Every rank makes the same calls. Starts the all-reduce x (n) = its sum over the ranks, complete for what the device does
    /// after finish().
    template <class X>
    void start_sum(CPU, X* x, size_t n) {
        ranks_.at("summing over the ranks");
        ranks_.sum(x, n);
    }
    void finish(CPU) {}

    /// Starts a reduce-scatter: this rank's part (n) of x (ranks x n) = its sum over the ranks, complete after finish(); other
    /// parts are unchanged.
    void start_reduce_scatter(CPU, float* x, size_t n) {
        ranks_.at("summing over the ranks");
        ranks_.reduce_scatter(x, n);
    }

    /// All-gather: x (ranks x n) on every rank from each rank's own part (n).
    template <class X>
    void all_gather(CPU, X* x, size_t n) {
        ranks_.at("gathering from the ranks");
        ranks_.all_gather(x, n * sizeof(X));
    }

    /// The whole flat buffer x on every rank, from the parts that each rank owns.
    template <class X>
    void all_gather(CPU device, X* x, const Shards& shards) {
        for (size_t k = 0; k < shards.buckets(); k++) all_gather(device, x + shards.bucket(k).begin, shards.part_size(k));
    }

private:
    Ranks& ranks_;
};

#ifdef WITH_GPU

/// A buffer of one part of `bytes` bytes per rank, in rank order.
struct Parts {
    std::byte* x;
    size_t bytes;
};

/// A way of exchanging GPU memory. Collectives follow work already in `stream`; work put there after join() sees their results.
class GpuExchange {
public:
    virtual ~GpuExchange() = default;
    virtual void sum(cudaStream_t stream, float* x, size_t n) = 0;
    virtual void sum(cudaStream_t stream, double* x, size_t n) = 0;
    virtual void reduce_scatter(cudaStream_t stream, float* x, size_t n) = 0;
    virtual void all_gather(cudaStream_t stream, const std::vector<Parts>& all) = 0;
    virtual void join(cudaStream_t stream) = 0;
};

// ------------------------------------------------------------------------------------------------------- through the host

class HostExchange : public GpuExchange {
public:
    /// Allocates `bytes` of pinned memory.
    explicit HostExchange(Ranks& ranks, size_t bytes = size_t(16) << 20) : ranks_(ranks), bytes_(bytes) {
        check(cudaMallocHost(&staging_, bytes_));
    }
    ~HostExchange() override { cudaFreeHost(staging_); }
    HostExchange(const HostExchange&) = delete;
    HostExchange& operator=(const HostExchange&) = delete;

    void sum(cudaStream_t stream, float* x, size_t n) override { sum_in_pieces(stream, x, n); }
    void sum(cudaStream_t stream, double* x, size_t n) override { sum_in_pieces(stream, x, n); }

    // One piece of every rank's part at a time.
    void reduce_scatter(cudaStream_t stream, float* x, size_t n) override {
        ranks_.at("summing over the ranks through host memory");
        const int me = ranks_.rank(), size = ranks_.size();
        const size_t most = bytes_ / sizeof(float) / size;
        for (size_t at = 0; at < n; at += most) {
            const size_t count = std::min(most, n - at), bytes = count * sizeof(float);
            for (int r = 0; r < size; r++) pull(stream, bytes * r, x + n * r + at, bytes);
            wait(stream);
            ranks_.reduce_scatter(reinterpret_cast<float*>(staging_), count);
            push(stream, x + n * me + at, bytes * me, bytes);
            wait(stream);
        }
    }
    void all_gather(cudaStream_t stream, const std::vector<Parts>& all) override {
        ranks_.at("gathering from the ranks through host memory");
        const int me = ranks_.rank(), size = ranks_.size();
        const size_t most = bytes_ / size;
        for (const auto& [x, n] : all)
            for (size_t at = 0; at < n; at += most) {
                const size_t bytes = std::min(most, n - at);
                pull(stream, bytes * me, x + n * me + at, bytes);
                wait(stream);
                ranks_.all_gather(staging_, bytes);
                for (int r = 0; r < size; r++)
                    if (r != me) push(stream, x + n * r + at, bytes * r, bytes);
                wait(stream);
            }
    }
    void join(cudaStream_t) override {}

private:
    template <class X>
    void sum_in_pieces(cudaStream_t stream, X* x, size_t n) {
        ranks_.at("summing over the ranks through host memory");
        const size_t most = bytes_ / sizeof(X);
        for (size_t at = 0; at < n; at += most) {
            const size_t count = std::min(most, n - at);
            pull(stream, 0, x + at, count * sizeof(X));
            wait(stream);
            ranks_.sum(reinterpret_cast<X*>(staging_), count);
            push(stream, x + at, 0, count * sizeof(X));
            wait(stream);
        }
    }

    // Copies to and from byte `at` of staging_. The host must not touch it until wait().
    void pull(cudaStream_t stream, size_t at, const void* from, size_t bytes) {
        check(cudaMemcpyAsync(staging_ + at, from, bytes, cudaMemcpyDeviceToHost, stream));
    }
    void push(cudaStream_t stream, void* to, size_t at, size_t bytes) {
        check(cudaMemcpyAsync(to, staging_ + at, bytes, cudaMemcpyHostToDevice, stream));
    }
    void wait(cudaStream_t stream) { check(cudaStreamSynchronize(stream)); }

    Ranks& ranks_;
    size_t bytes_;
    std::byte* staging_ = nullptr;
};

// -------------------------------------------------------------------------------------------------------------------- NCCL

#ifdef USE_NCCL

/// Exit::rank if an NCCL call failed. NCCL_DEBUG=INFO in the environment makes NCCL log details.
inline void check(ncclResult_t result, std::source_location at = std::source_location::current()) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    fail(Exit::rank, at.file_name(), ":", at.line(), ": NCCL reports: ", ncclGetErrorString(result), " (",
         ncclGetLastError(nullptr), ")");
}

class NcclExchange : public GpuExchange {
public:
    /// Waits for all ranks; the watchdog ends the process if one does not arrive.
    explicit NcclExchange(Ranks& ranks) : ranks_(ranks) {
        setenv("NCCL_ALGO", WITHOUT_NVLS, 0);   // before NCCL reads it; does not override the user's choice
        setenv("NCCL_COLLNET_ENABLE", "0", 0);
        ncclUniqueId id{};
        if (ranks.first()) check(ncclGetUniqueId(&id));
        ranks.broadcast(&id, sizeof id);
        ranks.at("connecting the GPUs with NCCL");
        check(ncclCommInitRank(&communicator_, ranks.size(), id, ranks.rank()));
        int lowest = 0, highest = 0;   // of equal priority, NCCL's blocks would wait until all blocks of a kernel have started
        check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
        check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
        check(cudaEventCreateWithFlags(&given_, cudaEventDisableTiming));
        check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
        ranks.watch_for([this] { return problem(); });
    }

    /// After an error, aborts: other ranks may never join the collectives already in the stream.
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

    void sum(cudaStream_t stream, float* x, size_t n) override { sum(stream, x, n, ncclFloat32); }
    void sum(cudaStream_t stream, double* x, size_t n) override { sum(stream, x, n, ncclFloat64); }

    void reduce_scatter(cudaStream_t stream, float* x, size_t n) override {
        follow(stream);
        check(ncclReduceScatter(x, x + n * ranks_.rank(), n, ncclFloat32, ncclSum, communicator_, stream_));
    }
    void all_gather(cudaStream_t stream, const std::vector<Parts>& all) override {
        follow(stream);
        check(ncclGroupStart());
        for (const auto& [x, bytes] : all)
            check(ncclAllGather(x + bytes * ranks_.rank(), x, bytes, ncclInt8, communicator_, stream_));
        check(ncclGroupEnd());
    }

    /// Does not block. The host next waits for the GPU, which waits for other ranks; at() names this for the watchdog.
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

    /// Orders further communication after all work already in `stream`.
    void follow(cudaStream_t stream) {
        throw_problem();
        check(cudaEventRecord(given_, stream));
        check(cudaStreamWaitEvent(stream_, given_, 0));
    }

    /// Asynchronous NCCL errors, such as a dead rank, on which the GPU would wait forever; "" if there are none.
    std::string problem() const {
        ncclResult_t result;
        if (ncclCommGetAsyncError(communicator_, &result) != ncclSuccess) return "NCCL does not answer";
        if (result == ncclSuccess || result == ncclInProgress) return "";
        return std::string("NCCL reports: ") + ncclGetErrorString(result) +
               "; lost connection to another rank (it probably crashed or exited; see its output)";
    }
    void throw_problem() const {
        const std::string sentence = problem();
        if (!sentence.empty()) fail(Exit::rank, sentence);
    }

    // Sums in a switch (NVLink SHARP, CollNet) may differ from call to call, but the same command must give the same bits.
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
    /// Precondition: every rank has set its GPU. Sums of fewer than `together` elements are coalesced with adjacent ones.
    Collectives(const GPU&, Ranks& ranks, size_t together = size_t(1) << 22) : together_(together) {
        if (ranks.size() > 1) choose(ranks);
    }

    /// Every rank makes the same calls. Starts the all-reduce x (n) = its sum over the ranks, ordered after work already in the
    /// device's stream and complete for what the device does after finish(). Nothing may touch x before.
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

    /// Starts a reduce-scatter: this rank's part (n) of x (ranks x n) = its sum over the ranks, complete for what the device does
    /// after finish(); other parts are unchanged. Nothing may touch x before.
    void start_reduce_scatter(const GPU& device, float* x, size_t n) {
        if (exchange_) exchange_->reduce_scatter(device.stream, x, n);
    }

    /// All-gather: x (ranks x n) on every rank from each rank's own part (n), complete for what the device does afterwards.
    template <class X>
    void all_gather(const GPU& device, X* x, size_t n) {
        gather(device, std::vector<Parts>(1, parts_of(x, n)));
    }

    /// The whole flat buffer x on every rank, from the parts that each rank owns.
    template <class X>
    void all_gather(const GPU& device, X* x, const Shards& shards) {
        std::vector<Parts> all;
        for (size_t k = 0; k < shards.buckets(); k++) all.push_back(parts_of(x + shards.bucket(k).begin, shards.part_size(k)));
        gather(device, all);
    }

private:
    template <class X>
    static Parts parts_of(X* x, size_t n) {
        return {reinterpret_cast<std::byte*>(x), n * sizeof(X)};
    }
    void gather(const GPU& device, const std::vector<Parts>& all) {
        if (!exchange_) return;
        exchange_->all_gather(device.stream, all);
        exchange_->join(device.stream);
    }

    void flush(const GPU& device) {
        if (count_) exchange_->sum(device.stream, waiting_, count_);
        waiting_ = nullptr, count_ = 0;
    }

    /// NCCL unless any rank has a reason against it. All ranks make the same choice.
    void choose(Ranks& ranks) {
        const int gpus = count_gpus(ranks);
        const bool without_nccl = ranks.any(!BUILT_WITH_NCCL);
        if (gpus == ranks.size() && !without_nccl) {
            exchange_ = connect_nccl(ranks);
            return;
        }
        exchange_ = std::make_unique<HostExchange>(ranks);
        const std::string shared = std::to_string(ranks.size()) + " ranks share " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs");
        if (ranks.first())
            std::cerr << "note: " << (gpus < ranks.size() ? shared : "this program was built without NCCL")
                      << ": sums over the ranks go through host memory, which is slow\n";
    }

    /// The number of distinct GPUs of the ranks. A GPU is identified by its machine and PCI address.
    static int count_gpus(Ranks& ranks) {
        const cudaDeviceProp gpu = gpu_properties();
        std::array<char, 128> place{};
        std::snprintf(place.data(), place.size(), "%s %d:%d:%d", machine_id().c_str(), gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
        const std::vector<std::array<char, 128>> places = ranks.gathered(place);
        return int(std::set(places.begin(), places.end()).size());
    }

    std::unique_ptr<GpuExchange> exchange_;   // null for one rank alone
    size_t together_;
    float* waiting_ = nullptr;   // (count_) elements whose sum is requested but not started
    size_t count_ = 0;
};
#endif

/// Sums the gradients over the ranks while the backward pass completes them: whole ranges, or with ZeRO-1 bucket by bucket, each to the
/// rank that owns its parts. Calls come from the end of the buffer to its beginning (GradientsReady, model/gpt.h).
template <class Device>
class GradientSums {
public:
    GradientSums(Device device, Collectives<Device>& collectives, float* gradients, const Shards& shards)
        : device_(device), collectives_(collectives), gradients_(gradients), shards_(shards), buckets_(shards.buckets()) {}

    /// Elements [begin, end) are final on this rank.
    void add(size_t begin, size_t end) {
        if (shards_.count() == 1) return collectives_.start_sum(device_, gradients_ + begin, end - begin);
        for (; buckets_ > 0 && shards_.bucket(buckets_ - 1).begin >= begin; buckets_--)
            collectives_.start_reduce_scatter(device_, gradients_ + shards_.bucket(buckets_ - 1).begin, shards_.part_size(buckets_ - 1));
    }

private:
    Device device_;
    Collectives<Device>& collectives_;
    float* gradients_;
    const Shards& shards_;
    size_t buckets_;   // not yet summed
};
