// Brings batches from the host into the memory of the device that computes. On the GPU the next batch is read and copied while the
// device still works on the one before.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "data/loader.h"
#include "model/batch.h"
#include "model/device/memory.cuh"

template <class Device>
class Feed;

/// A batch that does not fit would run over the model's activations too.
inline void require_room(int B, int T, size_t tokens) {
    if (size_t(B) * T > tokens)
        throw std::logic_error(std::to_string(B) + " x " + std::to_string(T) + " tokens are more than a feed's " +
                               std::to_string(tokens));
}

template <>
class Feed<CPU> {
public:
    /// For batches of at most B x T tokens of a vocabulary of V.
    Feed(int B, int T, int V)
        : V_(V),
          tokens_(size_t(B) * T),
          targets_(tokens_.size()),
          rows_(tokens_.size()),
          runs_(RowsByToken::capacity_for(B * T, V)) {}

    /// Gets what it needs of the device. Call it once, before anything else.
    void allocate(CPU) {}

    /// The loader's next micro-step of B x T tokens; valid until the next call.
    Batch next(CPU, Loader& loader, int B, int T) {
        loader.next(tokens_.data(), targets_.data());
        return sorted(B, T);
    }

    /// Reads the step after that, where there is a device to work meanwhile.
    void read_on(CPU, Loader&, int /*B*/, int /*T*/) {}

    /// Tokens (B, T) from the host, and targets (B, T) where they are not null; without targets nothing can train on the batch.
    /// Valid until the next call.
    Batch put(CPU, const int32_t* tokens, const int32_t* targets, int B, int T) {
        require_room(B, T, tokens_.size());
        std::copy_n(tokens, size_t(B) * T, tokens_.data());
        if (!targets) return {B, T, tokens_.data()};
        std::copy_n(targets, size_t(B) * T, targets_.data());
        return sorted(B, T);
    }

    size_t bytes() const { return 3 * sizeof(int32_t) * tokens_.size() + sizeof(TokenRun) * runs_.size(); }

private:
    Batch sorted(int B, int T) {
        sort_by_token(tokens_.data(), B * T, V_, rows_.data(), runs_.data());
        return {B, T, tokens_.data(), targets_.data(), {rows_.data(), runs_.data(), RowsByToken::capacity_for(B * T, V_)}};
    }

    int V_;
    std::vector<int32_t> tokens_, targets_, rows_;
    std::vector<TokenRun> runs_;
};

#ifdef WITH_GPU

/// Three places for batches: two that training fills in turn, one for everything else.
template <>
class Feed<GPU> {
public:
    Feed(int B, int T, int V) : V_(V), tokens_(size_t(B) * T), capacity_(RowsByToken::capacity_for(B * T, V)) {}

    void allocate(GPU device) {
        check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
        for (Place& place : places_) {
            check(cudaMalloc(&place.device, place_bytes()));
            check(cudaMallocHost(&place.host, place_bytes()));
            check(cudaEventCreateWithFlags(&place.copied, cudaEventDisableTiming));
            check(cudaEventCreateWithFlags(&place.used, cudaEventDisableTiming));
            check(cudaEventRecord(place.used, device.stream));
        }
    }
    ~Feed() {
        if (!copies_) return;
        cudaStreamSynchronize(copies_);
        for (Place& place : places_) {
            cudaFree(place.device), cudaFreeHost(place.host);
            cudaEventDestroy(place.copied), cudaEventDestroy(place.used);
        }
        cudaStreamDestroy(copies_);
    }
    Feed(const Feed&) = delete;

    /// The loader's next micro-step; valid until the call after the next.
    Batch next(GPU device, Loader& loader, int B, int T) {
        if (!ahead_) read_ahead(loader, places_[turn_], B, T);
        ahead_ = false;
        Place& now = places_[turn_];
        check(cudaStreamWaitEvent(device.stream, now.copied, 0));
        turn_ = 1 - turn_;
        check(cudaEventRecord(places_[turn_].used, device.stream));   // all work on the batch before this one is in the stream
        return batch_of(now, B, T);
    }

    /// Reads and copies the step after that. To be called when all work on this one has been given to the device, which then goes on
    /// meanwhile.
    void read_on(GPU, Loader& loader, int B, int T) {
        read_ahead(loader, places_[turn_], B, T);
        ahead_ = true;
    }

    Batch put(GPU device, const int32_t* tokens, const int32_t* targets, int B, int T) {
        Place& place = places_[2];
        require_room(B, T, tokens_);
        check(cudaStreamSynchronize(device.stream));
        std::copy_n(tokens, size_t(B) * T, host_tokens(place));
        if (targets) {
            std::copy_n(targets, size_t(B) * T, host_targets(place));
            sort(place, B, T);
        }
        check(cudaMemcpyAsync(place.device, place.host, place_bytes(), cudaMemcpyHostToDevice, device.stream));
        Batch batch = batch_of(place, B, T);
        return targets ? batch : Batch{B, T, batch.tokens};
    }

    size_t bytes() const { return 3 * place_bytes(); }

private:
    /// tokens, targets, rows by token (tokens_ each), runs (capacity_), in one block on either side.
    struct Place {
        std::byte *device = nullptr, *host = nullptr;
        cudaEvent_t copied, used;
    };

    size_t place_bytes() const { return 3 * sizeof(int32_t) * tokens_ + sizeof(TokenRun) * size_t(capacity_); }
    int32_t* host_tokens(Place& place) const { return reinterpret_cast<int32_t*>(place.host); }
    int32_t* host_targets(Place& place) const { return host_tokens(place) + tokens_; }

    void sort(Place& place, int B, int T) {
        int32_t* rows = host_tokens(place) + 2 * tokens_;
        sort_by_token(host_tokens(place), B * T, V_, rows, reinterpret_cast<TokenRun*>(rows + tokens_));
    }

    void read_ahead(Loader& loader, Place& place, int B, int T) {
        check(cudaEventSynchronize(place.copied));   // the host's side is free
        loader.next(host_tokens(place), host_targets(place));
        sort(place, B, T);
        check(cudaStreamWaitEvent(copies_, place.used, 0));   // the device's side is free
        check(cudaMemcpyAsync(place.device, place.host, place_bytes(), cudaMemcpyHostToDevice, copies_));
        check(cudaEventRecord(place.copied, copies_));
    }

    Batch batch_of(const Place& place, int B, int T) const {
        const int32_t* tokens = reinterpret_cast<const int32_t*>(place.device);
        const int32_t* rows = tokens + 2 * tokens_;
        return {B, T, tokens, tokens + tokens_,
                {rows, reinterpret_cast<const TokenRun*>(rows + tokens_), RowsByToken::capacity_for(B * T, V_)}};
    }

    int V_;
    size_t tokens_;
    int capacity_;
    Place places_[3];
    cudaStream_t copies_ = nullptr;
    int turn_ = 0;         // the place that next() gives
    bool ahead_ = false;   // it has been filled
};

#endif
