// Moves batches from the host to device memory. For a GPU, reading and copying the next batch overlaps with computation.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/batch.h"
#include "model/device/memory.cuh"

template <class Device>
class BatchFeed;

/// std::logic_error if a batch does not fit: it would overrun the model's activations too.
inline void require_room(int B, int T, size_t tokens) {
    if (size_t(B) * T > tokens)
        throw std::logic_error(std::to_string(B) + " x " + std::to_string(T) + " tokens exceed a feed's " +
                               std::to_string(tokens));
}

template <>
class BatchFeed<CPU> {
public:
    /// For batches of at most B x T tokens of a vocabulary of V.
    BatchFeed(int B, int T, int V, DocumentBorders borders = {})
        : V_(V), borders_(borders), count_(size_t(B) * T), capacity_(RowsByToken::capacity_for(B * T, V)) {}

    /// Allocates device memory. Call once, before anything else but bytes().
    void allocate(CPU) {
        for (auto* of_tokens : {&tokens_, &targets_, &rows_}) of_tokens->resize(count_);
        if (borders_) starts_.resize(count_);
        runs_.resize(capacity_);
    }

    /// The loader's next micro-batch of B x T tokens; valid until the next call.
    Batch next(CPU, Loader& loader, int B, int T) {
        loader.next(tokens_.data(), targets_.data());
        return sorted(B, T);
    }

    /// Prefetches the next micro-batch, if a device computes meanwhile.
    void prefetch(CPU, Loader&, int /*B*/, int /*T*/) {}

    /// Precondition: the batch fits (std::logic_error). Tokens (B, T) from the host, and targets (B, T) unless null, in which case
    /// the batch cannot be trained on. Valid until the next call.
    Batch put(CPU, const int32_t* tokens, const int32_t* targets, int B, int T) {
        require_room(B, T, tokens_.size());   // none before allocate()
        std::copy_n(tokens, size_t(B) * T, tokens_.data());
        if (!targets) return {B, T, tokens_.data(), nullptr, {}, documents(B, T)};
        std::copy_n(targets, size_t(B) * T, targets_.data());
        return sorted(B, T);
    }

    size_t bytes() const {
        return sizeof(int32_t) * (borders_ ? 4 : 3) * count_ + sizeof(TokenRun) * size_t(capacity_);
    }

private:
    Batch sorted(int B, int T) {
        sort_by_token(tokens_.data(), B * T, V_, rows_.data(), runs_.data());
        const RowsByToken by_token{rows_.data(), runs_.data(), RowsByToken::capacity_for(B * T, V_)};
        return {B, T, tokens_.data(), targets_.data(), by_token, documents(B, T)};
    }
    Documents documents(int B, int T) {
        if (!borders_) return {};
        find_documents(tokens_.data(), B, T, borders_.end_of_text, starts_.data());
        return {starts_.data(), T, borders_.restart_positions};
    }

    int V_;
    DocumentBorders borders_;
    size_t count_;   // of tokens
    int capacity_;   // runs
    std::vector<int32_t> tokens_, targets_, rows_, starts_;
    std::vector<TokenRun> runs_;
};

#ifdef WITH_GPU

/// Three buffers for batches: two that training alternates between, one for everything else.
template <>
class BatchFeed<GPU> {
public:
    BatchFeed(int B, int T, int V, DocumentBorders borders = {})
        : V_(V), borders_(borders), tokens_(size_t(B) * T), capacity_(RowsByToken::capacity_for(B * T, V)) {}

