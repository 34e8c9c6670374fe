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

}  // namespace

int64_t windows(const TokenStream& stream, int T) {
    return stream.size() == 0 ? 0 : static_cast<int64_t>((stream.size() - 1) / static_cast<uint64_t>(T));
}

RowOrder::RowOrder(const TokenStream& stream, int T, bool shuffle, uint64_t seed)
    : stream_(stream), T_(static_cast<uint64_t>(T)), seed_(seed), shuffle_(shuffle) {
    const uint64_t size = stream.size();
    if (windows(stream, T) == 0)
        fail(Exit::data, stream.name(), ": holds ", size, " tokens, but one row of ", T, " tokens and its last target need ", T_ + 1,
             "; give it more text or take a smaller --seq-len");
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

Loader::Loader(const Mixture& mixture, const LoaderConfig& config)
    : mixture_(mixture), config_(config) {
    for (const Source& source : mixture.sources()) orders_.emplace_back(source.stream, config.T, config.shuffle, config.seed);
}

Loader::Place Loader::place(uint64_t row) const {
    const auto [source, index] = mixture_.place(row);
    return {orders_[source].stream(), orders_[source].start(index)};
}

void Loader::seek(int64_t step) {
    ahead_ = {};   // waits for the thread and discards its rows
    micro_step_ = static_cast<uint64_t>(step) * static_cast<uint64_t>(config_.micro_steps);
}

std::vector<int32_t> Loader::read(uint64_t micro_step) const {
    const size_t B = static_cast<size_t>(config_.B), T = static_cast<size_t>(config_.T);
    const uint64_t batch = micro_step * static_cast<uint64_t>(config_.ranks) + static_cast<uint64_t>(config_.rank);
    std::vector<int32_t> rows(2 * B * T), row(T + 1);
    for (size_t b = 0; b < B; ++b) {
        const auto [stream, start] = place(batch * B + b);
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
    if (!mixture_.masked()) return rows * T;
    uint64_t targets = 0;
    for (int64_t row = step * rows; row < (step + 1) * rows; ++row) {
        const auto [stream, start] = place(static_cast<uint64_t>(row));
        targets += stream.count_targets(start + 1, static_cast<uint64_t>(T));
    }
    return static_cast<int64_t>(targets);
}

void Loader::require_targets(int64_t steps) const {
    if (steps == 0 || targets_of_step(0) > 0) return;   // the usual case reads little of the masks
    const auto has_targets = [](const RowOrder& of) { return of.stream().count_targets(1, of.last_target()) > 0; };
    if (std::ranges::any_of(orders_, has_targets))   // else no row of any epoch has one
        for (int64_t step = 0; step < steps; ++step)
            if (targets_of_step(step) > 0) return;
    fail(Exit::data, mixture_.name(), ": its loss mask hides all targets of the ", steps, " steps of rows of ", config_.T,
         " tokens, so there is nothing to learn from; make shards with completions (./tokenize --mask-prompts), or take another --seq-len "
         "or more --steps");
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
