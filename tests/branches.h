// Descriptions (operation.h) of what branches of attention are made with: rows.cuh and merge.cuh, for every device.
#pragma once
#include <cmath>

#include "attention/branches/merge.cuh"
#include "tests/operation.h"

/// Every step-th token, counted from the end; where to begin depends on sequence and head. Some heads have an empty last row.
struct SomeRows {
    static constexpr bool per_head = true;
    int count = 0, T = 0, step = 1;
    SomeRows() = default;
    SomeRows(int T_, int step_) : count((T_ + step_ - 1) / step_), T(T_), step(step_) {}
    constexpr int last(int b, int h) const { return T - 1 - (2 * b + h) % step; }
    constexpr int token(int b, int h, int row) const { return std::max(-1, last(b, h) - row * step); }
    constexpr int row(int b, int h, int token) const {
        const int behind = last(b, h) - token;
        return behind < 0 || behind % step ? -1 : behind / step;
    }
};

/// Rows of a token-major array with a gap behind each token, into the order of a branch. With `listed` the rows come from memory.
struct GatherRows {
    RowShape s;
    SomeRows rows;
    bool listed;
    Write write;
    static constexpr int GAP = 8;
    static constexpr bool any_threads = true;
    int length() const { return s.group(); }
    size_t stride() const { return size_t(s.heads) * s.HS + GAP; }
    size_t branch_size() const { return size_t(s.B) * rows.count * s.NH * s.HS; }
    std::vector<ArrayOf> inputs() const { return {{"from", s.B * s.T * stride(), 0, true}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int b = 0; b < s.B; b++)
            for (int r = 0; r < rows.count; r++)
                for (int h = 0; h < s.NH; h++)
                    for (int d = 0; d < s.HS; d++) {
                        const int t = rows.token(b, h, r), home = h * s.heads / s.NH;
                        out.push_back(t < 0 ? 0 : in[0][(b * s.T + t) * stride() + home * s.HS + d]);
                    }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        On<Device, X> out(buffer<Wide<X>>(branch_size(), Write::overwrite)), from(in[0]);
        with_rows(device, [&](const auto& any) { gather_rows(device, out.data(), Heads<const X>{from.data(), stride()}, any, s); });
        return out.numbers();
    }
    /// Gradients come back wide, as dq and dk do, and in X, as dv does.
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        using W = Wide<X>;
        On<Device, W> wide(with_clean_gaps(buffer<W>(in[0].size(), write))), dwide(dout);
        On<Device, X> narrow(with_clean_gaps(buffer<W>(in[0].size(), write))), dnarrow(dout);
        with_rows(device, [&](const auto& any) {
            scatter_add_rows(device, Heads<W>{wide.data(), stride()}, dwide.data(), any, s, write);
            scatter_add_rows(device, Heads<X>{narrow.data(), stride()}, dnarrow.data(), any, s, write);
        });
        const std::vector<W> exact = contribution(wide.numbers(), write), rounded = contribution(narrow.numbers(), write);
        CHECK(difference(rounded, exact, {sizeof(X) == 2 ? 0x1p-7 : 1e-6, 1e-6}) == "");
        return {exact};
    }

private:
    /// Fills the gaps between rows, which no kernel writes.
    template <class W>
    std::vector<W> with_clean_gaps(std::vector<W> numbers) const {
        for (size_t n = 0; n < numbers.size(); n++)
            if (n % stride() >= stride() - GAP) numbers[n] = write == Write::add ? W(0.25) : W(0);
        return numbers;
    }
    template <class Device, class Use>
    void with_rows(Device, Use use) const {
        if (!listed) return use(rows);
        std::vector<int> tokens, of_tokens;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++) {
                for (int r = 0; r < rows.count; r++) tokens.push_back(rows.token(b, h, r));
                for (int t = 0; t < s.T; t++) of_tokens.push_back(rows.row(b, h, t));
            }
        On<Device, int> on_tokens(tokens), on_of_tokens(of_tokens);
        use(ListedRows{rows.count, s.T, s.NH, on_tokens.data(), on_of_tokens.data()});
    }
};

