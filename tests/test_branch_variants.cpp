// The mechanisms that are made of branches, beyond what every variant is tested for: the entropy that they report, and the
// backward pass of LongNet's released code.
#include "attention/longnet.cuh"
#include "attention/strided.cuh"
#include "tests/attention_case.h"
#include "tests/threads.h"

namespace {

using Numbers = std::vector<double>;

double score(const LayerInputs<double>& in, int b, int h, int i, int j) {
    return dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(double(in.HS));
}

/// Whether the pair (i, j) is in branch n of LongNet, as the paper says it.
bool in_branch(int w, int n, int h, int i, int j) {
    const int length = w << n, rate = 1 << n;
    return j <= i && i / length == j / length && i % rate == h % rate && j % rate == h % rate;
}

}   // namespace

TEST_CASE("merged branches report the entropy of their one softmax", "[attention][branches]") {
    const int T = 200, NH = 4;
    for (int l : {1, 7, 20, 128}) {
        INFO("stride " << l);
        PolicyCase<double, strided> layer({1, T, NH, 2, 8, {{"strided_stride", l}}});
        Numbers entropy(NH * T, NAN), expected;
        layer.statistics.entropy = entropy.data();
        layer.forward();
        for (int n = 0; n < NH * T; n++) {
            double sum = 0, moment = 0;
            for (int i = n % T, j = 0; j <= i; j++) {
                if (i - j > l && (i - j) % l != 0) continue;
                const double z = score(layer.inputs(), 0, n / T, i, j);
                sum += std::exp(z), moment += std::exp(z) * z;
            }
            expected.push_back(std::log(sum) - moment / sum);
        }
        CHECK(difference(entropy, expected, {1e-12, 1e-12}) == "");
    }
}

// dz_ij = sum_n alpha_n P^n_ij (<dout_i, v_j> - <dout_i, out^n_i>): the branch's output where the one softmax has the mixture's.
TEST_CASE("longnet with constant weights has the gradients of the released code", "[attention][branches]") {
    const Threads one(1);
    const int T = 70, w = 6, N = 3, HS = 8;
    PolicyCase<double, longnet> layer({2, T, 4, 2, HS, {{"longnet_segment", w}, {"longnet_branches", N}, {"longnet_detach", 1}}});
    const Numbers dout = normal_numbers(layer.out.size(), 4);
    layer.forward(), layer.backward(dout);
    const LayerInputs<double> in = layer.inputs();
    Numbers dqk(layer.dqk.size(), 0), dqkv = layer.dqkv;
    for (size_t n = 0; n < dqkv.size(); n++) dqkv[n] = n % in.v_row >= in.qk_row ? 0 : dqkv[n];   // of v
    for (int b = 0; b < in.B; b++)
        for (int h = 0; h < in.NH; h++)
            for (int i = 0; i < T; i++) {
                const double* d = &dout[(in.token(b, i) * in.NH + h) * HS];
                double total = 0;   // sum of exp(z) over all branches
                std::vector<double> sums(N, 0), products(N, 0);   // per branch: of exp(z), of exp(z) <dout, v>
                for (int j = 0; j <= i; j++)
                    for (int n = 0; n < N; n++) {
                        if (!in_branch(w, n, h, i, j)) continue;
                        const double weight = std::exp(score(in, b, h, i, j));
                        total += weight, sums[n] += weight, products[n] += weight * dot(d, in.value(b, j, h), HS);
                    }
                for (int j = 0; j <= i; j++)
                    for (int n = 0; n < N; n++) {
                        if (!in_branch(w, n, h, i, j)) continue;
                        const double p = std::exp(score(in, b, h, i, j)) / total;   // alpha_n P^n
                        const double dz = p * (dot(d, in.value(b, j, h), HS) - products[n] / sums[n]) / std::sqrt(double(HS));
                        double *dq = &dqk[in.query(in.q, b, i, h) - in.q], *dk = &dqk[in.key(in.k, b, j, h) - in.q];
                        double* dv = &dqkv[in.value(b, j, h) - layer.qkv.data()];
                        for (int e = 0; e < HS; e++) {
                            dq[e] += dz * in.key(in.k, b, j, h)[e];
                            dk[e] += dz * in.query(in.q, b, i, h)[e];
                            dv[e] += p * d[e];
                        }
                    }
            }
    CHECK(difference(layer.dqk, dqk, {1e-12}) == "");
    CHECK(difference(layer.dqkv, dqkv, {1e-12}) == "");
}
