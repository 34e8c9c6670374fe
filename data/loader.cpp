#include "data/loader.h"

#include <algorithm>

#include "data/permutation.h"
#include "model/base/error.h"

namespace {

// inputs (T) from token `start` on, and targets (T) shifted by one; `row` (T + 1) is scratch.
void read_row(const TokenStream& stream, uint64_t start, int T, std::vector<int32_t>& row, int32_t* inputs, int32_t* targets) {
    stream.copy(start, row.size(), row.data());
    std::copy(row.begin(), row.end() - 1, inputs);
    std::copy(row.begin() + 1, row.end(), targets);
    stream.hide_targets(start + 1, static_cast<size_t>(T), targets);
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
    : stream_(stream), T_(static_cast<uint64_t>(T)), seed_(seed), shuffle_(shuffle) {
    require_one_row(stream, T);
    const uint64_t size = stream.size();
    // Unshuffled, every row is used. Shuffled, an epoch's rows are shifted by a phase below T, and only as many rows are used as
    // fit for every phase; a stream too short for that has one row and as many phases as fit.
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

MixedOrder::MixedOrder(const Mixture& mixture, int T, bool shuffle, uint64_t seed) : mixture_(mixture) {
    for (const Source& source : mixture.sources()) orders_.emplace_back(source.stream, T, shuffle, seed);
}

MixedOrder::Place MixedOrder::place(uint64_t row) const {
    const auto [source, index] = mixture_.place(row);
    return {orders_[source].stream(), orders_[source].start(index)};
}

void require_targets(const Mixture& mixture, int T, bool shuffle, uint64_t seed, uint64_t rows) {
    if (!mixture.masked()) return;
    const MixedOrder order(mixture, T, shuffle, seed);
    const auto hides_all = [](const RowOrder& of) { return of.stream().count_targets(1, of.last_target()) == 0; };
    uint64_t epoch = 0;
    for (const RowOrder& of : order.orders()) epoch += of.rows_per_epoch();
    for (uint64_t row = 0; row < rows; ++row) {
        const auto [stream, start] = order.place(row);
        if (stream.count_targets(start + 1, static_cast<uint64_t>(T)) > 0) return;
        if (row + 1 == epoch && std::all_of(order.orders().begin(), order.orders().end(), hides_all)) break;   // nor has a later one
    }
    if (rows > 0)
        fail(Exit::data, mixture.name(), ": its loss mask hides all targets of the ", rows, " rows of ", T,
             " tokens of this run, so there is nothing to learn from; make shards with completions (./tokenize --mask-prompts), or take "
             "another --seq-len or more --steps");
}

Loader::Loader(const Mixture& mixture, const LoaderConfig& config)
    : masked_(mixture.masked()), config_((check_sizes(config), config)), order_(mixture, config.T, config.shuffle, config.seed) {}

void Loader::seek(int64_t step) {
    ahead_ = {};   // waits for the thread and discards its rows
    micro_step_ = static_cast<uint64_t>(step) * static_cast<uint64_t>(config_.micro_steps);
}

std::vector<int32_t> Loader::read(uint64_t micro_step) const {
    const size_t B = static_cast<size_t>(config_.B), T = static_cast<size_t>(config_.T);
    const uint64_t batch = micro_step * static_cast<uint64_t>(config_.ranks) + static_cast<uint64_t>(config_.rank);
    std::vector<int32_t> rows(2 * B * T), row(T + 1);
    for (size_t b = 0; b < B; ++b) {
        const auto [stream, start] = order_.place(batch * B + b);
        read_row(stream, start, config_.T, row, &rows[b * T], &rows[(B + b) * T]);
    }
    return rows;
}

void Loader::next(int32_t* inputs, int32_t* targets) {
    const auto start_reading = [this] {   // deferred where the system starts no more threads
        return std::async(std::launch::async | std::launch::deferred, &Loader::read, this, micro_step_);
    };
    if (!ahead_.valid()) ahead_ = start_reading();
    const std::vector<int32_t> rows = ahead_.get();
    ++micro_step_;
    ahead_ = start_reading();

    const auto middle = rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2);
    std::copy(rows.begin(), middle, inputs);
    std::copy(middle, rows.end(), targets);
}

int64_t Loader::targets_of_step(int64_t step) const {
    const int64_t rows = int64_t{config_.B} * config_.ranks * config_.micro_steps, T = config_.T;
    if (!masked_) return rows * T;
    uint64_t targets = 0;
    for (int64_t row = step * rows; row < (step + 1) * rows; ++row) {
        const auto [stream, start] = order_.place(static_cast<uint64_t>(row));
        targets += stream.count_targets(start + 1, static_cast<uint64_t>(T));
    }
    return static_cast<int64_t>(targets);
}

void validation_rows(const TokenStream& stream, int64_t row, int T, int count, int32_t* inputs, int32_t* targets) {
    const int64_t available = windows(stream, T);
    if (row < 0 || count < 0 || row + count > available)
        fail(Exit::data, stream.name(), ": rows ", row, " to ", row + count - 1, " of ", T, " tokens were requested, but its ",
             stream.size(), " tokens make ", available, " such rows; give it more text or take fewer or shorter rows");
    std::vector<int32_t> tokens(static_cast<size_t>(T) + 1);
    for (int64_t i = 0; i < count; ++i)
        read_row(stream, static_cast<uint64_t>((row + i) * T), T, tokens, inputs + i * T, targets + i * T);
}