/// One number per row and head; 7 for an empty row.
struct GatherNumbers {
    int B, T, NH;
    SomeRows rows;
    static constexpr bool any_threads = true;
    int length() const { return 1; }
    std::vector<ArrayOf> inputs() const { return {{"from", size_t(B) * NH * T, 0, true}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (int b = 0; b < B; b++)
            for (int h = 0; h < NH; h++)
                for (int r = 0; r < rows.count; r++) {
                    const int t = rows.token(b, h, r);
                    out.push_back(t < 0 ? 7 : in[0][(b * NH + h) * T + t]);
                }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        using W = Wide<X>;
        On<Device, W> out(buffer<W>(size_t(B) * NH * rows.count, Write::overwrite)), from(in[0]);
        gather_scalars(device, out.data(), static_cast<const W*>(from.data()), rows, B, T, NH, W(7));
        return out.numbers();
    }
};

/// Branches of every second, third, ... token: some tokens are in several of them, some in none.
struct Merge {
    RowShape s;
    std::vector<SomeRows> rows;
    static constexpr bool any_threads = true;
    int length() const { return int(rows.size()) * s.HS; }
    size_t size() const { return size_t(s.B) * s.T * s.NH * s.HS; }
    size_t rows_of(size_t n) const { return size_t(s.B) * rows[n].count * s.NH; }

    /// The outputs of the branches, then their log-sum-exps.
    std::vector<ArrayOf> inputs() const {
        std::vector<ArrayOf> all;
        for (size_t n = 0; n < rows.size(); n++) all.push_back({"out", rows_of(n) * s.HS});
        for (size_t n = 0; n < rows.size(); n++) all.push_back({"lse", rows_of(n), double(n), true});
        return all;
    }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out(size(), 0);
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++)
                for (int t = 0; t < s.T; t++) {
                    double total = 0;
                    std::vector<double> weights;
                    for (size_t n = 0; n < rows.size(); n++) {
                        const int r = rows[n].row(b, h, t);
                        weights.push_back(r < 0 ? 0 : std::exp(in[rows.size() + n][(b * s.NH + h) * rows[n].count + r]));
                        total += weights.back();
                    }
                    for (size_t n = 0; n < rows.size(); n++) {
                        const int r = rows[n].row(b, h, t);
                        for (int d = 0; r >= 0 && d < s.HS; d++)
                            out[((b * s.T + t) * s.NH + h) * s.HS + d] +=
                                weights[n] / total * in[n][((b * rows[n].count + r) * s.NH + h) * s.HS + d];
                    }
                }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        const Run<X, Device> run(*this, in, device);
        return run.out.numbers();
    }
    /// Log-sum-exp, entropy, pairs and tiles, one behind the other. The branches' are in `in` behind outputs and log-sum-exps.
    template <class X, class Device = CPU>
    std::vector<Wide<X>> statistics(const Arrays<Wide<X>>& in, Device device = {}) const {
        Run<X, Device> run(*this, in, device);
        std::vector<Wide<X>> all = run.lse.numbers();
        for (auto* each : {&run.entropy, &run.pairs, &run.tiles}) all = joined(all, each->numbers());
        return all;
    }

private:
    /// One forward pass with everything it needs. `in` may have entropy, pairs and tiles of each branch behind what inputs() has.
    template <class X, class Device>
    struct Run {
        using W = Wide<X>;
        std::vector<std::unique_ptr<On<Device, X>>> outs;
        std::vector<std::unique_ptr<On<Device, W>>> numbers;
        Branches<X, SomeRows> branches;
        On<Device, X> out;
        On<Device, W> lse, entropy, pairs, tiles;

        Run(const Merge& m, const Arrays<W>& in, Device device)
            : out(buffer<W>(m.size(), Write::overwrite)), lse(buffer<W>(m.size() / m.s.HS, Write::overwrite)),
              entropy(lse.numbers()), pairs(lse.numbers()),
              tiles(buffer<W>(size_t(m.s.B) * m.s.NH * tiles_of(m.s.T), Write::overwrite)) {
            const size_t count = m.rows.size();
            for (size_t n = 0; n < count; n++) outs.push_back(std::make_unique<On<Device, X>>(in[n]));
            for (size_t n = count; n < in.size(); n++) numbers.push_back(std::make_unique<On<Device, W>>(in[n]));
            Statistics<X> to;
            if (in.size() > 2 * count) to.entropy = entropy.data(), to.pairs = pairs.data(), to.tiles = tiles.data();
            for (size_t n = 0; n < count; n++) {
                Branch<X, SomeRows> one{m.rows[n], outs[n]->data(), numbers[n]->data()};
                if (to) {
                    one.statistics.entropy = numbers[count + n]->data();
                    one.statistics.pairs = numbers[2 * count + n]->data();
                    one.statistics.tiles = numbers[3 * count + n]->data();
                }
                branches.add(one);
            }
            merge_forward(device, out.data(), lse.data(), branches, m.s, to);
        }
    };
};
