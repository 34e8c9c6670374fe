#include "model/run/loss_by_position.h"

#include <algorithm>
#include <cmath>

#include "model/base/json.h"
#include "model/base/text.h"

LossByPosition::LossByPosition(int T, int bins) : T_(T), sums_(size_t(std::clamp(bins, 1, T)) * SUMS) {}

void LossByPosition::add(int n, double loss, double targets) {
    if (targets == 0) return;
    double* const s = &sums_[size_t(n) * SUMS];
    s[ROWS]++, s[LOSS] += loss, s[TARGETS] += targets;
    s[LOSS_LOSS] += loss * loss, s[LOSS_TARGETS] += loss * targets, s[TARGETS_TARGETS] += targets * targets;
}

void LossByPosition::add(const LossByPosition& other) {
    for (size_t i = 0; i < sums_.size(); i++) sums_[i] += other.sums_[i];
}

void LossByPosition::sum_over(Ranks& ranks) { ranks.sum(sums_.data(), sums_.size()); }

double LossByPosition::total(int sum) const {
    double all = 0;
    for (int n = 0; n < bins(); n++) all += sums_[size_t(n * SUMS + sum)];
    return all;
}

std::vector<PositionBin> LossByPosition::means() const {
    std::vector<PositionBin> found;
    for (int n = 0; n < bins(); n++) {
        const double* const s = &sums_[size_t(n) * SUMS];
        const double mean = s[LOSS] / s[TARGETS];
        const double squares = std::max(0.0, s[LOSS_LOSS] - 2 * mean * s[LOSS_TARGETS] + mean * mean * s[TARGETS_TARGETS]);
        found.push_back({begin(n), begin(n + 1) - 1, int64_t(s[TARGETS]), mean,
                         s[ROWS] < 2 ? NAN : std::sqrt(s[ROWS] / (s[ROWS] - 1) * squares) / s[TARGETS]});
    }
    return found;
}

std::vector<std::pair<std::string, std::string>> rows_of_table(const std::vector<PositionBin>& bins) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const PositionBin& bin : bins) {
        std::string shown = bin.targets ? text("%.4f", bin.loss) : "-";
        if (!std::isnan(bin.standard_error)) shown += text(" +- %.4f", bin.standard_error);
        shown += text(", %lld targets", static_cast<long long>(bin.targets));
        rows.emplace_back(text("%d to %d", bin.first, bin.last), shown);
    }
    return rows;
}

std::string as_json(const std::vector<PositionBin>& bins) {
    nlohmann::ordered_json list = nlohmann::json::array();
    for (const PositionBin& bin : bins)   // NaN becomes null
        list.push_back({{"first", bin.first}, {"last", bin.last}, {"targets", bin.targets}, {"loss", bin.loss},
                        {"stderr", bin.standard_error}});
    return written(list);
}
