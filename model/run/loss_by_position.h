// Validation loss by position in the row. It shows where a model that was trained on short rows, or that has a window, gets worse.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/ranks/ranks.h"

struct PositionBin {
    int first, last;         // positions
    int64_t targets;         // unmasked targets; a loss mask may hide some or all
    double loss;             // nats per target; NaN without targets
    double standard_error;   // NaN with fewer than two rows
};

/// Sums of cross-entropy over equal bins of positions. The losses within a row are not independent; rows are assumed independent. The
/// standard error is therefore that of a ratio of sums over rows, loss / targets (Cochran, Sampling Techniques, 3rd ed., section 6.3,
/// without the correction for a finite population):
///     sqrt(R / (R - 1) sum_r (loss_r - mean targets_r)^2) / sum_r targets_r      over the R rows with targets in the bin
class LossByPosition {
public:
    /// For rows of T tokens in `bins` bins, at most T. Bin n begins at position n T / bins, rounded down.
    LossByPosition(int T, int bins);

    LossByPosition empty() const { return {T_, bins()}; }

    /// Adds one row: cross-entropy in nats of its targets (T). Negative targets do not count.
    template <class W>
    void add_row(const W* losses, const int32_t* targets) {
        for (int n = 0; n < bins(); n++) {
            double loss = 0, counted = 0;
            for (int t = begin(n); t < begin(n + 1); t++)
                if (targets[t] >= 0) loss += double(losses[t]), counted++;
            add(n, loss, counted);
        }
    }

    /// Adds the rows of `other`, which has the same T and bins.
    void add(const LossByPosition& other);

    /// Every rank must call it. Sums over all ranks, with the same bits on each.
    void sum_over(Ranks& ranks);

    double targets() const { return total(TARGETS); }
    double loss() const { return total(LOSS) / targets(); }   // nats per target over all bins; NaN without targets

    std::vector<PositionBin> means() const;

private:
    enum { ROWS, LOSS, TARGETS, LOSS_LOSS, LOSS_TARGETS, TARGETS_TARGETS, SUMS };   // the last three are of products

    int bins() const { return int(sums_.size() / SUMS); }
    int begin(int n) const { return int(int64_t(n) * T_ / bins()); }
    void add(int n, double loss, double targets);
    double total(int sum) const;

    int T_;
    std::vector<double> sums_;   // (bins, SUMS) over the rows with targets in the bin, of a row's loss and targets in it
};

/// Rows of a printed table: ("0 to 31", "4.1234 +- 0.0123, 512 targets").
std::vector<std::pair<std::string, std::string>> rows_of_table(const std::vector<PositionBin>& bins);

/// [{"first":0,"last":31,"targets":512,"loss":4.12,"stderr":0.012},...] in full precision; null for NaN.
std::string as_json(const std::vector<PositionBin>& bins);
