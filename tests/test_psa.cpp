// Decoding with progressive sparse attention (attention/inference/psa.h) and one row against cached keys
// (attention/decoding/attend.cuh), against the formula in dense loops.
#include "attention/inference/psa.h"

#include <algorithm>

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"

namespace {

/// One new token with its cache; numbers drawn at random.
struct PsaSteps {
    int S, NH, NKV, HS;
    std::vector<double> q, k, v;   // (NH, HS), (S, NKV, HS) twice
    std::vector<double> out, lse;  // (NH, HS), (NH)
    Policy policy{Config{}, 0};

    PsaSteps(int S_, int NH_ = 4, int NKV_ = 2, int HS_ = 8, uint64_t seed = 1)
        : S(S_), NH(NH_), NKV(NKV_), HS(HS_), q(normal_numbers(size_t(NH) * HS, seed)),
          k(normal_numbers(size_t(S) * NKV * HS, seed + 1)), v(normal_numbers(k.size(), seed + 2)), out(q.size(), NAN),
          lse(NH, NAN) {}

    AttentionForward<double> arguments() {
        AttentionForward<double> a{};
        a.B = a.T = 1, a.S = S, a.NH = NH, a.NKV = NKV, a.HS = HS;
        a.q = {q.data(), q.size()}, a.k = {k.data(), size_t(NKV) * HS}, a.v = {v.data(), size_t(NKV) * HS};
        a.out = out.data(), a.lse = lse.data();
        return a;
    }
    PsaBlocks<double> blocks(const PsaOptions& how) const {
        PsaBlocks<double> all(how, NKV, HS);
        for (int j = 0; j < S; j++) all.append(&k[size_t(j) * NKV * HS]);
        return all;
    }
    /// out and lse of the row at `position` from the keys between the first and the last of `ends`, in as many spans.
    template <class P>
    void attend(const P& by, int position, const std::vector<int>& ends) {
        const AttentionForward<double> a = arguments();
        for (int h = 0; h < NH; h++) {
            QueryRow<double> row(HS);
            for (size_t n = 0; n + 1 < ends.size(); n++) {
                const size_t at = (size_t(ends[n]) * NKV + h / (NH / NKV)) * HS;
                row.visit(by, query_of(a, {}, h, position),
                          {ends[n], ends[n + 1] - ends[n], {a.k.data + at, a.k.row}, {a.v.data + at, a.v.row}});
            }
            write_row(a, h, row);
        }
    }
    PsaCount run(const PsaOptions& how) { return psa_attention(policy, arguments(), blocks(how), how.eps); }

    const double* key(int h, int j) const { return &k[(size_t(j) * NKV + h / (NH / NKV)) * HS]; }
    double score(int h, int j) const { return dot(&q[size_t(h) * HS], key(h, j), HS) / std::sqrt(double(HS)); }

    /// Output of head h from the keys that `visited` names, and their share of the mass of all keys.
    std::pair<std::vector<double>, double> by_definition(int h, const std::vector<char>& visited) const {
        std::vector<double> o(HS);
        double mass = 0, all = 0;
        for (int j = 0; j < S; j++) {
            const double p = std::exp(score(h, j));
            all += p;
            if (!visited[j]) continue;
            mass += p;
            for (int d = 0; d < HS; d++) o[d] += p * v[(size_t(j) * NKV + h / (NH / NKV)) * HS + d];
        }
        for (double& x : o) x /= mass;
        return {o, mass / all};
    }

