// Observes attention during one forward pass, observed_forward(): layer by layer, the kernel's statistics, the gates and the weights
// of some rows are copied to the host and averaged there.
#pragma once
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "attention/kernel/call.h"
#include "model/attention_report.h"
#include "model/device/memory.cuh"
#include "model/gpt.h"
#include "model/operations/embedding.cuh"

/// Values that reveal weights: attention is a weighted sum of values, so where token j0 + d has unit vector d, channel d of the
/// output of row i is the weight P_ij of key j = j0 + d, whatever mechanism chose it. HS keys at a time.
template <class Device, class X>
class UnitValues {
public:
    UnitValues(int T, int NKV, int HS) : T_(T), NKV_(NKV), HS_(HS) {}

    /// 2 T rows: zeros, T unit vectors or fewer, zeros. from() lets tokens begin where token j0 gets the first unit vector.
    void take(BumpAllocator& memory) { rows_ = memory.template take<X>(2 * size_t(T_) * row()); }
    void write(Device device) {
        fill(device, rows_, 2 * size_t(T_) * row(), X{});
        const int units = std::min(T_, HS_);
        std::vector<X> identity(units * row(), X{});
        for (int d = 0; d < units; d++)
            for (int h = 0; h < NKV_; h++) identity[d * row() + size_t(h) * HS_ + d] = narrowed<X>(1);
        to_device(device, rows_ + size_t(T_) * row(), identity.data(), identity.size());
    }

    /// Preconditions: write(); in.T <= T. `in` with these values for 0 <= j0 <= T; with j0 = T all of them are zero.
    LayerInputs<X> in_place_of_values(LayerInputs<X> in, int j0) const {
        in.v = rows_ + size_t(T_ - j0) * row(), in.v_row = row();
        return in;
    }

private:
    size_t row() const { return size_t(NKV_) * HS_; }

    int T_, NKV_, HS_;
    X* rows_ = nullptr;   // (2 T, NKV, HS)
};

template <class Device, class X>
class Monitor {
public:
    using W = Wide<X>;
    static constexpr int ROWS = 64;   // of the first sequence, of which the weights are measured: all, or evenly spaced

    /// For batches of up to B x T; B = 0 takes no memory. Holds the statistics of one layer at a time.
    Monitor(int B, int T, const Qwen& net)
        : NH_(net.config.NH), HS_(net.config.HS), most_rows_(B ? std::min(T, ROWS) : 0), values_(B ? T : 0, net.config.NKV, HS_) {
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

    /// Whether the layer is one softmax over the model's own values.
    static bool can_weigh(const LayerFacts& facts) { return facts.branch_names.size() == 1 && !facts.reports_pairs; }

    /// Precondition: can_weigh() of the layer. Measures the weights of rows of the first sequence. `attend` runs the layer's
    /// attention on inputs of one sequence and returns its output (T, NH, HS) before the gate. It is called T / HS times, before
    /// the forward pass that the report is about, which overwrites what it leaves.
    template <class Attend>
    void weigh_keys(Device device, LayerInputs<X> in, Attend attend) {
        const std::vector<int32_t> rows = rows_to_weigh(in.T, most_rows_);
        const size_t width = size_t(NH_) * HS_;
        std::vector<X> out(rows.size() * width);
        weights_.assign(rows.size() * NH_ * in.T, 0);
        values_.write(device);
        to_device(device, chosen_, rows.data(), rows.size());
        in.B = 1;
        for (int j0 = 0; j0 < in.T; j0 += HS_) {
            const X* all = attend(values_.in_place_of_values(in, j0));
            embedding_forward(device, chosen_out_, chosen_, all, int(rows.size()), int(width));
            to_host(device, out.data(), chosen_out_, out.size());
            for (size_t row = 0; row < rows.size() * NH_; row++)
                for (int d = 0; d < std::min(HS_, in.T - j0); d++) weights_[row * in.T + j0 + d] = widened(out[row * HS_ + d]);
        }
    }

    /// Adds them to the report. Branches are matched by name, since layers may have different ones; `names` and `gates` are this
    /// layer's, in the order of its statistics.
    void finish_layer(Device device, const std::vector<std::string>& names, const std::vector<const W*>& gates, const W* reach, int B,
                      int T) {
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
                               on_host(device, gates[n], gates[n] ? rows : 0), weights_,
                               on_host(device, reach, reach ? size_t(B) * NH_ : 0)});
        }
        weights_.clear();
    }

    /// What was recorded since the last call.
    AttentionReport take_report() { return std::exchange(report_, {}); }

private:
    void lay_out() {
        of_layer_.entropy = memory_.template take<W>(rows_), of_layer_.pairs = memory_.template take<W>(rows_);
        of_layer_.tiles = memory_.template take<W>(tiles_), of_layer_.pair_gate = memory_.template take<W>(rows_);
        values_.take(memory_);
        chosen_ = memory_.template take<int32_t>(most_rows_);
        chosen_out_ = memory_.template take<X>(size_t(most_rows_) * NH_ * HS_);
    }
    static std::vector<double> on_host(Device device, const W* from, size_t n) {
        std::vector<W> copy(n);
        if (n) to_host(device, copy.data(), from, n);
        return {copy.begin(), copy.end()};
    }

    size_t rows_, tiles_;                 // of the layer with the most branches
    int NH_, HS_, most_rows_;
    UnitValues<Device, X> values_;
    int32_t* chosen_;                     // (most_rows_) positions of the rows whose weights are measured,
    X* chosen_out_;                       // (most_rows_, NH, HS) their outputs,
    std::vector<double> weights_;         // (their number, NH, T) and the weights; empty where a layer's are not measured
    std::vector<std::string> branches_;   // the distinct names of all layers, in order of first appearance
    Arena<Device> memory_;
    Statistics<X> of_layer_;
    AttentionReport report_;
};

/// GPT::forward(), of which the monitor records every layer's attention. Blocks on the device.
template <class Device, class X>
void observed_forward(Device device, GPT<Device, X>& gpt, const Batch& batch, Monitor<Device, X>& monitor) {
    const auto attend = [&](int l) {
        const LayerFacts& facts = gpt.net.layers[l].attention->facts;
        const LayerPasses<Device, X>& layer = gpt.attention(l);
        const LayerInputs<X> in = gpt.attention_inputs(l, batch.B, batch.T, batch.documents);
        LayerState<X>& state = gpt.layers[l].attention;
        if (monitor.can_weigh(facts))
            monitor.weigh_keys(device, in, [&](const LayerInputs<X>& one) {
                layer.forward(device, one, gpt.weights, state, gpt.scratch.attention, Statistics<X>{});
                return state.out;
            });
        gpt.layer_attention(device, l, batch, monitor.start_layer(device));
        monitor.finish_layer(device, facts.branch_names, layer.branch_gates(in, state),
                             std::is_same_v<Device, CPU> ? nullptr : state.score_inputs.reach, batch.B, batch.T);
        return batch.B * batch.T;
    };
    const AttentionOverride observed{nullptr, attend};
    gpt.forward(device, batch, &observed);
}
