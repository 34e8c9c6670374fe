#include "data/loader.h"

#include <algorithm>

#include "data/permutation.h"
#include "model/base/error.h"

namespace {

// (T + 1) tokens -> T inputs and the T tokens that follow each of them.
void split_row(const int32_t* row, int T, int32_t* inputs, int32_t* targets) {
    std::copy(row, row + T, inputs);
    std::copy(row + 1, row + T + 1, targets);
}

void require_one_row(const TokenStream& stream, int T) {
    if (windows(stream, T) > 0) return;
    fail(Exit::data, stream.name(), ": holds ", stream.size(), " tokens, but one row of ", T, " tokens and its last target need ",
         int64_t{T} + 1, "; give it more text or take a smaller --seq-len");
}

void check_sizes(const LoaderConfig& config) {
    if (config.B < 1 || config.T < 1 || config.micro_steps < 1)
        fail(Exit::usage, "batch size ", config.B, ", sequence length ", config.T, " and ", config.micro_steps,
             " micro-steps must all be at least 1");
    if (config.ranks < 1 || config.rank < 0 || config.rank >= config.ranks)
        fail(Exit::usage, "rank ", config.rank, " is not one of ", config.ranks, " ranks, which count from 0");
}

}  // namespace

int64_t windows(const TokenStream& stream, int T) {
    return stream.size() == 0 ? 0 : static_cast<int64_t>((stream.size() - 1) / static_cast<uint64_t>(T));
}

RowOrder::RowOrder(const TokenStream& stream, int T, bool shuffle, uint64_t seed)
    : T_(static_cast<uint64_t>(T)), seed_(seed), shuffle_(shuffle) {
    require_one_row(stream, T);
    const uint64_t size = stream.size();
    // In order every row counts. Shuffled, the rows of an epoch are shifted by a phase below T, and only as many rows are
    // used as fit for every phase; a stream too short for that has one row and as many phases as there is room.
    rows_per_epoch_ = shuffle ? std::max<uint64_t>(1, size / T_ - 1) : (size - 1) / T_;
    phases_ = shuffle ? std::min(T_, size - rows_per_epoch_ * T_) : 1;
}

uint64_t RowOrder::start(uint64_t row) const {
    const uint64_t epoch = row / rows_per_epoch_;
    const uint64_t window = row % rows_per_epoch_;
    if (!shuffle_) return window * T_;
    const uint64_t key = mix(mix(seed_) ^ epoch);
    const uint64_t phase = mix(key) % phases_;
    return permute(window, rows_per_epoch_, key) * T_ + phase;
}

Loader::Loader(const TokenStream& stream, const LoaderConfig& config)
    : stream_(stream), config_((check_sizes(config), config)), order_(stream, config.T, config.shuffle, config.seed) {}

void Loader::seek(int64_t step) {
    ahead_ = {};   // waits for the thread and forgets what it read
    micro_step_ = static_cast<uint64_t>(step) * static_cast<uint64_t>(config_.micro_steps);
}

std::vector<int32_t> Loader::read(uint64_t micro_step) const {
    const size_t tokens = static_cast<size_t>(config_.T) + 1;
    const uint64_t batch = micro_step * static_cast<uint64_t>(config_.ranks) + static_cast<uint64_t>(config_.rank);
    const uint64_t first_row = batch * static_cast<uint64_t>(config_.B);
    std::vector<int32_t> rows(static_cast<size_t>(config_.B) * tokens);
    for (int b = 0; b < config_.B; ++b)
        stream_.copy(order_.start(first_row + static_cast<uint64_t>(b)), tokens, &rows[b * tokens]);
    return rows;
}

void Loader::next(int32_t* inputs, int32_t* targets) {
    const auto start_reading = [this] { return std::async(std::launch::async, &Loader::read, this, micro_step_); };
    if (!ahead_.valid()) ahead_ = start_reading();
    const std::vector<int32_t> rows = ahead_.get();
    ++micro_step_;
    ahead_ = start_reading();

    const size_t T = static_cast<size_t>(config_.T);
    for (int b = 0; b < config_.B; ++b)
        split_row(&rows[b * (T + 1)], config_.T, inputs + b * T, targets + b * T);
}

void validation_rows(const TokenStream& stream, int64_t row, int T, int count, int32_t* inputs, int32_t* targets) {
    const int64_t available = windows(stream, T);
    if (row < 0 || count < 0 || row + count > available)
        fail(Exit::data, stream.name(), ": rows ", row, " to ", row + count - 1, " of ", T, " tokens were asked for, but its ",
             stream.size(), " tokens make ", available, " such rows; give it more text or take fewer or shorter rows");
    std::vector<int32_t> tokens(static_cast<size_t>(T) + 1);
    for (int64_t i = 0; i < count; ++i) {
        stream.copy(static_cast<uint64_t>((row + i) * T), tokens.size(), tokens.data());
        split_row(tokens.data(), T, inputs + i * T, targets + i * T);
    }
}
