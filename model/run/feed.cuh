// Moves batches from the host to device memory. For a GPU, reading and copying the next batch overlaps with computation.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/batch.h"
#include "model/device/memory.cuh"

/// The arrays of a batch in one block, on the host or the device: tokens, targets, rows by token and, with --document-mask, beginnings of
/// documents (B x T each), then runs.
class BatchLayout {
public:
    /// For batches of at most B x T tokens of a vocabulary of V.
    BatchLayout(int B, int T, int V, DocumentBorders borders)
        : V_(V), borders_(borders), tokens_(size_t(B) * T), capacity_(RowsByToken::capacity_for(B * T, V)) {}

    size_t bytes() const { return sizeof(int32_t) * numbers() + sizeof(TokenRun) * size_t(capacity_); }

    /// The loader's next micro-batch, in a block of the host.
    void read(Loader& loader, int32_t* block, int B, int T) const {
        loader.next(block, block + tokens_);
        derive(block, B, T, true);
    }

    /// The same for these tokens (B, T), and targets (B, T) unless null. std::logic_error if the batch does not fit: it would overrun the
    /// model's activations too.
    void copy(const int32_t* tokens, const int32_t* targets, int32_t* block, int B, int T) const {
        const size_t n = size_t(B) * T;
        if (n > tokens_)
            throw std::logic_error(std::to_string(B) + " x " + std::to_string(T) + " tokens exceed a feed's " + std::to_string(tokens_));
        std::copy_n(tokens, n, block);
        if (targets) std::copy_n(targets, n, block + tokens_);
        derive(block, B, T, targets != nullptr);
    }

    /// The batch in a block; one without targets cannot be trained on.
    Batch batch(const int32_t* block, int B, int T, bool has_targets = true) const {
        Batch batch{B, T, block};
        if (borders_) batch.documents = {block + 3 * tokens_, T, borders_.restart_positions};
        if (!has_targets) return batch;
        const TokenRun* runs = reinterpret_cast<const TokenRun*>(block + numbers());
        batch.targets = block + tokens_;
        batch.by_token = {block + 2 * tokens_, runs, RowsByToken::capacity_for(B * T, V_)};
        return batch;
    }

private:
    size_t numbers() const { return (borders_ ? 4 : 3) * tokens_; }   // before the runs

    void derive(int32_t* block, int B, int T, bool has_targets) const {
        if (has_targets) sort_by_token(block, B * T, V_, block + 2 * tokens_, reinterpret_cast<TokenRun*>(block + numbers()));
        if (borders_) find_documents(block, B, T, borders_.end_of_text, block + 3 * tokens_);
    }

    int V_;
    DocumentBorders borders_;
    size_t tokens_;
    int capacity_;   // runs
};

template <class Device>
class BatchFeed;

template <>
class BatchFeed<CPU> {
public:
    BatchFeed(int B, int T, int V, DocumentBorders borders = {}) : layout_(B, T, V, borders) {}

    /// Allocates device memory. Call once, before anything else but bytes().
    void allocate(CPU) { block_.resize(bytes() / sizeof(int32_t)); }

    /// The loader's next micro-batch of B x T tokens; valid until the next call.
    Batch next(CPU, Loader& loader, int B, int T) {
        layout_.read(loader, block_.data(), B, T);
        return layout_.batch(block_.data(), B, T);
    }

    /// Prefetches the next micro-batch, if a device computes meanwhile.
    void prefetch(CPU, Loader&, int /*B*/, int /*T*/) {}

    /// A batch of BatchLayout::copy(). Valid until the next call.
    Batch put(CPU, const int32_t* tokens, const int32_t* targets, int B, int T) {
        layout_.copy(tokens, targets, block_.data(), B, T);
        return layout_.batch(block_.data(), B, T, targets != nullptr);
    }

    size_t bytes() const { return layout_.bytes(); }

private:
    BatchLayout layout_;
    std::vector<int32_t> block_;
};

#ifdef WITH_GPU

/// Three buffers for batches: two that training alternates between, one for everything else.
template <>
class BatchFeed<GPU> {
public:
    BatchFeed(int B, int T, int V, DocumentBorders borders = {}) : layout_(B, T, V, borders) {}

    void allocate(GPU device) {
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
        for (Buffer& buffer : buffers_) {
            check(gpu_malloc(buffer.device, layout_.bytes()));
            check(cudaMallocHost(&buffer.host, layout_.bytes()));
            check(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming));
            check(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming));
            check(cudaEventRecord(buffer.used, device.stream));
        }
    }
    ~BatchFeed() {
        if (!copies_) return;
        cudaStreamSynchronize(copies_);
        for (Buffer& buffer : buffers_) {
            gpu_free(buffer.device, layout_.bytes()), cudaFreeHost(buffer.host);
            cudaEventDestroy(buffer.copied), cudaEventDestroy(buffer.used);
        }
        cudaStreamDestroy(copies_);
    }
    BatchFeed(const BatchFeed&) = delete;

    /// The loader's next micro-batch; valid until the call after the next.
    Batch next(GPU device, Loader& loader, int B, int T) {
        if (!ahead_) read_ahead(loader, buffers_[current_], B, T);
        ahead_ = false;
        Buffer& now = buffers_[current_];
        check(cudaStreamWaitEvent(device.stream, now.copied, 0));
        current_ = 1 - current_;
        check(cudaEventRecord(buffers_[current_].used, device.stream));   // all work on the previous batch is in the stream
        return layout_.batch(now.device, B, T);
    }

    /// Prefetches the next micro-batch. Precondition: all work on the current one has been launched, so that it overlaps.
    void prefetch(GPU, Loader& loader, int B, int T) {
        read_ahead(loader, buffers_[current_], B, T);
        ahead_ = true;
    }

    Batch put(GPU device, const int32_t* tokens, const int32_t* targets, int B, int T) {
        Buffer& buffer = buffers_[2];
        check(cudaStreamSynchronize(device.stream));
        layout_.copy(tokens, targets, buffer.host, B, T);
        check(cudaMemcpyAsync(buffer.device, buffer.host, layout_.bytes(), cudaMemcpyHostToDevice, device.stream));
        return layout_.batch(buffer.device, B, T, targets != nullptr);
    }

    size_t bytes() const { return 3 * layout_.bytes(); }

private:
    struct Buffer {
        int32_t *device = nullptr, *host = nullptr;
        cudaEvent_t copied, used;
    };

    void read_ahead(Loader& loader, Buffer& buffer, int B, int T) {
        check(cudaEventSynchronize(buffer.copied));   // the host side is free
        layout_.read(loader, buffer.host, B, T);
        check(cudaStreamWaitEvent(copies_, buffer.used, 0));   // the device side is free
        check(cudaMemcpyAsync(buffer.device, buffer.host, layout_.bytes(), cudaMemcpyHostToDevice, copies_));
        check(cudaEventRecord(buffer.copied, copies_));
    }

    BatchLayout layout_;
    Buffer buffers_[3];
    cudaStream_t copies_ = nullptr;
    int current_ = 0;      // the buffer that next() returns
    bool ahead_ = false;   // whether it has been filled
};

#endif
