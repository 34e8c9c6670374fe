// Looks at attention during one forward pass: layer after layer the kernel's statistics (E6) and the gates come to the host and are
// averaged there. The waiting and copying is outside of training, which pays nothing for a monitor that is not asked.
#pragma once
#include <limits>

#include "attention/core/arguments.h"
#include "attention/core/walk.h"
#include "model/attention_report.h"
#include "model/memory.cuh"

template <class Device, class X>
class Monitor {
public:
    using W = Wide<X>;

    /// For batches of up to B x T and a variant's Policy::branch_names(); B = 0: for none, and then it takes no memory.
    Monitor(int B, int T, int NH, std::vector<std::string> branches)
        : rows_(branches.size() * B * NH * T), tiles_(branches.size() * B * NH * tiles_of(T)), NH_(NH),
          branches_(std::move(branches)) {
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

    /// Takes them into the report; `gates` are the layer's Policy::branch_gates().
    void finish_layer(Device device, const std::vector<const W*>& gates, int B, int T) {
        const size_t rows = size_t(B) * NH_ * T, tiles = size_t(B) * NH_ * tiles_of(T);
        if (report_.empty())
            for (const std::string& name : branches_) report_.emplace_back().name = name;
        for (size_t n = 0; n < branches_.size(); n++) {
            const Statistics<X> of = of_layer_.of_branch(int(n), rows, tiles);
            add_layer(report_[n], {B, NH_, T, on_host(device, of.entropy, rows), on_host(device, of.pairs, rows),
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

    size_t rows_, tiles_;
    int NH_;
    std::vector<std::string> branches_;
    Arena<Device> memory_;
    Statistics<X> of_layer_;
    AttentionReport report_;
};
