#include "model/attention_report.h"

#include <algorithm>
#include <cmath>

#include "attention/core/policy.h"
#include "model/report.h"

/// Sum over count; NaN for nothing.
struct Average {
    double sum = 0, count = 0;
    void add(double x) { sum += x, count++; }
    double value() const { return count > 0 ? sum / count : NAN; }
};

void add_layer(AttentionReport& report, const LayerStatistics& s) {
    const int B = s.B, NH = s.NH, T = s.T, tiles = (T + TILE - 1) / TILE;
    for (HeadTable* table : {&report.entropy, &report.normalised, &report.pairs, &report.tiles, &report.gate, &report.gate_off})
        table->emplace_back();
    for (int h = 0; h < NH; h++) {
        Average entropy, normalised, pairs, visited, gate, off;
        for (int b = 0; b < B; b++) {
            const size_t bh = size_t(b) * NH + h;
            for (int i = 0; i < T; i++) {
                const size_t row = bh * T + i, token = (size_t(b) * T + i) * NH + h;
                entropy.add(s.entropy[row]), pairs.add(s.pairs[row]);
                if (s.pairs[row] > 1) normalised.add(s.entropy[row] / std::log(s.pairs[row]));
                if (!s.gate.empty()) gate.add(s.gate[token]), off.add(s.gate[token] == 0);
            }
            for (int t = 0; t < tiles; t++) visited.add(s.tiles[bh * tiles + t]);
        }
        report.entropy.back().push_back(entropy.value());
        report.normalised.back().push_back(normalised.value());
        report.pairs.back().push_back(pairs.value() / ((T + 1) / 2.0));       // a row of dense causal attention sees (T + 1) / 2
        report.tiles.back().push_back(visited.value() / ((tiles + 1) / 2.0));
        report.gate.back().push_back(gate.value());
        report.gate_off.back().push_back(off.value());
    }
}

double mean_of(const HeadTable& table) {
    Average all;
    for (const auto& layer : table)
        for (double x : layer)
            if (!std::isnan(x)) all.add(x);
    return all.value();
}

std::string summary_of(const AttentionReport& r) {
    std::string line = text("entropy %.2f nats (%.2f of log keys), pairs %.1f%%, tiles %.1f%%", mean_of(r.entropy), mean_of(r.normalised),
                            100 * mean_of(r.pairs), 100 * mean_of(r.tiles));
    if (const double gate = mean_of(r.gate); !std::isnan(gate)) line += text(", gate %.2f (%.1f%% off)", gate, 100 * mean_of(r.gate_off));
    return line;
}

std::string CollapseWatch::look(const AttentionReport& now) {
    if (!first_) first_ = now.normalised;
    const std::vector<Head> before = std::exchange(collapsed_, {});
    std::string named;
    int fresh = 0;
    for (int l = 0; l < int(now.normalised.size()); l++)
        for (int h = 0; h < int(now.normalised[l].size()); h++) {
            const double is = now.normalised[l][h], was = (*first_)[l][h];
            if (!(is < 0.05 && is < was / 2)) continue;
            collapsed_.push_back({l, h});
            if (std::find(before.begin(), before.end(), Head(l, h)) != before.end() || fresh++ >= 4) continue;
            named += text("%s layer %d head %d (%.3f of log keys, %.3f at first)", named.empty() ? "" : ",", l, h, is, was);
        }
    if (fresh == 0) return "";
    return "warning: attention has collapsed onto single keys:" + named + (fresh > 4 ? text(" and %d more", fresh - 4) : "");
}
