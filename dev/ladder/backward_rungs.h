// All rungs of the backward ladder with what each adds, and the gradients by definition in double.
#pragma once
#include "dev/ladder/backward_1.cuh"
#include "dev/ladder/backward_2.cuh"
#include "dev/ladder/backward_3.cuh"
#include "dev/ladder/rungs.h"

struct BackwardRung {
    std::string adds;
    std::function<void(GPU, const BackwardProblem&)> gradients;
};

/// `memory` has backward_3::workspace() bytes for every problem that will be given to the last one.
inline std::vector<BackwardRung> backward_rungs(std::byte* memory) {
    return {{"one thread per row", backward_1::gradients},
            {"tiles on tensor cores, computed twice", backward_2::gradients},
            {"the kernel that trains",
             [memory](GPU device, const BackwardProblem& p) { backward_3::gradients(device, p, memory); }}};
}

/// dQ, dK, dV (B, T, NH, HS) each; `p` has the sizes, the arrays are the host's. With dense matrices, row after row.
template <class Numbers>
std::vector<std::vector<double>> gradients_by_definition(const LadderProblem& p, const Numbers& q, const Numbers& k,
                                                         const Numbers& v, const Numbers& dout) {
    std::vector<double> dq(p.numbers()), dk(dq), dv(dq), weight(p.T), dweight(p.T);
    const double scale = 1 / std::sqrt(double(p.HS));
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < p.NH; h++)
            for (int i = 0; i < p.T; i++) {
                const size_t query = p.at(b, i, h);
                double total = 0, D = 0;
                for (int j = 0; j <= i; j++) {
                    double score = 0, product = 0;
                    const size_t key = p.at(b, j, h);
                    for (int d = 0; d < p.HS; d++) score += q[query + d] * k[key + d], product += dout[query + d] * v[key + d];
                    total += weight[j] = std::exp(score * scale), dweight[j] = product;
                }
                for (int j = 0; j <= i; j++) D += (weight[j] /= total) * dweight[j];
                for (int j = 0; j <= i; j++) {
                    const size_t key = p.at(b, j, h);
                    const double dscore = weight[j] * (dweight[j] - D) * scale;
                    for (int d = 0; d < p.HS; d++) {
                        dq[query + d] += dscore * k[key + d], dk[key + d] += dscore * q[query + d];
                        dv[key + d] += weight[j] * dout[query + d];
                    }
                }
            }
    return {dq, dk, dv};
}
