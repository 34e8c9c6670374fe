// The tokens of each rank in each step, and a thread that prefetches them. The order depends on (seed, epoch, step). Only the step needs
// to be saved, and for the same B * ranks * micro_steps any number of ranks trains on the same rows in a step.
#pragma once
#include <cstdint>
#include <future>
#include <vector>

#include "data/mixture.h"

struct LoaderConfig {
    int B = 1;               // rows per rank and micro-step
    int T = 1;               // tokens per row
    int ranks = 1;
    int rank = 0;
    int micro_steps = 1;     // per optimiser step
    uint64_t seed = 0;
    bool shuffle = true;     // false: rows in the order of the shards
};

/// Rows of T tokens from a stream. Row r of the stream begins at token start(r) and has T + 1 tokens: T inputs, and the same shifted by
/// one as targets, -1 if masked. data/README.md explains the order.
class RowOrder {
public:
    /// Precondition: the stream outlives the order. Exit::data if the stream is shorter than one row.
    RowOrder(const TokenStream& stream, int T, bool shuffle, uint64_t seed);

    uint64_t start(uint64_t row) const;
    const TokenStream& stream() const { return stream_; }
    uint64_t rows_per_epoch() const { return rows_per_epoch_; }

    /// The last token that can be a target; the first is token 1.
    uint64_t last_target() const { return rows_per_epoch_ * T_ + phases_ - 1; }

private:
    const TokenStream& stream_;
    uint64_t rows_per_epoch_;
    uint64_t phases_;     // 1 in order; shuffled, an epoch's rows begin at one of this many offsets
    uint64_t T_;
    uint64_t seed_;
    bool shuffle_;
};

/// The rows of a run: those of each source in its own order, mixed by weight.
class Loader {
public:
    /// Preconditions: the mixture outlives the loader; sizes are at least 1, and `rank` is below `ranks`. Exit::data for too few tokens.
    Loader(const Mixture& mixture, const LoaderConfig& config);
    Loader(const Loader&) = delete;   // the thread holds a pointer to it
    Loader& operator=(const Loader&) = delete;

    /// Precondition: step >= 0. The next next() returns micro-step 0 of optimiser step `step`.
    void seek(int64_t step);

    /// Inputs and targets (B, T) of this rank's next micro-step. A thread prefetches the next; its errors are rethrown here.
    void next(int32_t* inputs, int32_t* targets);

    /// The number of unmasked targets of optimiser step `step` on all ranks.
    int64_t targets_of_step(int64_t step) const;

    /// Exit::data if a loss mask hides every target of the first `steps` steps, if any.
    void require_targets(int64_t steps) const;

private:
    struct Place {
        const TokenStream& stream;
        uint64_t start;   // token
    };
    Place place(uint64_t row) const;
    std::vector<int32_t> read(uint64_t micro_step) const;   // inputs (B, T), targets (B, T)

    const Mixture& mixture_;
    LoaderConfig config_;
    std::vector<RowOrder> orders_;             // one per source
    uint64_t micro_step_ = 0;                  // the next micro-step, counted from the start of the run
    std::future<std::vector<int32_t>> ahead_;  // its rows; the destructor of a future waits for its thread
};

/// The number of rows of T tokens, with their targets, in the stream read in order.
int64_t windows(const TokenStream& stream, int T);

/// Rows [row, row + count) in order as inputs and targets (count, T): row i is tokens i*T .. i*T + T, independent of the seed.
/// Targets hidden by a loss mask are -1. Exit::data for rows beyond windows().
void validation_rows(const TokenStream& stream, int64_t row, int T, int count, int32_t* inputs, int32_t* targets);
