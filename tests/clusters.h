// Descriptions (operation.h) of what clusters of tokens are made with, for every device: repeated_rows.cuh, balanced_clusters.cuh.
#pragma once
#include <cmath>

#include "attention/branches/repeated_rows.cuh"
#include "attention/masks/balanced_clusters.cuh"
#include "tests/operation.h"

/// Rows in runs of `distinct` different tokens, some of them padding: some tokens stand in several rows, some in none.
struct AverageRows {
    RowShape s;
    int count, distinct;
    static constexpr bool any_threads = true;
    int length() const { return count; }
    size_t rows() const { return size_t(s.B) * s.NH * count; }

    /// Precondition: 2 distinct <= T.
    int token(int b, int h, int r) const {
        const int run = r / distinct, place = r % distinct;
        return r % 5 == 3 ? -1 : (3 * run + 2 * place + h + b) % s.T;
    }
    std::vector<int> tokens() const {
        std::vector<int> all;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++)
                for (int r = 0; r < count; r++) all.push_back(token(b, h, r));
        return all;
    }
    int times(int b, int h, int t) const {
        int m = 0;
        for (int r = 0; r < count; r++) m += token(b, h, r) == t;
        return m;
    }
    std::vector<ArrayOf> inputs() const { return {{"rows", rows() * s.HS}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out(size_t(s.B) * s.T * s.NH * s.HS, 0);
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++)
                for (int r = 0; r < count; r++) {
                    const int t = token(b, h, r);
                    for (int d = 0; t >= 0 && d < s.HS; d++)
                        out[((b * s.T + t) * s.NH + h) * s.HS + d] +=
                            in[0][((b * count + r) * s.NH + h) * s.HS + d] / times(b, h, t);
                }
        return out;
    }
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        return Run<X, Device>(*this, in[0], std::vector<Wide<X>>(rows()), device).out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        Run<X, Device> run(*this, in[0], std::vector<Wide<X>>(rows()), device);
        On<Device, X> dout_r(buffer<Wide<X>>(in[0].size(), Write::overwrite)), d(dout);
        share_gradient(device, dout_r.data(), static_cast<const X*>(d.data()), run.list, s);
        return {dout_r.numbers()};
    }

    /// Log-sum-exp, entropy, pairs and tiles, where all of these but the tiles are `numbers` (B, NH, R), and a tile counts for one.
    template <class X, class Device = CPU>
    std::vector<Wide<X>> statistics(const std::vector<Wide<X>>& numbers, Device device = {}) const {
        Run<X, Device> run(*this, std::vector<Wide<X>>(rows() * s.HS), numbers, device);
        std::vector<Wide<X>> all = run.lse.numbers();
        for (auto* each : {&run.entropy, &run.pairs, &run.tiles}) all = joined(all, each->numbers());
        return all;
    }

private:
    /// One forward pass with everything it needs.
    template <class X, class Device>
    struct Run {
        using W = Wide<X>;
        On<Device, X> row_out, out;
        On<Device, W> row_numbers, row_tiles, lse, entropy, pairs, tiles;
        On<Device, int> tokens, following, first;
        RepeatedRows list;

        Run(const AverageRows& a, const std::vector<W>& rows, const std::vector<W>& numbers, Device device)
            : row_out(rows), out(nan(size_t(a.s.B) * a.s.T * a.s.NH * a.s.HS)), row_numbers(numbers),
              row_tiles(std::vector<W>(a.s.B * a.s.NH * tiles_of(a.count), 1)), lse(nan(a.s.B * a.s.T * a.s.NH)),
              entropy(lse.numbers()), pairs(lse.numbers()), tiles(nan(a.s.B * a.s.NH * tiles_of(a.s.T))), tokens(a.tokens()),
              following(std::vector<int>(a.rows(), 99)), first(std::vector<int>(a.s.B * a.s.NH * a.s.T, 99)),
              list{a.count, a.s.T, a.s.NH, tokens.data(), following.data(), first.data()} {
            link_rows(device, list, a.s.B, a.distinct);
            Branch<X, RepeatedRows> branch{list, row_out.data(), row_numbers.data()};
            branch.statistics.entropy = branch.statistics.pairs = row_numbers.data(), branch.statistics.tiles = row_tiles.data();
            Statistics<X> to;
            to.entropy = entropy.data(), to.pairs = pairs.data(), to.tiles = tiles.data();
            average_rows(device, out.data(), lse.data(), branch, a.s, to);
        }
        static std::vector<W> nan(size_t n) { return buffer<W>(n, Write::overwrite); }
    };
};

/// Rows of clusters of one size from cosines, of which many are equal.
struct TakeGreatest {
    ClusterShape s;
    std::vector<float> cosines() const {
        std::vector<float> all = random_numbers<float>(s.cosines(s.B, s.local, 0), 3);
        for (float& cosine : all) cosine = std::round(8 * cosine) / 8;   // -0 and 0 are equal too
        return all;
    }

    /// Tokens, then positions, both (B, NH, R).
    std::vector<int> formula() const {
        const std::vector<float> all = cosines();
        std::vector<int> tokens(s.rows_of(s.B, 0), -1), positions = tokens;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++) {
                for (int t = 0; h < s.local && t < s.T; t++) tokens[s.rows_of(b, h) + t] = positions[s.rows_of(b, h) + t] = t;
                for (int c = 0; h >= s.local && c < s.clusters; c++) {
                    const float* mine = &all[s.cosines(b, h, c)];
                    for (int t = 0, place = 0; t < s.T; t++) {
                        int nearer = 0;
                        for (int u = 0; u < s.T; u++) nearer += mine[u] > mine[t] || (mine[u] == mine[t] && u < t);
                        if (nearer >= s.size) continue;
                        const size_t row = s.rows_of(b, h) + c * s.size + place;
                        tokens[row] = t, positions[row] = c * s.T + place++;
                    }
                }
            }
        return joined(tokens, positions);
    }
    template <class Device>
    std::vector<int> rows(Device device) const {
        On<Device, float> scores(cosines());
        On<Device, int> tokens(std::vector<int>(s.rows_of(s.B, 0), 99)), positions(tokens.numbers());
        sort_by_cluster(device, tokens.data(), positions.data(), nullptr, s);
        take_greatest(device, tokens.data(), positions.data(), scores.data(), s);
        return joined(tokens.numbers(), positions.numbers());
    }
};
