// Decoding with progressive sparse attention (attention/inference/psa.h) against the formula in dense loops.
#include "attention/inference/psa.h"

#include "tests/attention_policies.h"

namespace {

/// One new token with its cache; numbers drawn at random.
Problem newest_token(int S, int NKV = 2, int HS = 8, uint64_t seed = 1) {
    Problem p(1, 1, S, 4, NKV, HS);
    p.q = normal_numbers(p.q.size(), seed), p.k = normal_numbers(p.k.size(), seed + 1);
    return p;
}

template <class X = double>
std::pair<Results, PsaCount> run(const Problem& p, const PsaOptions& how) {
    AttentionOn<CPU, X, Policy> on({}, p, Causal());
    const PsaCount count = psa_rows(Causal(), on.arguments(), how);
    return {on.results(), count};
}

/// log of the mass that a block is estimated to have, from its keys.
double estimate_by_definition(const Problem& p, int h, int begin, int end, PsaBound bound) {
    double s = 0;
    for (int d = 0; d < p.HS; d++) {
        double mean = 0, least = INFINITY, most = -INFINITY;
        for (int j = begin; j < end; j++) {
            const double x = p.k[p.key_row(0, j, h) * p.HS + d];
            mean += x / (end - begin), least = std::min(least, x), most = std::max(most, x);
        }
        const double qd = p.q[size_t(h) * p.HS + d];
        s += bound == PsaBound::mean ? qd * mean : qd * (qd > 0 ? most : least);
    }
    return std::log((end - begin) * std::exp(s / std::sqrt(double(p.HS))));
}

/// The keys that one group of heads visits: the rule in plain loops, everything summed anew after every block.
std::vector<char> visits_by_definition(const Problem& p, int kv, const PsaOptions& how) {
    const int G = p.NH / p.NKV, blocks = (p.S + how.block - 1) / how.block;
    auto end = [&](int c) { return std::min(p.S, (c + 1) * how.block); };
    std::vector<Numbers> E(G, Numbers(blocks)), z;
    Numbers share(blocks);
    for (int g = 0; g < G; g++) {
        z.push_back(scores_of_row(p, raw, everything, 0, kv * G + g, 0));
        for (int c = 0; c < blocks; c++) E[g][c] = std::exp(estimate_by_definition(p, kv * G + g, c * how.block, end(c), how.bound));
        for (int c = 0; c < blocks; c++) share[c] += E[g][c] / sum_of(E[g]);
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
            for (int j = 0; j < p.S; j++) visited += keys[j] ? std::exp(z[g][j]) : 0;
            for (int c = 0; c < blocks; c++) rest += seen[c] ? 0 : E[g][c];
            satisfied = satisfied && visited / (visited + rest) >= how.eps;
        }
        if (satisfied) break;
    }
    return keys;
}

const PsaBound BOUNDS[] = {PsaBound::mean, PsaBound::upper};

}   // namespace

TEST_CASE("psa: eps 1 reads everything also where an estimate says that nothing is left", "[psa]") {
    Problem p(1, 1, 128, 1, 1, 8);
    p.q.assign(8, 0), p.q[0] = 100;
    for (int j = 0; j < 128; j++) p.k[j * 8] = j == 70 ? 3 : j < 64 ? 0.001 : -3;   // the mean of block 1 hides its greatest key
    CHECK(difference(run(p, {1, 64, PsaBound::mean}).first.out, by_definition(p, raw, everything).out, {1e-13}) == "");
}

