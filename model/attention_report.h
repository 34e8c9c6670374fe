// Attention statistics averaged over the rows of one batch: one value per layer and head. monitor.cuh measures them, the training
// program prints and logs them, scripts/plot_attention.py plots them.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// (L, NH); NaN where unknown.
using HeadTable = std::vector<std::vector<double>>;

/// One softmax branch, in all layers that have a branch of this name.
struct BranchReport {
    std::string name;             // from branch_names() (attention/layer_of.h); "" if a layer has one softmax
    std::vector<bool> in_layer;   // (L) whether the layer has it; all tables are NaN where it does not
    HeadTable entropy;            // of a row's weights, in nats
    HeadTable normalised;         // entropy / log(visible keys), over rows that see several keys: 0 (one key) to 1 (uniform)
    HeadTable mass_95, mass_99;   // fewest keys that hold 95% and 99% of a row's weight, as a share of those that it sees
    HeadTable pairs, tiles;       // visible pairs and visited tiles, as fractions of dense causal attention's
    HeadTable gate;               // multiplies the output of a token and head
    HeadTable gate_off;           // fraction of gate values that are exactly 0: heads switched off
    HeadTable pair_gate;          // inside the scores (Policy::pair_gate()), over visible pairs
    HeadTable gate_reach;         // Features::reach, the farthest of the batch; NaN on a CPU
};
using AttentionReport = std::vector<BranchReport>;

/// The kernel's statistics of one branch of a layer, on the host.
struct LayerStatistics {
    int B, NH, T;
    std::vector<double> entropy, pairs, tiles, pair_gate;   // (B, NH, T), tiles (B, NH, tiles)
    std::vector<double> gate;                               // (B, T, NH), empty if there is none
    std::vector<double> weights = {};                       // (R, NH, T) of rows_to_weigh(T, R), empty if not measured
    std::vector<double> reach = {};                         // (B, NH), empty on a CPU and without Features::reach
};

/// Positions of at most R of T rows, evenly spaced, the last among them.
std::vector<int32_t> rows_to_weigh(int T, int R);

/// The fewest of these weights (none negative) that make `share` of their sum; sums of rounded weights may fall short of it by a
/// millionth. `weights` must be in descending order.
int keys_that_hold(double share, const std::vector<double>& weights);

/// Appends a layer to a report: one with this branch, or one of NH heads without it.
void add_layer(BranchReport& report, const LayerStatistics& layer);
void add_layer_without(BranchReport& report, int NH);

/// Mean over all layers and heads whose value is known; NaN if none is.
double mean_of(const HeadTable& table);

/// A table summed over the branches of each layer, as pairs or tiles are.
HeadTable sum_of(const AttentionReport& report, HeadTable BranchReport::*table);

/// "entropy 3.01 nats (0.62 of log keys), pairs 50.2%, tiles 53.1%, gate 0.48 (1.3% off)"; with several branches, first the sums of
/// pairs and tiles, then "; cmp: entropy 1.20 nats ..." and so on, "; one softmax: ..." for layers with a single branch.
std::string summary_of(const AttentionReport& report);

/// Detects heads whose attention collapses onto single keys. Criterion: mean normalised entropy below 0.05 and below half of this
/// run's first measurement, so that a head that started sharp, or a mask that leaves little choice, raises no alarm.
class CollapseWatch {
public:
    struct Head {
        int branch, layer, head;
        bool operator==(const Head&) const = default;
    };

    /// A warning about the heads that have collapsed since the last call; "" if there are none.
    std::string observe(const AttentionReport& now);

    const std::vector<Head>& collapsed() const { return collapsed_; }   // at the last observation

private:
    bool has_collapsed(const AttentionReport& now, const Head& at) const;
    AttentionReport first_;
    std::vector<Head> collapsed_;
};

/// A report as log.jsonl stores it, key by key. A branch's name follows a dot ("entropy.slc"); with several branches, plain "pairs"
/// and "tiles" are each layer's sums. "collapsed" has one row [layer, head] per collapsed head.
std::vector<std::pair<std::string, HeadTable>> tables_of(const AttentionReport& report,
                                                         const std::vector<CollapseWatch::Head>& collapsed);
