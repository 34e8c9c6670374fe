// AdaSpa's prefill (attention/inference/adaspa.h) against the formula in dense loops.
#include "attention/inference/adaspa.h"

#include "tests/attention_policies.h"

namespace {

/// A prompt of one sequence; numbers drawn at random, larger scores than usual so that blocks differ.
Problem prompt(int T, int NKV = 2) {
    Problem p(1, T, T, 4, NKV, 8);
    for (double& x : p.q) x *= 2;
    return p;
}

int blocks_of(const Problem& p, int block) { return (p.T + block - 1) / block; }

/// W (N, N) of head h: attention weights, summed over pairs of blocks.
Numbers mass(const Problem& p, int h, int block) {
    const int N = blocks_of(p, block);
    Numbers W(size_t(N) * N);
    for (int i = 0; i < p.T; i++) {
        Numbers weights = scores_of_row(p, raw, causal, 0, h, i);
        for (double& z : weights) z = std::exp(z);
        const double total = sum_of(weights);
        for (int j = 0; j <= i; j++) W[size_t(i / block) * N + j / block] += weights[j] / total;
    }
    return W;
}

/// The marks of one head: block c is kept when fewer than the permitted number of other blocks of its row come before it.
std::vector<char> marks_by_definition(const std::vector<double>& W, int N, double sparsity) {
    std::vector<char> keep(size_t(N) * N);
    for (int p = 0; p < N; p++)
        for (int c = 0; c <= p; c++) {
            int before = c != p;   // its own block
            for (int other = 0; other < p && c != p; other++)
                before += W[p * N + other] > W[p * N + c] || (W[p * N + other] == W[p * N + c] && other < c);
            const double kept = std::max(1.0, std::ceil((1 - sparsity) * (p + 1) - 1e-9));
            keep[p * N + c] = before < kept;
        }
    return keep;
}

double recall_by_definition(const std::vector<double>& W, const std::vector<char>& keep, int T) {
    double kept = 0;
    for (size_t n = 0; n < W.size(); n++) kept += keep[n] ? W[n] : 0;
    return kept / T;
}

/// The whole rule: marks of all heads, the head-adaptive sparsities included.
std::vector<std::vector<char>> rule(const Problem& p, const AdaSpaOptions& how) {
    const int N = blocks_of(p, how.block);
    std::vector<std::vector<double>> W;
    std::vector<double> recall;
    for (int h = 0; h < p.NH; h++) {
        W.push_back(mass(p, h, how.block));
        recall.push_back(recall_by_definition(W[h], marks_by_definition(W[h], N, how.sparsity), p.T));
    }
    std::vector<std::vector<char>> keep;
    int good = 0;
    for (double r : recall) good += r > 0.8;
    good = std::min(good, p.NH / 2);
    for (int h = 0; h < p.NH; h++) {
        int better = 0;
        for (int other = 0; other < p.NH; other++) better += recall[other] > recall[h] || (recall[other] == recall[h] && other < h);
        const double s = how.sparsity, step = std::min((1 - s) / 2, s);
        keep.push_back(marks_by_definition(W[h], N, better < good ? s + step : better >= p.NH - good ? s - step : s));
    }
    return keep;
}

}   // namespace

TEST_CASE("adaspa: the mass of blocks is the attention weights' sum", "[adaspa]") {
    for (auto [T, block] : {std::pair{1, 64}, {64, 64}, {200, 64}, {300, 128}}) {
        INFO("T " << T << ", block " << block);
        const Problem p = prompt(T);
        AttentionOn<CPU, double, Policy> on({}, p, Causal());
        on.forward();
        for (int h = 0; h < p.NH; h++) {
            const int N = blocks_of(p, block);
            std::vector<double> W(size_t(N) * N, NAN);   // the memory of an earlier prompt
            adaspa_block_mass(W.data(), Causal(), on.arguments(), h, block);
            CHECK(difference(W, mass(p, h, block), {1e-12}) == "");
        }
    }
}

TEST_CASE("adaspa: output and counts are those of the rule in dense loops", "[adaspa]") {
    for (double sparsity : {0.25, 0.5, 0.7, 0.8, 0.99})
        for (auto [T, block] : {std::pair{64, 64}, {65, 64}, {450, 64}, {450, 128}})
            for (int NKV : {1, 2}) {
                if (adaspa_kept(2, sparsity) == 2 && T == 65) continue;   // all is kept, and rounding decides whose recall is best
                INFO("sparsity " << sparsity << ", T " << T << ", block " << block << ", NKV " << NKV);
                const AdaSpaOptions how{sparsity, block};
                Problem p = prompt(T, NKV);
                for (int n = 0; n < T * p.NH * p.HS; n++)   // heads of different sharpness, so that some have a good recall
                    p.q[n] *= 0.1 + 1.5 * (n / p.HS % p.NH);
                AttentionOn<CPU, double, Policy> on({}, p, Causal());
                const AdaSpaCount count = adaspa_forward(CPU{}, Policy(Causal()), on.arguments(), how);
                const auto keep = rule(p, how);
                const Results should = by_definition(p, raw, [&](int h, int i, int j) {
                    return j <= i && keep[h][i / block * blocks_of(p, block) + j / block];
                });
                CHECK(difference(on.results().out, should.out, {1e-12}) == "");
                double kept = 0, recall = 0;
                for (int h = 0; h < p.NH; h++) {
                    kept += double(std::count(keep[h].begin(), keep[h].end(), 1));
                    recall += recall_by_definition(mass(p, h, block), keep[h], T);
                }
                CHECK(count.kept == kept);
                CHECK(count.candidates == p.NH * blocks_of(p, block) * (blocks_of(p, block) + 1) / 2.0);
                CHECK(std::abs(count.recall - recall) <= 1e-10);
            }
}

TEST_CASE("adaspa: as many blocks are kept as the sparsity leaves, whatever 1 - sparsity is rounded to", "[adaspa]") {
    CHECK(adaspa_kept(10, 0.7) == 3);   // 1 - 0.7 is a little more than 0.3
    CHECK(adaspa_kept(5, 0.8) == 1);    // and 1 - 0.8 a little less than 0.2
}

TEST_CASE("adaspa: heads of good recall give what heads of bad recall get", "[adaspa]") {
    CHECK(difference(adaspa_sparsities({0.9, 0.1, 0.7, 0.5}, 0.8), std::vector<double>{0.9, 0.7, 0.8, 0.8}, {1e-15}) == "");
    CHECK(difference(adaspa_sparsities({0.9, 0.95, 0.99, 0.5}, 0.6), std::vector<double>{0.4, 0.8, 0.8, 0.4}, {1e-15}) == "");
    CHECK(difference(adaspa_sparsities({0.9, 0.1}, 0.2), std::vector<double>{0.4, 0.0}, {1e-15}) == "");   // not below 0
    CHECK(difference(adaspa_sparsities({0.99}, 0.8), std::vector<double>{0.8}, {1e-15}) == "");            // one head alone
    CHECK(difference(adaspa_sparsities({0.8, 0.8}, 0.5), std::vector<double>{0.5, 0.5}, {1e-15}) == "");   // more than 0.8, not 0.8
}
