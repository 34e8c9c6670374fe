#include "model/attention_report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "attention/mechanism.h"
#include "model/base/text.h"

/// Sum over count; NaN if empty.
struct Average {
    double sum = 0, count = 0;
    void add(double x, double of = 1) { sum += x, count += of; }
    double value() const { return count > 0 ? sum / count : NAN; }
};

/// The tables of a branch by their keys in log.jsonl.
static constexpr std::pair<const char*, HeadTable BranchReport::*> TABLES[] = {
    {"entropy", &BranchReport::entropy}, {"normalised_entropy", &BranchReport::normalised}, {"mass_95", &BranchReport::mass_95},
    {"mass_99", &BranchReport::mass_99}, {"pairs", &BranchReport::pairs},                   {"tiles", &BranchReport::tiles},
    {"gate", &BranchReport::gate},       {"gate_off", &BranchReport::gate_off},             {"pair_gate", &BranchReport::pair_gate},
    {"gate_reach", &BranchReport::gate_reach}};

std::vector<int32_t> rows_to_weigh(int T, int R) {
    std::vector<int32_t> rows(std::min(T, R));
    for (size_t n = 0; n < rows.size(); n++) rows[n] = int32_t((n + 1) * T / rows.size()) - 1;
    return rows;
}

int keys_that_hold(double share, const std::vector<double>& weights) {
    const double enough = share * (1 - 1e-6) * std::accumulate(weights.begin(), weights.end(), 0.0);
    double sum = 0;
    int keys = 0;
    while (keys < int(weights.size()) && sum < enough) sum += weights[keys++];
    return keys;
}

/// Appends mass_95 and mass_99 of head h, over the rows that see something.
static void add_mass(BranchReport& report, const LayerStatistics& s, int h) {
    const size_t count = s.weights.size() / (size_t(s.NH) * s.T);
    const std::vector<int32_t> rows = rows_to_weigh(s.T, int(count));
    Average mass_95, mass_99;
    for (size_t r = 0; r < count; r++) {
        const auto begin = s.weights.begin() + (r * s.NH + h) * s.T;
        std::vector<double> weights(begin, begin + s.T);
        const double seen = s.pairs[size_t(h) * s.T + rows[r]], sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        if (!(seen > 0) || !std::isfinite(sum)) continue;   // NaN cannot be put in order
        std::sort(weights.begin(), weights.end(), std::greater<>());
        mass_95.add(keys_that_hold(0.95, weights) / seen), mass_99.add(keys_that_hold(0.99, weights) / seen);
    }
    report.mass_95.back().push_back(mass_95.value()), report.mass_99.back().push_back(mass_99.value());
}

void add_layer(BranchReport& report, const LayerStatistics& s) {
    const int B = s.B, NH = s.NH, T = s.T, tiles = (T + TILE - 1) / TILE;
    report.in_layer.push_back(true);
    for (const auto& [key, table] : TABLES) (report.*table).emplace_back();
    for (int h = 0; h < NH; h++) {
        Average entropy, normalised, pairs, visited, gate, off, pair_gate;
        double reach = s.reach.empty() ? NAN : 0;
        for (int b = 0; b < B; b++) {
            const size_t bh = size_t(b) * NH + h;
            if (!s.reach.empty()) reach = std::max(reach, s.reach[bh]);
            for (int i = 0; i < T; i++) {
                const size_t row = bh * T + i, token = (size_t(b) * T + i) * NH + h;
                entropy.add(s.entropy[row]), pairs.add(s.pairs[row]), pair_gate.add(s.pair_gate[row], s.pairs[row]);
                if (s.pairs[row] > 1) normalised.add(s.entropy[row] / std::log(s.pairs[row]));
                if (!s.gate.empty()) gate.add(s.gate[token]), off.add(s.gate[token] == 0);
            }
            for (int t = 0; t < tiles; t++) visited.add(s.tiles[bh * tiles + t]);
        }
        report.entropy.back().push_back(entropy.value());
        report.normalised.back().push_back(normalised.value());
        add_mass(report, s, h);
        report.pairs.back().push_back(pairs.value() / ((T + 1) / 2.0));       // a row of dense causal attention sees (T + 1) / 2
        report.tiles.back().push_back(visited.value() / ((tiles + 1) / 2.0));
        report.gate.back().push_back(gate.value());
        report.gate_off.back().push_back(off.value());
        report.pair_gate.back().push_back(pair_gate.value());
        report.gate_reach.back().push_back(reach);
    }
}

void add_layer_without(BranchReport& report, int NH) {
    report.in_layer.push_back(false);
    for (const auto& [key, table] : TABLES) (report.*table).emplace_back(NH, NAN);
}

double mean_of(const HeadTable& table) {
    Average all;
    for (const auto& layer : table)
        for (double x : layer)
            if (!std::isnan(x)) all.add(x);
    return all.value();
}

