// Observes attention during one forward pass: layer by layer, the kernel's statistics (E6) and the gates are copied to the host and
// averaged there. Training pays nothing for a monitor that is not passed to gpt_forward().
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

    /// For batches of up to B x T; B = 0 takes no memory. Holds the statistics of one layer at a time.
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

    /// Where the next layer's kernel writes its statistics, each branch's in of_branch(). What a variant does not write stays NaN.
    Statistics<X> start_layer(Device device) {
        const W nan = std::numeric_limits<W>::quiet_NaN();
        fill(device, of_layer_.entropy, rows_, nan), fill(device, of_layer_.pairs, rows_, nan);
        fill(device, of_layer_.pair_gate, rows_, nan), fill(device, of_layer_.tiles, tiles_, nan);
        return of_layer_;
    }

    /// Adds them to the report. Branches are matched by name, since layers may have different ones; `names` and `gates` are this
    /// layer's, in the order of its statistics.
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

    /// What was recorded since the last call.
    AttentionReport take_report() { return std::exchange(report_, {}); }

private:
    void lay_out() {
        of_layer_.entropy = memory_.template take<W>(rows_), of_layer_.pairs = memory_.template take<W>(rows_);
        of_layer_.tiles = memory_.template take<W>(tiles_), of_layer_.pair_gate = memory_.template take<W>(rows_);
    }
    static std::vector<double> on_host(Device device, const W* from, size_t n) {
        std::vector<W> copy(n);
        if (n) to_host(device, copy.data(), from, n);
        return {copy.begin(), copy.end()};
    }

    size_t rows_, tiles_;                 // of the layer with the most branches
    int NH_;
    std::vector<std::string> branches_;   // the distinct names of all layers, in order of first appearance
    Arena<Device> memory_;
    Statistics<X> of_layer_;
    AttentionReport report_;
};
