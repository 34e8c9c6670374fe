// Brings batches from the host into the memory of the device that computes. On the GPU the next batch is read and copied while the
// device still works on the one before.
#pragma once
#include <vector>

#include "data/loader.h"
#include "model/batch.h"
#include "model/memory.h"

template <class Device>
class Feed;

template <>
class Feed<CPU> {
public:
    /// For batches of at most B x T tokens of a vocabulary of V.
    Feed(CPU, int B, int T, int V)
        : V_(V), tokens_(size_t(B) * T), targets_(tokens_.size()), rows_(tokens_.size()), runs_(RowsByToken::capacity_for(B * T, V)) {}

    /// The loader's next micro-step of B x T tokens; valid until the next call.
    Batch next(CPU, Loader& loader, int B, int T) {
        loader.next(tokens_.data(), targets_.data());
        return sorted(B, T);
    }

    /// Tokens (B, T), and targets (B, T) where they are not null, from the host; valid until the next call.
    Batch put(CPU, const int32_t* tokens, const int32_t* targets, int B, int T) {
        std::copy_n(tokens, size_t(B) * T, tokens_.data());
        if (targets) std::copy_n(targets, size_t(B) * T, targets_.data());
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