    void allocate(GPU device) {
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
        for (Buffer& buffer : buffers_) {
            check(cudaMalloc(&buffer.device, buffer_bytes()));
            check(cudaMallocHost(&buffer.host, buffer_bytes()));
            check(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming));
            check(cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming));
            check(cudaEventRecord(buffer.used, device.stream));
        }
    }
    ~BatchFeed() {
        if (!copies_) return;
        cudaStreamSynchronize(copies_);
        for (Buffer& buffer : buffers_) {
            cudaFree(buffer.device), cudaFreeHost(buffer.host);
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
        return batch_of(now, B, T);
    }

    /// Prefetches the next micro-batch. Precondition: all work on the current one has been launched, so that it overlaps.
    void prefetch(GPU, Loader& loader, int B, int T) {
        read_ahead(loader, buffers_[current_], B, T);
        ahead_ = true;
    }

    Batch put(GPU device, const int32_t* tokens, const int32_t* targets, int B, int T) {
        Buffer& buffer = buffers_[2];
        require_room(B, T, tokens_);
        check(cudaStreamSynchronize(device.stream));
        std::copy_n(tokens, size_t(B) * T, host_tokens(buffer));
        if (targets) std::copy_n(targets, size_t(B) * T, host_targets(buffer));
        prepare(buffer, B, T, targets != nullptr);
        check(cudaMemcpyAsync(buffer.device, buffer.host, buffer_bytes(), cudaMemcpyHostToDevice, device.stream));
        Batch batch = batch_of(buffer, B, T);
        if (!targets) batch.targets = nullptr, batch.by_token = {};
        return batch;
    }

    size_t bytes() const { return 3 * buffer_bytes(); }

private:
    /// Tokens, targets, rows by token, beginnings of documents with --document-mask (tokens_ each), runs (capacity_): one block on each
    /// side.
    struct Buffer {
        std::byte *device = nullptr, *host = nullptr;
        cudaEvent_t copied, used;
    };

    size_t numbers() const { return (borders_ ? 4 : 3) * tokens_; }   // before the runs
    size_t buffer_bytes() const { return sizeof(int32_t) * numbers() + sizeof(TokenRun) * size_t(capacity_); }
    int32_t* host_tokens(Buffer& buffer) const { return reinterpret_cast<int32_t*>(buffer.host); }
    int32_t* host_targets(Buffer& buffer) const { return host_tokens(buffer) + tokens_; }

    /// Arrays derived from the tokens; the rows by token only for a backward pass.
    void prepare(Buffer& buffer, int B, int T, bool sorted) {
        int32_t* const tokens = host_tokens(buffer);
        if (sorted) sort_by_token(tokens, B * T, V_, tokens + 2 * tokens_, reinterpret_cast<TokenRun*>(tokens + numbers()));
        if (borders_) find_documents(tokens, B, T, borders_.end_of_text, tokens + 3 * tokens_);
    }

    void read_ahead(Loader& loader, Buffer& buffer, int B, int T) {
        check(cudaEventSynchronize(buffer.copied));   // the host side is free
        loader.next(host_tokens(buffer), host_targets(buffer));
        prepare(buffer, B, T, true);
        check(cudaStreamWaitEvent(copies_, buffer.used, 0));   // the device side is free
        check(cudaMemcpyAsync(buffer.device, buffer.host, buffer_bytes(), cudaMemcpyHostToDevice, copies_));
        check(cudaEventRecord(buffer.copied, copies_));
    }

    Batch batch_of(const Buffer& buffer, int B, int T) const {
        const int32_t* tokens = reinterpret_cast<const int32_t*>(buffer.device);
        const TokenRun* runs = reinterpret_cast<const TokenRun*>(tokens + numbers());
        Batch batch{B, T, tokens, tokens + tokens_, {tokens + 2 * tokens_, runs, RowsByToken::capacity_for(B * T, V_)}};
        if (borders_) batch.documents = {tokens + 3 * tokens_, T, borders_.restart_positions};
        return batch;
    }

    int V_;
    DocumentBorders borders_;
    size_t tokens_;
    int capacity_;
    Buffer buffers_[3];
    cudaStream_t copies_ = nullptr;
    int current_ = 0;      // the buffer that next() returns
    bool ahead_ = false;   // whether it has been filled
};

#endif