    std::vector<double> dense() const {
        std::vector<double> all;
        for (int h = 0; h < NH; h++) {
            const auto o = by_definition(h, std::vector<char>(S, 1)).first;
            all.insert(all.end(), o.begin(), o.end());
        }
        return all;
    }
    /// The share of head h's mass that the last run kept.
    double retained(int h) const {
        double all = 0;
        for (int j = 0; j < S; j++) all += std::exp(score(h, j));
        return std::exp(lse[h]) / all;
    }
};

/// log of the mass that a block is estimated to have, from its keys.
double estimate_by_definition(const PsaSteps& p, int h, int begin, int end, PsaBound bound) {
    double s = 0;
    for (int d = 0; d < p.HS; d++) {
        double mean = 0, least = INFINITY, most = -INFINITY;
        for (int j = begin; j < end; j++) {
            const double x = p.key(h, j)[d];
            mean += x / (end - begin), least = std::min(least, x), most = std::max(most, x);
        }
        const double qd = p.q[size_t(h) * p.HS + d];
        s += bound == PsaBound::mean ? qd * mean : qd * (qd > 0 ? most : least);
    }
    return std::log((end - begin) * std::exp(s / std::sqrt(double(p.HS))));
}

/// The keys that one group of heads visits: the rule in plain loops, everything summed anew after every block.
std::vector<char> visits_by_definition(const PsaSteps& p, int kv, const PsaOptions& how) {
    const int G = p.NH / p.NKV, blocks = (p.S + how.block - 1) / how.block;
    auto end = [&](int c) { return std::min(p.S, (c + 1) * how.block); };
    std::vector<std::vector<double>> E(G, std::vector<double>(blocks));
    std::vector<double> share(blocks);
    for (int g = 0; g < G; g++) {
        double total = 0;
        for (int c = 0; c < blocks; c++) {
            E[g][c] = std::exp(estimate_by_definition(p, kv * G + g, c * how.block, end(c), how.bound));
            total += E[g][c];
        }
        for (int c = 0; c < blocks; c++) share[c] += E[g][c] / total;
    }
    std::vector<char> keys(p.S), seen(blocks);
    for (int n = 0; n < blocks; n++) {
        int best = -1;
        for (int c = 0; c < blocks; c++)
            if (!seen[c] && (best < 0 || share[c] > share[best])) best = c;
        seen[best] = 1;
        std::fill(keys.begin() + best * how.block, keys.begin() + end(best), 1);
        bool satisfied = true;
        for (int g = 0; g < G; g++) {
            double visited = 0, rest = 0;
            for (int j = 0; j < p.S; j++) visited += keys[j] ? std::exp(p.score(kv * G + g, j)) : 0;
            for (int c = 0; c < blocks; c++) rest += seen[c] ? 0 : E[g][c];
            satisfied = satisfied && visited / (visited + rest) >= how.eps;
        }
        if (satisfied) break;
    }
    return keys;
}

const PsaBound BOUNDS[] = {PsaBound::mean, PsaBound::upper};

/// A window, to see that hidden tiles and pairs are respected.
struct Window : Policy {
    Window() : Policy(Config{}, 0) {}
    Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(70, i0, i1, j0, j1); }
    bool visible(int, int i, int j) const { return j <= i && i - j <= 70; }
};

}   // namespace

TEST_CASE("decode: one row sees the kept keys that its policy shows, in one span or in several", "[decode]") {
    for (int S : {1, 63, 64, 65, 200})
        for (int cut : {0, 1, 17, 64, 100}) {
            INFO("S " << S << ", cut " << cut);
            PsaSteps p(S);
            p.attend(p.policy, S - 1, {0, std::min(cut, S), S});
            CHECK(difference(p.out, p.dense(), {1e-13}) == "");
            p.attend(Window(), S - 1, {0, std::min(cut, S), S});
            for (int h = 0; h < p.NH; h++) {
                std::vector<char> window(S);
                for (int j = 0; j < S; j++) window[j] = S - 1 - j <= 70;
                const auto expected = p.by_definition(h, window).first;
                CHECK(difference(std::vector<double>(&p.out[h * p.HS], &p.out[h * p.HS] + p.HS), expected, {1e-13}) == "");
            }
        }
}

TEST_CASE("decode: a row between kept keys sees none behind it, and a row that sees nothing gives zeros", "[decode]") {
    PsaSteps p(100), shorter(100);
    shorter.S = 70;
    p.attend(p.policy, 69, {0, 100});
    CHECK(difference(p.out, shorter.dense(), {1e-13}) == "");
    p.attend(p.policy, 69, {70, 100});
    CHECK(std::all_of(p.out.begin(), p.out.end(), [](double x) { return x == 0; }));
    CHECK(std::all_of(p.lse.begin(), p.lse.end(), [](double x) { return x == -INFINITY; }));
}

TEST_CASE("psa: eps 1 is dense attention", "[psa]") {
    for (PsaBound bound : BOUNDS)
        for (auto [S, block] : {std::pair{1, 64}, {64, 64}, {65, 64}, {200, 64}, {200, 7}, {50, 1}, {50, 1000}}) {
            INFO("S " << S << ", block " << block);
            PsaSteps p(S);
            const PsaCount count = p.run({1, block, bound});
            CHECK(difference(p.out, p.dense(), {1e-13}) == "");
            CHECK(count.visited == count.cached);
            CHECK(count.cached == double(S) * p.NH);
            CHECK(count.least_retained == 1);
        }
}

TEST_CASE("psa: eps 1 reads everything also where an estimate says that nothing is left", "[psa]") {
    PsaSteps p(128, 1, 1, 8);
    p.q.assign(8, 0), p.q[0] = 100;
    for (int j = 0; j < 128; j++) p.k[j * 8] = j == 70 ? 3 : j < 64 ? 0.001 : -3;   // the mean of block 1 hides its greatest key
    p.run({1, 64, PsaBound::mean});
    CHECK(difference(p.out, p.dense(), {1e-13}) == "");
}

