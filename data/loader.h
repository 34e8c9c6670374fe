// Which tokens a rank trains on in which step, and a thread that fetches them ahead of time. The order is a function of
// (seed, epoch, step) alone: nothing needs to be saved but the step, and any number of ranks sees the same rows in a step
// as long as B * ranks * micro_steps is the same.
#pragma once
#include <cstdint>
#include <future>
#include <vector>

#include "data/stream.h"

struct LoaderConfig {
    int B = 1;               // rows per rank and micro-step
    int T = 1;               // tokens per row
    int ranks = 1;
    int rank = 0;
    int micro_steps = 1;     // per optimiser step
    uint64_t seed = 0;
    bool shuffle = true;     // false: the rows in the order of the shards
};

/// Rows of T tokens cut from a stream. Row r of the run begins at token start(r) and needs T + 1 tokens: T inputs and the same
/// shifted by one as targets. data/README.md has the formulas in words.
class RowOrder {
public:
    /// Exit::data when the stream is shorter than one row.
    RowOrder(const TokenStream& stream, int T, bool shuffle, uint64_t seed);

    uint64_t start(uint64_t row) const;
    uint64_t rows_per_epoch() const { return rows_per_epoch_; }

private:
    uint64_t rows_per_epoch_;
    uint64_t phases_;     // 1 in order; shuffled, an epoch's rows begin at one of this many offsets
    uint64_t T_;
    uint64_t seed_;
    bool shuffle_;
};

class Loader {
public:
    /// The stream must outlive the loader. Sizes that make no sense: Exit::usage; too few tokens: Exit::data.
    Loader(const TokenStream& stream, const LoaderConfig& config);
    Loader(const Loader&) = delete;   // the thread knows its address
    Loader& operator=(const Loader&) = delete;

    /// The next call of next() gives micro-step 0 of optimiser step `step` (0 or more).
    void seek(int64_t step);

    /// The inputs and targets (B, T) of the next micro-step of this rank, while a thread already reads the one after it.
    /// What went wrong on the thread is thrown here.
    void next(int32_t* inputs, int32_t* targets);

private:
    std::vector<int32_t> read(uint64_t micro_step) const;   // (B, T + 1)

    const TokenStream& stream_;
    LoaderConfig config_;
    RowOrder order_;
    uint64_t micro_step_ = 0;                  // that next() will give, counted from the start of the run
    std::future<std::vector<int32_t>> ahead_;  // its rows; the destructor of a future waits for its thread
};

/// How many rows of T tokens, each with its target behind it, the stream has when it is read in order.
int64_t windows(const TokenStream& stream, int T);

/// Rows row .. row + count - 1 in order, as inputs and targets (count, T): row i is tokens i*T .. i*T + T. The same rows in
/// every evaluation, whatever the seed. Rows beyond windows(): Exit::data.
void validation_rows(const TokenStream& stream, int64_t row, int T, int count, int32_t* inputs, int32_t* targets);
