// Rows of branches, their merging and going on from one to the next on the CPU, against plain loops.
#include "attention/branches/branches.cuh"
#include "tests/attention_case.h"
#include "tests/branches.h"
#include "tests/catch.h"
#include "tests/check.h"

namespace {

/// Two branches that share pairs: a window, or nothing, and what SomeRows chooses, from the last token to the first, some heads
/// with an empty row. Which tokens are visible is for the positions to say.
struct window_and_some : Policy {
    static constexpr const char* name = "window_and_some";
    static constexpr Traits traits{.own_passes = true};
    int left, step;

    window_and_some(const Config& config, int layer)
        : Policy(config, layer), left(int(config.setting("left"))), step(int(config.setting("step"))) {}
    static std::vector<Setting> settings() {
        return {{"--left", "left", 20, -1, 1e9, WHOLE, "the window; -1: none"},
                {"--step", "step", 3, 1, 1e9, WHOLE, "of SomeRows"}};
    }

    template <class X>
    void naive(const LayerInputs<X>&, const X*, X*) const {}

    template <class X>
    void forward(CPU device, const LayerInputs<X>& in, const X*, LayerState<X>& state, std::byte*, const Statistics<X>& asked) const {
        const SomeRows rows(in.T, step), in_order(in.T, 1);
        const std::vector<int> tokens = tokens_of(rows, in);
        BumpAllocator nothing(nullptr);
        BranchesForward<CPU, X, SomeRows> branches(nothing, in, state.out, {rows});
        if (left < 0) branches.begin_with_none(device, in, state, asked);
        else branches.begin(device, WindowBranch(left), in_order, in, state, asked);
        branches.add(device, static_cast<const Policy&>(*this), rows, branch_arguments(in, rows, state, asked, tokens.data()));
        branches.finish(device, in, state, asked);
    }

    template <class X>
    void backward(CPU device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte*) const {
        const SomeRows rows(in.T, step);
        const std::vector<int> tokens = tokens_of(rows, in);
        BumpAllocator nothing(nullptr);
        if (left >= 0) attention_layer_backward(device, WindowBranch(left), in, weights, state, dout, to, more, nullptr);
        BranchesBackward<CPU, X, SomeRows>(nothing, in, rows, 0)
            .add(device, static_cast<const Policy&>(*this), rows, branch_arguments(in, rows, state, Statistics<X>{}, tokens.data()),
                 branch_gradients(dout, to), left < 0 ? Write::overwrite : Write::add);
    }

    int times(int T, int b, int h, int i, int j) const {
        const SomeRows rows(T, step);
        return (j <= i && i - j <= left) + (j <= i && rows.row(b, h, i) >= 0 && rows.row(b, h, j) >= 0);
    }
    template <class X>
    void naive(const LayerInputs<X>& in, X* out) const {
        for (int b = 0; b < in.B; b++)
            dense_softmax_of_sequence(
                in, b, out, [&](int, int h, int i, int j, X a) { return a + std::log(X(times(in.T, b, h, i, j))); },
                [&](int h, int i, int j) { return times(in.T, b, h, i, j) > 0; });
    }

private:
    static std::vector<int> tokens_of(const SomeRows& rows, const LayerShape& s) {
        std::vector<int> tokens;
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++)
                for (int r = 0; r < rows.count; r++) tokens.push_back(rows.token(b, h, r));
        return tokens;
    }
};

}   // namespace

TEST_CASE("branches: a softmax goes on where another kernel call has left it, in another order", "[attention][branches]") {
    for (int T : {1, 65, 130})
        for (double left : {-1.0, 0.0, 20.0})
            for (double step : {1.0, 3.0, 70.0}) {
                INFO("T " << T << ", window " << left << ", every " << step << ". token");
                PolicyCase<double, window_and_some> layer({2, T, 4, 2, 8, {{"left", left}, {"step", step}}}, variant_of<CpuLayer, window_and_some>);
                layer.forward();
                std::vector<double> expected(layer.out.size(), NAN);
                layer.policy.naive(layer.inputs(), expected.data());
                CHECK(difference(layer.out, expected, {1e-12}) == "");
                const std::vector<double> dout = normal_numbers(layer.out.size(), 7);
                layer.backward(dout);
                const std::vector<double> gradient = layer.dqkv;
                CHECK(gradient_error(layer.qkv, gradient, [&] { return layer.loss(dout); }) < 1e-7);

                const Threads one(1);
                layer.forward();
                const std::vector<double> alone = layer.out;
                layer.backward(dout);
                CHECK(bit_difference(layer.dqkv, gradient) == "");
                const Threads two(2);
                layer.forward();
                CHECK(bit_difference(layer.out, alone) == "");
            }
}

