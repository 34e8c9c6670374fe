// Looks at attention during one forward pass: layer after layer the kernel's statistics (E6) and the gate come to the host and are
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

    /// For batches of up to B x T; B = 0: for none, and then it takes no memory.
    Monitor(int B, int T, int NH) : rows_(size_t(B) * NH * T), tiles_(size_t(B) * NH * tiles_of(T)), NH_(NH) { lay_out(); }

    size_t bytes() const { return memory_.bytes(); }
    void allocate() {
        memory_.allocate();
        lay_out();
    }

    /// Where the next layer's kernel leaves its statistics. What a variant does not write stays NaN, which means "not known".
    Statistics<X> start_layer(Device device) {
        const W nan = std::numeric_limits<W>::quiet_NaN();
        fill(device, of_layer_.entropy, rows_, nan), fill(device, of_layer_.pairs, rows_, nan);
        fill(device, of_layer_.tiles, tiles_, nan);
        return of_layer_;
    }

    /// Takes them into the report; `gate` (B, T, NH) is null where there is none.
    void finish_layer(Device device, const W* gate, int B, int T) {
        const size_t rows = size_t(B) * NH_ * T, tiles = size_t(B) * NH_ * tiles_of(T);
        add_layer(report_, {B, NH_, T, on_host(device, of_layer_.entropy, rows), on_host(device, of_layer_.pairs, rows),
                            on_host(device, of_layer_.tiles, tiles), on_host(device, gate, gate ? rows : 0)});
    }

    /// What was seen since the last call.
    AttentionReport take_report() { return std::exchange(report_, {}); }

private:
    void lay_out() {
        of_layer_.entropy = memory_.template take<W>(rows_), of_layer_.pairs = memory_.template take<W>(rows_);
        of_layer_.tiles = memory_.template take<W>(tiles_);
    }
    static std::vector<double> on_host(Device device, const W* from, size_t n) {
        std::vector<W> numbers(n);
        if (n) to_host(device, numbers.data(), from, n);
        return {numbers.begin(), numbers.end()};
    }

    size_t rows_, tiles_;
    int NH_;
    Arena<Device> memory_;
    Statistics<X> of_layer_;
    AttentionReport report_;
};
