#include "model/run/loss_by_position.h"

#include <algorithm>
#include <cmath>

#include "model/base/text.h"

LossByPosition::LossByPosition(int T, int bins) : T_(T), sums_(size_t(std::clamp(bins, 1, T))) {}

void LossByPosition::add(int n, double loss, double targets) {
    if (targets == 0) return;
    Sums& s = sums_[size_t(n)];
    s.rows++, s.loss += loss, s.targets += targets;
    s.loss_loss += loss * loss, s.loss_targets += loss * targets, s.targets_targets += targets * targets;
}

void LossByPosition::Sums::add(const Sums& other) {
    rows += other.rows, loss += other.loss, targets += other.targets;
    loss_loss += other.loss_loss, loss_targets += other.loss_targets, targets_targets += other.targets_targets;
}

void LossByPosition::add(const LossByPosition& other) {
    for (size_t n = 0; n < sums_.size(); n++) sums_[n].add(other.sums_[n]);
}

void LossByPosition::sum_over(Ranks& ranks) {
    const size_t count = sums_.size();
    std::vector<Sums> of_ranks(count * size_t(ranks.size()));
    std::copy(sums_.begin(), sums_.end(), of_ranks.begin() + std::ptrdiff_t(count) * ranks.rank());
    ranks.all_gather(of_ranks.data(), count * sizeof(Sums));
    std::fill(sums_.begin(), sums_.end(), Sums());
    for (size_t i = 0; i < of_ranks.size(); i++) sums_[i % count].add(of_ranks[i]);
}

double LossByPosition::targets() const {
    double all = 0;
    for (const Sums& s : sums_) all += s.targets;
    return all;
}

double LossByPosition::loss() const {
    double all = 0;
    for (const Sums& s : sums_) all += s.loss;
    return targets() > 0 ? all / targets() : NAN;
}

std::vector<PositionBin> LossByPosition::means() const {
    std::vector<PositionBin> found;
    for (int n = 0; n < bins(); n++) {
        const Sums& s = sums_[size_t(n)];
        const double mean = s.targets > 0 ? s.loss / s.targets : NAN;
        const double squares = std::max(0.0, s.loss_loss - 2 * mean * s.loss_targets + mean * mean * s.targets_targets);
        found.push_back({begin(n), begin(n + 1) - 1, int64_t(s.targets), mean,
                         s.rows < 2 ? NAN : std::sqrt(s.rows / (s.rows - 1) * squares) / s.targets});
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
    const auto number = [](double value) { return std::isfinite(value) ? text("%.17g", value) : std::string("null"); };
    std::string list;
    for (const PositionBin& bin : bins)
        list += text("%s{\"first\":%d,\"last\":%d,\"targets\":%lld,\"loss\":%s,\"stderr\":%s}", list.empty() ? "" : ",", bin.first,
                     bin.last, static_cast<long long>(bin.targets), number(bin.loss).c_str(), number(bin.standard_error).c_str());
    return "[" + list + "]";
}
