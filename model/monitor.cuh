// Looks at attention during one forward pass: layer after layer the kernel's statistics (E6) and the gates come to the host and are
// averaged there. The waiting and copying is outside of training, which pays nothing for a monitor that is not asked.
#pragma once
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "attention/kernel/arguments.h"
#include "attention/kernel/walk.h"
#include "model/attention_report.h"
#include "model/device/memory.cuh"
#include "model/qwen.h"

template <class Device, class X>
class Monitor {
public:
    using W = Wide<X>;

    /// For batches of up to B x T; B = 0: for none, and then it takes no memory. There is room for the statistics of one layer at a
    /// time, of whichever has the most branches.
    Monitor(int B, int T, const Qwen& net) : NH_(net.config.NH) {
        size_t most = 0;
        for (const Layer& layer : net.layers) {
            const std::vector<std::string>& names = layer.attention->facts.branch_names;
            most = std::max(most, names.size());
            for (const std::string& name : names)
                if (std::find(branches_.begin(), branches_.end(), name) == branches_.end()) branches_.push_back(name);
        }
        rows_ = most * B * NH_ * T, tiles_ = most * B * NH_ * tiles_of(T);
        lay_out();
    }

    size_t bytes() const { return memory_.bytes(); }
    void allocate() {
        memory_.allocate();
        lay_out();
    }

    /// Where the next layer's kernel leaves its statistics, those of each branch in of_branch(). What a variant does not write
    /// stays NaN, which means "not known".
    Statistics<X> start_layer(Device device) {
        const W nan = std::numeric_limits<W>::quiet_NaN();
        fill(device, of_layer_.entropy, rows_, nan), fill(device, of_layer_.pairs, rows_, nan);
        fill(device, of_layer_.pair_gate, rows_, nan), fill(device, of_layer_.tiles, tiles_, nan);
        return of_layer_;
    }

    /// Takes them into the report, where a branch goes by its name: layers may have different ones. `names` and `gates` are the
    /// layer's, in the order in which its statistics lie.
    void finish_layer(Device device, const std::vector<std::string>& names, const std::vector<const W*>& gates, int B, int T) {
        const size_t rows = size_t(B) * NH_ * T, tiles = size_t(B) * NH_ * tiles_of(T);
        if (report_.empty())
            for (const std::string& name : branches_) report_.emplace_back().name = name;
        for (BranchReport& branch : report_) {
            const size_t n = std::find(names.begin(), names.end(), branch.name) - names.begin();
            if (n == names.size()) {
                add_layer_without(branch, NH_);
                continue;
            }
            const Statistics<X> of = of_layer_.of_branch(int(n), rows, tiles);
            add_layer(branch, {B, NH_, T, on_host(device, of.entropy, rows), on_host(device, of.pairs, rows),
                               on_host(device, of.tiles, tiles), on_host(device, of.pair_gate, rows),
                               on_host(device, gates[n], gates[n] ? rows : 0)});
        }
    }

    /// What was seen since the last call.
    AttentionReport take_report() { return std::exchange(report_, {}); }

private:
    void lay_out() {
        of_layer_.entropy = memory_.template take<W>(rows_), of_layer_.pairs = memory_.template take<W>(rows_);
        of_layer_.tiles = memory_.template take<W>(tiles_), of_layer_.pair_gate = memory_.template take<W>(rows_);
    }
    static std::vector<double> on_host(Device device, const W* from, size_t n) {
        std::vector<W> numbers(n);
        if (n) to_host(device, numbers.data(), from, n);
        return {numbers.begin(), numbers.end()};
    }

    size_t rows_, tiles_;                 // of all branches that a layer may have
    int NH_;
    std::vector<std::string> branches_;   // of all layers, each name once, in the order in which layers have them
    Arena<Device> memory_;
    Statistics<X> of_layer_;
    AttentionReport report_;
};