TEST_CASE("branches: statistics go on where another kernel call has left them", "[attention][branches]") {
    const int T = 130;
    for (double left : {-1.0, 20.0}) {
        PolicyCase<double, window_and_some> layer({2, T, 4, 2, 8, {{"left", left}, {"step", 3}}}, variant_of<CpuLayer, window_and_some>);
        layer.forward();   // leaves q and k
        std::vector<double> out(layer.out), lse(layer.lse), entropy(lse.size(), NAN), pairs(entropy), tiles(8 * tiles_of(T), NAN);
        LayerState<double> state{{}, out.data(), out.data(), lse.data()};
        const Statistics<double> asked{entropy.data(), nullptr, pairs.data(), tiles.data()};
        const LayerInputs<double> in = layer.inputs();
        attention_layer_forward(CPU{}, layer.policy, in, layer.weights.data(), state, nullptr, asked);
        std::vector<double> all_pairs, all_entropy;
        for (int b = 0; b < 2; b++)
            for (int h = 0; h < 4; h++)
                for (int i = 0; i < T; i++) {
                    double count = 0, sum = 0, moment = 0;
                    for (int j = 0; j <= i; j++) {
                        const double times = layer.policy.times(T, b, h, i, j);
                        const double z = dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(double(in.HS));
                        count += times, sum += times * std::exp(z), moment += times * std::exp(z) * z;
                    }
                    all_pairs.push_back(count), all_entropy.push_back(count == 0 ? 0 : std::log(sum) - moment / sum);
                }
        CHECK(bit_difference(pairs, all_pairs) == "");
        CHECK(difference(entropy, all_entropy, {1e-12, 1e-12}) == "");
        const double of_window = left < 0 ? 0 : count_pairs(WindowBranch(int(left)), 4, T).tiles;
        CHECK(sum_of(tiles) == 2 * (of_window + 4));   // 44 rows are one tile
    }
}

TEST_CASE("branches: rows are gathered and sent back, added up over the heads of a group", "[attention][branches]") {
    for (int step : {1, 2, 3, 70})
        for (auto [NH, heads] : {std::pair{2, 2}, {4, 2}, {4, 1}}) {
            const int T = 65;
            check_operation(GatherRows{{2, T, NH, heads, 8}, SomeRows(T, step), false, Write::overwrite});
            check_operation(GatherRows{{2, T, NH, heads, 8}, SomeRows(T, step), true, Write::add});
        }
}

TEST_CASE("branches: numbers of rows are gathered", "[attention][branches]") {
    for (int step : {1, 3}) check_operation(GatherNumbers{2, 65, 3, SomeRows(65, step)});
}

TEST_CASE("branches: merged outputs", "[attention][branches]") {
    const RowShape s{2, 11, 2, 2, 8};
    check_operation(Merge{s, {SomeRows(11, 1)}});
    check_operation(Merge{s, {SomeRows(11, 1), SomeRows(11, 1)}});
    check_operation(Merge{s, {SomeRows(11, 2), SomeRows(11, 3), SomeRows(11, 11)}});
}

TEST_CASE("branches: a row that sees nothing weighs nothing, far apart log-sum-exps are no trouble", "[attention][branches]") {
    const Merge merge{{1, 4, 1, 1, 8}, {SomeRows(4, 1), SomeRows(4, 1)}};
    const std::vector<double> ones(32, 1), twos(32, 2);
    const double nothing = -INFINITY;   // SomeRows counts from the end: row 0 is token 3
    const Arrays<double> in = {ones, twos, {nothing, 1, nothing, 2000}, {nothing, nothing, -5, -2000}};
    const std::vector<double> out = merge.forward<double>(in);
    for (auto [token, expected] : {std::pair{3, 0.0}, {2, 1.0}, {1, 2.0}, {0, 1.0}})
        for (int d = 0; d < 8; d++) CHECK(out[token * 8 + d] == expected);
    CHECK(merge.statistics<double>(in)[3] == nothing);   // its log-sum-exp
}

/// A softmax over six keys per token, cut in two in a way that depends on the token.
TEST_CASE("branches: entropy, pairs and tiles are those of one softmax over all keys", "[attention][branches]") {
    const int T = 130, keys = 6;
    const SomeRows rows(T, 1);
    const std::vector<double> scores = random_numbers<double>(size_t(T) * keys, 3);
    Arrays<double> in(8);
    in[0] = in[1] = std::vector<double>(T * 8, 1);
    for (int part = 0; part < 2; part++) in[6 + part] = {double(3 + part), 5, 7};   // tiles of the branches
    std::vector<double> lse(T), entropy(T), pairs(T, keys);
    auto softmax = [&](int t, int first, int end, double& log_sum, double& spread) {
        double sum = 0, moment = 0;
        for (int k = first; k < end; k++) sum += std::exp(scores[t * keys + k]);
        log_sum = std::log(sum);
        for (int k = first; k < end; k++) moment += std::exp(scores[t * keys + k]) / sum * scores[t * keys + k];
        spread = end > first ? log_sum - moment : 0;
    };
    for (int r = 0; r < T; r++) {
        const int t = rows.token(0, 0, r), cut = t % (keys + 1);
        softmax(t, 0, keys, lse[t], entropy[t]);
        for (int part = 0; part < 2; part++) {
            double log_sum = 0, spread = 0;
            softmax(t, part ? cut : 0, part ? keys : cut, log_sum, spread);
            in[2 + part].push_back(log_sum), in[4 + part].push_back(spread);
        }
    }
    // Statistics are ordered entropy, pairs, tiles, branch by branch.
    Arrays<double> all = {in[0], in[1], in[2], in[3], in[4], in[5], {}, {}, in[6], in[7]};
    for (int r = 0; r < T; r++) {
        const int cut = rows.token(0, 0, r) % (keys + 1);
        all[6].push_back(cut), all[7].push_back(keys - cut);
    }
    const Merge merge{{1, T, 1, 1, 8}, {rows, rows}};
    const std::vector<double> expected = joined(joined(lse, entropy), joined(pairs, {7, 10, 14}));
    CHECK(difference(merge.statistics<double>(all), expected, {1e-12, 1e-12}) == "");
}