HeadTable sum_of(const AttentionReport& report, HeadTable BranchReport::*table) {
    HeadTable sum = report.front().*table;
    for (auto& layer : sum) std::fill(layer.begin(), layer.end(), 0.0);
    for (const BranchReport& branch : report)
        for (size_t l = 0; l < sum.size(); l++) {
            if (!branch.in_layer[l]) continue;   // NaN in a branch that the layer does have makes the sum unknown
            for (size_t h = 0; h < sum[l].size(); h++) sum[l][h] += (branch.*table)[l][h];
        }
    return sum;
}

static std::string summary_of_branch(const BranchReport& r) {
    const double normalised = mean_of(r.normalised), mass = mean_of(r.mass_95);
    const double gate = mean_of(r.gate), pair_gate = mean_of(r.pair_gate);
    std::string line = text("entropy %.2f nats", mean_of(r.entropy));
    if (!std::isnan(normalised)) line += text(" (%.2f of log keys)", normalised);
    if (!std::isnan(mass)) line += text(", 95%% of the mass on %.1f%% of the keys", 100 * mass);
    line += text(", pairs %.1f%%, tiles %.1f%%", 100 * mean_of(r.pairs), 100 * mean_of(r.tiles));
    if (!std::isnan(gate)) line += text(", gate %.2f (%.1f%% off)", gate, 100 * mean_of(r.gate_off));
    if (!std::isnan(pair_gate)) line += text(", pair gate %.2f", pair_gate);
    double reach = 0;
    for (const auto& layer : r.gate_reach)
        for (double x : layer) reach = std::max(reach, std::isnan(x) ? 0 : x);
    if (reach > 0) line += text(", farthest gate argument %.1f", reach);
    if (reach > MOST_REACH) line += text(" (beyond %.0f: slower kernel in bf16)", MOST_REACH);
    return line;
}

std::string summary_of(const AttentionReport& report) {
    if (report.size() == 1) return summary_of_branch(report[0]);
    std::string line = text("pairs %.1f%%, tiles %.1f%%", 100 * mean_of(sum_of(report, &BranchReport::pairs)),
                            100 * mean_of(sum_of(report, &BranchReport::tiles)));
    for (const BranchReport& branch : report)
        line += "; " + (branch.name.empty() ? "one softmax" : branch.name) + ": " + summary_of_branch(branch);
    return line;
}

bool CollapseWatch::has_collapsed(const AttentionReport& now, const Head& at) const {
    const double is = now[at.branch].normalised[at.layer][at.head], was = first_[at.branch].normalised[at.layer][at.head];
    return is < 0.05 && is < was / 2;
}

std::string CollapseWatch::observe(const AttentionReport& now) {
    if (first_.empty()) first_ = now;
    const std::vector<Head> before = std::exchange(collapsed_, {});
    for (int n = 0; n < int(now.size()); n++)
        for (int l = 0; l < int(now[n].normalised.size()); l++)
            for (int h = 0; h < int(now[n].normalised[l].size()); h++)
                if (has_collapsed(now, {n, l, h})) collapsed_.push_back({n, l, h});
    std::string named;
    int fresh = 0;
    for (const Head& at : collapsed_) {
        if (std::find(before.begin(), before.end(), at) != before.end() || fresh++ >= 4) continue;
        const BranchReport &is = now[at.branch], &was = first_[at.branch];
        named += text("%s layer %d head %d%s%s (%.3f of log keys, %.3f at first)", named.empty() ? "" : ",", at.layer, at.head,
                      is.name.empty() ? "" : " of ", is.name.c_str(), is.normalised[at.layer][at.head],
                      was.normalised[at.layer][at.head]);
    }
    if (fresh == 0) return "";
    return "warning: attention has collapsed onto single keys:" + named + (fresh > 4 ? text(" and %d more", fresh - 4) : "");
}

std::vector<std::pair<std::string, HeadTable>> tables_of(const AttentionReport& report,
                                                         const std::vector<CollapseWatch::Head>& collapsed) {
    std::vector<std::pair<std::string, HeadTable>> tables;
    const bool several = report.size() > 1;
    if (several) {
        tables.emplace_back("pairs", sum_of(report, &BranchReport::pairs));
        tables.emplace_back("tiles", sum_of(report, &BranchReport::tiles));
    }
    for (int n = 0; n < int(report.size()); n++) {
        const BranchReport& r = report[n];
        const std::string of_branch = r.name.empty() ? "" : "." + r.name;
        for (const auto& [key, table] : TABLES) {
            const bool is_summed = table == &BranchReport::pairs || table == &BranchReport::tiles;   // above
            if (several && r.name.empty() && is_summed) continue;
            tables.emplace_back(key + of_branch, r.*table);
        }
        HeadTable& heads = tables.emplace_back("collapsed" + of_branch, HeadTable()).second;
        for (const CollapseWatch::Head& at : collapsed)
            if (at.branch == n) heads.push_back({double(at.layer), double(at.head)});
    }
    return tables;
}
