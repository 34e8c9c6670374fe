// AdaSpa's prefill (attention/inference/adaspa.h) against the formula in dense loops.
#include "attention/inference/adaspa.h"

#include "attention/kernel/naive.h"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"

namespace {

/// A prompt of one sequence; numbers drawn at random, larger scores than usual so that blocks differ.
struct Prompt {
    int T, NH, NKV, HS;
    std::vector<double> q, k, v, out, lse;
    Policy policy{Config{}, 0};

    Prompt(int T_, int NH_ = 4, int NKV_ = 2, int HS_ = 8, uint64_t seed = 1)
        : T(T_), NH(NH_), NKV(NKV_), HS(HS_), q(normal_numbers(size_t(T) * NH * HS, seed, 2)),
          k(normal_numbers(size_t(T) * NKV * HS, seed + 1)), v(normal_numbers(k.size(), seed + 2)), out(q.size(), NAN),
          lse(size_t(NH) * T, NAN) {}

    AttentionForward<double> arguments() {
        AttentionForward<double> a{};
        a.B = 1, a.T = a.S = T, a.NH = NH, a.NKV = NKV, a.HS = HS;
        a.q = {q.data(), size_t(NH) * HS}, a.k = {k.data(), size_t(NKV) * HS}, a.v = {v.data(), size_t(NKV) * HS};
        a.out = out.data(), a.lse = lse.data();
        return a;
    }
    AdaSpaCount run(const AdaSpaOptions& how) { return adaspa_forward(CPU{}, policy, arguments(), how); }
    int blocks(int block) const { return (T + block - 1) / block; }

    double score(int h, int i, int j) const {
        return dot(&q[(size_t(i) * NH + h) * HS], &k[(size_t(j) * NKV + h / (NH / NKV)) * HS], HS) / std::sqrt(double(HS));
    }

    /// W (N, N) of head h: attention weights, summed over pairs of blocks.
    std::vector<double> mass(int h, int block) const {
        const int N = blocks(block);
        std::vector<double> W(size_t(N) * N);
        for (int i = 0; i < T; i++) {
            double total = 0;
            for (int j = 0; j <= i; j++) total += std::exp(score(h, i, j));
            for (int j = 0; j <= i; j++) W[size_t(i / block) * N + j / block] += std::exp(score(h, i, j)) / total;
        }
        return W;
    }

    /// Softmax over the keys of the blocks that are marked in keep[h] (N, N).
    std::vector<double> masked(const std::vector<std::vector<char>>& keep, int block) const {
        std::vector<double> o(q.size());
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < T; i++) {
                double total = 0;
                double* to = &o[(size_t(i) * NH + h) * HS];
                for (int j = 0; j <= i; j++) {
                    if (!keep[h][size_t(i / block) * blocks(block) + j / block]) continue;
                    const double p = std::exp(score(h, i, j));
                    total += p;
                    for (int d = 0; d < HS; d++) to[d] += p * v[(size_t(j) * NKV + h / (NH / NKV)) * HS + d];
                }
                for (int d = 0; d < HS; d++) to[d] /= total;
            }
        return o;
    }
};

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
std::vector<std::vector<char>> rule(const Prompt& p, const AdaSpaOptions& how) {
    const int N = p.blocks(how.block);
    std::vector<std::vector<double>> W;
    std::vector<double> recall;
    for (int h = 0; h < p.NH; h++) {
        W.push_back(p.mass(h, how.block));
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

TEST_CASE("adaspa: the mass of blocks is the attention weights' sum, and that of a row of blocks its number of rows", "[adaspa]") {
    for (auto [T, block] : {std::pair{1, 64}, {64, 64}, {200, 64}, {300, 128}}) {
        INFO("T " << T << ", block " << block);
        Prompt p(T);
        const AttentionForward<double> a = p.arguments();
        attention_forward(CPU{}, p.policy, a);
        for (int h = 0; h < p.NH; h++) {
            const std::vector<double> W = adaspa_block_mass(p.policy, a, h, block);
            CHECK(difference(W, p.mass(h, block), {1e-12}) == "");
            const int N = p.blocks(block);
            for (int row = 0; row < N; row++) {
                double sum = 0;
                for (int c = 0; c < N; c++) sum += W[row * N + c];
                CHECK(std::abs(sum - std::min(block, T - row * block)) <= 1e-10);
            }
        }
    }
}

TEST_CASE("adaspa: without sparsity it is dense attention", "[adaspa]") {
    for (auto [T, block] : {std::pair{1, 64}, {63, 64}, {200, 64}, {300, 128}}) {
        Prompt p(T), dense(T);
        const AdaSpaCount count = p.run({0, block});
        attention_forward(CPU{}, dense.policy, dense.arguments());
        CHECK(difference(p.out, dense.out, {1e-13}) == "");
        CHECK(difference(p.lse, dense.lse, {1e-13}) == "");
        CHECK(count.kept == count.candidates);
        CHECK(std::abs(count.recall / count.heads - 1) <= 1e-12);
    }
}

TEST_CASE("adaspa: output and counts are those of the rule in dense loops", "[adaspa]") {
    for (double sparsity : {0.25, 0.5, 0.7, 0.8, 0.99})
        for (auto [T, block] : {std::pair{64, 64}, {65, 64}, {450, 64}, {450, 128}})
            for (int NKV : {1, 2}) {
                if (adaspa_kept(2, sparsity) == 2 && T == 65) continue;   // all is kept, and rounding decides whose recall is best
                INFO("sparsity " << sparsity << ", T " << T << ", block " << block << ", NKV " << NKV);
                const AdaSpaOptions how{sparsity, block};
                Prompt p(T, 4, NKV);
                for (int n = 0; n < T * p.NH * p.HS; n++)   // heads of different sharpness, so that some have a good recall
                    p.q[n] *= 0.1 + 1.5 * (n / p.HS % p.NH);
                const AdaSpaCount count = p.run(how);
                const auto keep = rule(p, how);
                CHECK(difference(p.out, p.masked(keep, block), {1e-12}) == "");
                double kept = 0, recall = 0;
                for (int h = 0; h < p.NH; h++) {
                    kept += double(std::count(keep[h].begin(), keep[h].end(), 1));
                    recall += recall_by_definition(p.mass(h, block), keep[h], T);
                }
                CHECK(count.kept == kept);
                CHECK(count.candidates == p.NH * p.blocks(block) * (p.blocks(block) + 1) / 2.0);
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

TEST_CASE("adaspa: two runs give the same bits", "[adaspa]") {
    Prompt p(300), again(300);
    p.run({0.5, 64}), again.run({0.5, 64});
    CHECK(bit_difference(p.out, again.out) == "");
}
