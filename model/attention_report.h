// What attention does, averaged over the rows of one batch: one number per layer and head. monitor.cuh measures it, the training
// program prints and logs it, scripts/plot_attention.py draws it.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// (L, NH); NaN where a variant does not say.
using HeadTable = std::vector<std::vector<double>>;

struct AttentionReport {
    HeadTable entropy;        // of a row's weights, in nats
    HeadTable normalised;     // entropy / log(keys that the row sees), over the rows that see more than one: 1 is uniform, 0 one key
    HeadTable pairs, tiles;   // seen and visited, as shares of dense causal attention's
    HeadTable gate;           // E3
    HeadTable gate_off;       // share of the gate's values that are exactly 0: heads switched off
};

/// What the kernel's statistics say of one layer, on the host; arrays are (B, NH, T), (B, NH, tiles) and (B, T, NH).
struct LayerStatistics {
    int B, NH, T;
    std::vector<double> entropy, pairs, tiles;
    std::vector<double> gate;   // empty where there is none
};

/// One more layer of the report.
void add_layer(AttentionReport& report, const LayerStatistics& layer);

/// Over all layers and heads that have a number; NaN where none has.
double mean_of(const HeadTable& table);

/// "entropy 3.01 nats (0.62 of log keys), pairs 50.2%, tiles 53.1%, gate 0.48 (1.3% off)"
std::string summary_of(const AttentionReport& report);

/// Notices heads whose attention collapses onto single keys. The criterion: the mean normalised entropy is below 0.05 and below half
/// of what this run measured first, so that a head that began sharp, or a mask that leaves little choice, is no alarm.
class CollapseWatch {
public:
    using Head = std::pair<int, int>;   // layer, head

    /// The heads that have collapsed since the last call, as a warning; "" where there are none.
    std::string look(const AttentionReport& now);

    const std::vector<Head>& collapsed() const { return collapsed_; }   // at the last look

private:
    std::optional<HeadTable> first_;
    std::vector<Head> collapsed_;
};
