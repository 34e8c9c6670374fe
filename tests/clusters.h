// Descriptions (operation.h) of what clusters of tokens are made with, for every device: repeated_rows.cuh, clusters.cuh,
// balanced_clusters.cuh.
#pragma once
#include <algorithm>
#include <cmath>

#include "attention/branches/repeated_rows.cuh"
#include "attention/masks/balanced_clusters.cuh"
#include "attention/scores/each_element.cuh"
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

/// Rows (B, NH, R) that somebody has used before, on a device.
template <class Device>
struct UsedRows {
    On<Device, int> tokens, queries, keys, ends;
    explicit UsedRows(const ClusterShape& s)
        : tokens(std::vector<int>(s.rows_of(s.B, 0), 99)), queries(tokens.numbers()), keys(tokens.numbers()),
          ends(std::vector<int>(s.ends_of(s.B, 0), 99)) {}
    ClusterRows rows() { return {tokens.data(), queries.data(), keys.data(), ends.data()}; }
    std::vector<int> numbers() const {
        return joined(joined(tokens.numbers(), queries.numbers()), joined(keys.numbers(), ends.numbers()));
    }
};

/// The same by definition, where rows have these tokens and clusters (B, NH, R), -1 in padding, and a token's document this start (B, T).
inline std::vector<int> numbers_of_rows(const ClusterShape& s, const std::vector<int>& tokens, const std::vector<int>& clusters,
                                        const std::vector<int>& start) {
    std::vector<int> queries(tokens.size(), -1), keys = queries, ends(s.ends_of(s.B, 0), 99);
    const bool packed = std::count(start.begin(), start.end(), 0) < int(start.size());
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++) {
            const int *token = &tokens[s.rows_of(b, h)], *cluster = &clusters[s.rows_of(b, h)];
            for (int r = 0; r < s.rows(); r++) {
                if (token[r] < 0) continue;
                int first = 0;
                while (cluster[first] != cluster[r] || start[b * s.T + token[first]] != start[b * s.T + token[r]]) first++;
                keys[s.rows_of(b, h) + r] = r + s.rows() * (packed ? cluster[r] + first : cluster[r]);
                queries[s.rows_of(b, h) + r] = keys[s.rows_of(b, h) + r] + (h >= s.local && first == r ? 1 : 0);
            }
            for (int c = 0; h >= s.local && c < s.clusters; c++)
                ends[s.ends_of(b, h) + c] = int(std::count_if(cluster, cluster + s.rows(), [&](int of) { return of >= 0 && of <= c; }));
        }
    return joined(joined(tokens, queries), joined(keys, ends));
}

/// Rows of tokens that have chosen their cluster, of packed documents: a token begins one if its hash is divisible by `every`; 0: none.
struct SortByCluster {
    ClusterShape s;
    int every = 0;

    static unsigned hash(unsigned n) { return (n + 7) * 2654435761u >> 8; }
    int nearest(int b, int h, int t) const { return int(hash(s.list(b, h) + t) % (s.clusters + 1)) % s.clusters; }
    std::vector<int> starts() const {
        std::vector<int> all(size_t(s.B) * s.T, 0);
        for (int b = 0; b < s.B; b++)
            for (int t = 1; every && t < s.T; t++) all[b * s.T + t] = hash(b * s.T + t) % every ? all[b * s.T + t - 1] : t;
        return all;
    }
    std::vector<int> formula() const {
        std::vector<int> tokens, clusters;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++)
                for (int c = 0; c < (h < s.local ? 1 : s.clusters); c++)
                    for (int t = 0; t < s.T; t++)
                        if (h < s.local || nearest(b, h, t) == c) tokens.push_back(t), clusters.push_back(c);
        return numbers_of_rows(s, tokens, clusters, starts());
    }
    template <class Device>
    std::vector<int> rows(Device device) const {
        std::vector<int> chosen;
        for (int n = 0; n < s.B * s.NH; n++)
            for (int t = 0; t < s.T; t++) chosen.push_back(nearest(n / s.NH, n % s.NH, t));
        On<Device, int> clusters(chosen), begins(starts());
        UsedRows<Device> used(s);
        sort_by_cluster(device, used.rows(), clusters.data(), s);
        if (every) each_element(device, size_t(s.B) * s.NH, s.rows(), DivideByDocument{used.rows(), s, {begins.data(), s.T}});
        return used.numbers();
    }
};

/// Rows of clusters of one size from cosines, of which many are equal.
struct TakeGreatest {
    ClusterShape s;
    std::vector<float> cosines() const {
        std::vector<float> all = random_numbers<float>(s.cosines(s.B, s.local, 0), 3);
        for (float& cosine : all) cosine = std::round(8 * cosine) / 8;   // -0 and 0 are equal too
        return all;
    }

    std::vector<int> formula() const {
        const std::vector<float> all = cosines();
        std::vector<int> tokens(s.rows_of(s.B, 0), -1), clusters = tokens;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++) {
                for (int t = 0; h < s.local && t < s.T; t++) tokens[s.rows_of(b, h) + t] = t, clusters[s.rows_of(b, h) + t] = 0;
                for (int c = 0; h >= s.local && c < s.clusters; c++) {
                    const float* mine = &all[s.cosines(b, h, c)];
                    for (int t = 0, place = 0; t < s.T; t++) {
                        int nearer = 0;
                        for (int u = 0; u < s.T; u++) nearer += mine[u] > mine[t] || (mine[u] == mine[t] && u < t);
                        if (nearer >= s.size) continue;
                        const size_t row = s.rows_of(b, h) + c * s.size + place++;
                        tokens[row] = t, clusters[row] = c;
                    }
                }
            }
        return numbers_of_rows(s, tokens, clusters, std::vector<int>(size_t(s.B) * s.T, 0));
    }
    template <class Device>
    std::vector<int> rows(Device device) const {
        On<Device, float> scores(cosines());
        UsedRows<Device> used(s);
        sort_by_cluster(device, used.rows(), nullptr, s);
        take_greatest(device, used.rows(), scores.data(), s);
        return used.numbers();
    }
};