TEST_CASE("psa: the blocks visited, the output and the counts are those of the rule", "[psa]") {
    for (PsaBound bound : BOUNDS)
        for (double eps : {0.0, 0.3, 0.6, 0.9, 0.99})
            for (int NKV : {1, 2, 4})
                for (int block : {5, 16, 64}) {
                    const PsaOptions how{eps, block, bound};
                    PsaSteps p(150, 4, NKV, 8, uint64_t(17 * NKV + block));
                    INFO("eps " << eps << ", NKV " << NKV << ", block " << block << ", upper " << (bound == PsaBound::upper));
                    const PsaCount count = p.run(how);
                    double visited = 0;
                    for (int h = 0; h < p.NH; h++) {
                        const std::vector<char> keys = visits_by_definition(p, h / (p.NH / NKV), how);
                        visited += double(std::count(keys.begin(), keys.end(), 1));
                        const auto [expected, share] = p.by_definition(h, keys);
                        CHECK(difference(std::vector<double>(&p.out[h * 8], &p.out[h * 8] + 8), expected, {1e-12}) == "");
                        CHECK(std::abs(p.retained(h) - share) <= 1e-12);
                    }
                    CHECK(count.visited == visited);
                    CHECK(count.rows == p.NH);
                }
}

TEST_CASE("psa: the upper bound never retains less than it certifies, and that never less than eps", "[psa]") {
    double least_visited = 1;
    for (uint64_t seed = 1; seed <= 40; seed++)
        for (double eps : {0.1, 0.5, 0.8, 0.95}) {
            PsaSteps p(120, 4, 2, 4, seed);
            for (double& x : p.q) x *= 3;
            const PsaCount count = p.run({eps, 4, PsaBound::upper});
            double least = 1;
            for (int h = 0; h < p.NH; h++) least = std::min(least, p.retained(h));
            CHECK(least >= count.least_retained - 1e-12);
            CHECK(count.least_retained >= eps - 1e-12);
            CHECK(count.retained >= eps * p.NH);
            least_visited = std::min(least_visited, count.visited / count.cached);
        }
    CHECK(least_visited < 0.5);   // and it does save something
}

TEST_CASE("psa: the estimates bound the mass, from below and from above, and follow the keys as they arrive", "[psa]") {
    const PsaSteps p(100, 4, 2, 8);
    for (PsaBound bound : BOUNDS) {
        PsaBlocks<double> arriving({0.9, 16, bound}, p.NKV, p.HS);
        for (int S = 1; S <= p.S; S++) {
            arriving.append(&p.k[size_t(S - 1) * p.NKV * p.HS]);
            REQUIRE(arriving.count() == (S + 15) / 16);
            const int c = arriving.count() - 1;
            REQUIRE(arriving.end(c) == S);
            for (int h = 0; h < p.NH; h++) {
                const double actual = arriving.log_mass(&p.q[size_t(h) * p.HS], h / 2, c);
                double mass = 0;
                for (int j = c * 16; j < S; j++) mass += std::exp(p.score(h, j));
                REQUIRE(std::abs(actual - estimate_by_definition(p, h, c * 16, S, bound)) <= 1e-12);
                REQUIRE((bound == PsaBound::mean ? actual <= std::log(mass) + 1e-12 : actual >= std::log(mass) - 1e-12));
            }
        }
    }
}

TEST_CASE("psa: two runs give the same bits, and float agrees with double", "[psa]") {
    PsaSteps p(150), again(150);
    const PsaOptions how{0.9, 16, PsaBound::upper};
    p.run(how), again.run(how);
    CHECK(bit_difference(p.out, again.out) == "");

    const auto narrow = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
    const std::vector<float> q = narrow(p.q), k = narrow(p.k), v = narrow(p.v);
    std::vector<float> out(q.size()), lse(p.NH);
    AttentionForward<float> a{};
    a.B = a.T = 1, a.S = p.S, a.NH = p.NH, a.NKV = p.NKV, a.HS = p.HS;
    a.q = {q.data(), q.size()}, a.k = {k.data(), size_t(p.NKV) * p.HS}, a.v = {v.data(), size_t(p.NKV) * p.HS};
    a.out = out.data(), a.lse = lse.data();
    PsaBlocks<float> blocks(how, p.NKV, p.HS);
    for (int j = 0; j < p.S; j++) blocks.append(&k[size_t(j) * p.NKV * p.HS]);
    psa_attention(p.policy, a, blocks, how.eps);
    CHECK(difference(out, p.out, {1e-5}) == "");
}
