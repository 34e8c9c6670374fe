// What attention does, averaged over the rows of one batch: one number per layer and head. monitor.cuh measures it, the training
// program prints and logs it, scripts/plot_attention.py draws it.
#pragma once
#include <string>
#include <utility>
#include <vector>

/// (L, NH); NaN where a variant does not say.
using HeadTable = std::vector<std::vector<double>>;

/// Of one softmax of a layer, in all layers that have one of its name.
struct BranchReport {
    std::string name;             // as Policy::branch_names() has it: "" where a layer has one softmax
    std::vector<bool> in_layer;   // (L) whether the layer has it; below, all is NaN where it has not
    HeadTable entropy;            // of a row's weights, in nats
    HeadTable normalised;         // entropy / log(keys that the row sees), over rows that see more than one: from 0, one key, to 1
    HeadTable pairs, tiles;       // seen and visited, as shares of dense causal attention's
    HeadTable gate;               // that multiplies the output of a token and head
    HeadTable gate_off;           // share of the gate's values that are exactly 0: heads switched off
    HeadTable pair_gate;          // inside the scores (Policy::pair_gate()), over the pairs that are seen
};
using AttentionReport = std::vector<BranchReport>;

/// What the kernel's statistics say of one layer, on the host; arrays are (B, NH, T), tiles (B, NH, tiles), gate (B, T, NH).
struct LayerStatistics {
    int B, NH, T;
    std::vector<double> entropy, pairs, tiles, pair_gate;
    std::vector<double> gate;   // empty where there is none
};

/// One more layer of a report: one that has this softmax, and one of NH heads that has not.
void add_layer(BranchReport& report, const LayerStatistics& layer);
void add_layer_without(BranchReport& report, int NH);

/// Over all layers and heads that have a number; NaN where none has.
double mean_of(const HeadTable& table);

/// One table of all branches that a layer has, added up: what it comes to in pairs or tiles.
HeadTable sum_of(const AttentionReport& report, HeadTable BranchReport::*table);

/// "entropy 3.01 nats (0.62 of log keys), pairs 50.2%, tiles 53.1%, gate 0.48 (1.3% off)"; of several branches first the sums of
/// pairs and tiles, then "; cmp: entropy 1.20 nats ..." and so on, "; one softmax: ..." for layers that have no more.
std::string summary_of(const AttentionReport& report);

/// Notices heads whose attention collapses onto single keys. The criterion: the mean normalised entropy is below 0.05 and below
/// half of what this run measured first, so that a head that began sharp, or a mask that leaves little choice, is no alarm.
class CollapseWatch {
public:
    struct Head {
        int branch, layer, head;
        bool operator==(const Head&) const = default;
    };

    /// The heads that have collapsed since the last call, as a warning; "" where there are none.
    std::string look(const AttentionReport& now);

    const std::vector<Head>& collapsed() const { return collapsed_; }   // at the last look

private:
    bool fallen(const AttentionReport& now, const Head& at) const;
    AttentionReport first_;
    std::vector<Head> collapsed_;
};

/// A look as log.jsonl has it, key by key. A branch's name comes behind a dot ("entropy.slc"); where there are several, "pairs" and
/// "tiles" are the sums of each layer, so those of its one softmax where it has no more. "collapsed" has a line [layer, head] for
/// each collapsed head.
std::vector<std::pair<std::string, HeadTable>> tables_of(const AttentionReport& report,
                                                         const std::vector<CollapseWatch::Head>& collapsed);