TEST_CASE("psa: the blocks visited, the output and the counts are those of the rule", "[psa]") {
    for (PsaBound bound : BOUNDS)
        for (double eps : {0.0, 0.3, 0.6, 0.9, 0.99, 1.0})
            for (int NKV : {1, 2, 4})
                for (int block : {1, 16, 64, 1000}) {
                    const PsaOptions how{eps, block, bound};
                    const Problem p = newest_token(150, NKV, 8, uint64_t(17 * NKV + block));
                    INFO("eps " << eps << ", NKV " << NKV << ", block " << block << ", upper " << (bound == PsaBound::upper));
                    const auto [is, count] = run(p, how);
                    std::vector<std::vector<char>> visits;
                    for (int h = 0; h < p.NH; h++) visits.push_back(visits_by_definition(p, h / (p.NH / NKV), how));
                    const Results should = by_definition(p, raw, [&](int h, int, int j) { return visits[h][j] != 0; });
                    CHECK(difference(is.out, should.out, {1e-12}) == "");
                    CHECK(difference(is.lse, should.lse, {1e-12}) == "");
                    CHECK(count.visited == sum_of(should.pairs));
                    CHECK(count.rows == p.NH);
                }
}

TEST_CASE("psa: the upper bound never retains less than it certifies, and that never less than eps", "[psa]") {
    double least_visited = 1;
    for (uint64_t seed = 1; seed <= 40; seed++)
        for (double eps : {0.1, 0.5, 0.8, 0.95}) {
            Problem p = newest_token(120, 2, 4, seed);
            for (double& x : p.q) x *= 3;
            const auto [is, count] = run(p, {eps, 4, PsaBound::upper});
            const Results dense = by_definition(p, raw, everything);
            double least = 1;
            for (int h = 0; h < p.NH; h++) least = std::min(least, std::exp(is.lse[h] - dense.lse[h]));
            CHECK(least >= count.least_retained - 1e-12);
            CHECK(count.least_retained >= eps - 1e-12);
            CHECK(count.retained >= eps * p.NH);
            least_visited = std::min(least_visited, count.visited / count.cached);
        }
    CHECK(least_visited < 0.5);   // and it does save something
}

TEST_CASE("psa: the estimates bound the mass, from below and from above, and follow the keys as they arrive", "[psa]") {
    const Problem p = newest_token(100);
    AttentionOn<CPU, double, Policy> on({}, p, Causal());
    AttentionForward<double> a = on.arguments();
    for (PsaBound bound : BOUNDS) {
        const PsaOptions how{0.9, 16, bound};
        Arena<CPU> arena;
        PsaBlocks<double>(arena, how, {1, p.S, 0, p.NH, p.NKV, p.HS});
        arena.allocate();
        const PsaBlocks<double> arriving(arena, how, {1, p.S, 0, p.NH, p.NKV, p.HS});
        for (a.S = 1; a.S <= p.S; a.S++) {
            for (int n = 0; n < p.NKV * p.HS; n++) arriving.add(0, a.S - 1, n, p.k[size_t(a.S - 1) * p.NKV * p.HS + n]);
            const int blocks = arriving.count(a.S), c = blocks - 1;
            REQUIRE(blocks == (a.S + 15) / 16);
            for (int h = 0; h < p.NH; h++) {
                const double actual = psa_estimates(a, arriving, 0, h / 2)[h % 2 * blocks + c];
                const Numbers z = scores_of_row(p, raw, everything, 0, h, 0);
                double mass = 0;
                for (int j = c * 16; j < a.S; j++) mass += std::exp(z[j]);
                REQUIRE(std::abs(actual - estimate_by_definition(p, h, c * 16, a.S, bound)) <= 1e-12);
                REQUIRE((bound == PsaBound::mean ? actual <= std::log(mass) + 1e-12 : actual >= std::log(mass) - 1e-12));
            }
        }
    }
}

TEST_CASE("psa: two runs give the same bits, and float agrees with double", "[psa]") {
    const Problem p = newest_token(150);
    const PsaOptions how{0.9, 16, PsaBound::upper};
    const Numbers out = run(p, how).first.out;
    CHECK(bit_difference(run(p, how).first.out, out) == "");
    CHECK(difference(run<float>(p, how).first.out, out, {1e-5}) == "");
}
