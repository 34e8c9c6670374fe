// Matrices in a flat buffer that muon_momentum() and muon_update() move, on every device.
#pragma once
#include <omp.h>

#include "model/operations/muon.cuh"
#include "tests/adamw_case.h"

/// A list of Muon's matrices of these shapes with weights and momentum.
template <class X, class Device = CPU>
struct MuonMatrices {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;
    Device device;
    TensorList list{Stored::as_computed, Optimizer::muon};
    std::vector<UpdateRange> host_ranges;
    On<Device, X> weights, work;
    On<Device, W> master_copy, m, gradients;
    On<Device, UpdateRange> ranges;
    On<Device, double> squares;
    Muon<X> muon;

    MuonMatrices(const std::vector<std::vector<int64_t>>& shapes, const std::vector<W>& start, Device device_ = {})
        : device(device_), host_ranges(listed(shapes)), weights(start), work(std::vector<W>(8 * list.size() * THREADS)), master_copy(start),
          m(std::vector<W>(start.size())), gradients(m.numbers()), ranges(host_ranges), squares(std::vector<double>(THREADS)) {
        muon.ranges = ranges.data(), muon.range_count = int(host_ranges.size());
        muon.matrices = muon_matrices(list, host_ranges);
        for (int n = 0; n < (std::is_same_v<Device, CPU> ? THREADS : 1); n++) {
            X* const own = work.data() + 8 * list.size() * size_t(n);
            muon.workspaces.push_back({own, own + 2 * list.size(), own + 4 * list.size(), own + 6 * list.size(), squares.data() + n});
        }
    }

    W* master() {
        if constexpr (rounds) return master_copy.data();
        else return weights.data();
    }
    /// The weights in full precision.
    std::vector<W> numbers() { return rounds ? master_copy.numbers() : std::vector<W>(weights.numbers()); }

    /// One step; whether a total is finite is up to `totals`.
    void update(const std::vector<W>& of_step, const AdamW& o, StepTotals totals, int64_t step) {
        On<Device, W> g(of_step);
        On<Device, StepTotals> sums({totals});
        muon_momentum(device, m.data(), g.data(), muon, sums.data(), o);
        muon_update(device, weights.data(), master(), g.data(), muon, sums.data(), o, step);
        weights.numbers();   // waits for a GPU before the arrays are freed
    }

private:
    static constexpr int THREADS = 3;

    std::vector<UpdateRange> listed(const std::vector<std::vector<int64_t>>& shapes) {
        int number = 0;
        for (const auto& shape : shapes) list.add_hidden_matrix(std::to_string(number++), shape, zeros());
        return muon_ranges(list, Shards(list.size(), 0, 1), 33);
    }
};

/// A loss or a norm that is not finite leaves everything as it is.
template <class X, class Device>
void check_broken_totals_of_muon(Device device) {
    using W = Wide<X>;
    const size_t n = 24 * 16;
    MuonMatrices<X, Device> tested({{24, 16}}, random_numbers<W>(n, 1), device);
    const std::vector<W> weights = tested.weights.numbers(), master = tested.master_copy.numbers();
    for (const StepTotals& totals : BROKEN_TOTALS) {
        tested.update(random_numbers<W>(n, 2), {}, totals, 1);
        CHECK(bit_difference(tested.weights.numbers(), weights) == "");
        CHECK(bit_difference(tested.master_copy.numbers(), master) == "");
        CHECK(bit_difference(tested.m.numbers(), std::vector<W>(n)) == "");
    }
}
