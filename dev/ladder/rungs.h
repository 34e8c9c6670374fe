// All rungs of the ladder with what each adds, and the result by definition in double.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dev/ladder/rung_1.cuh"
#include "dev/ladder/rung_2.cuh"
#include "dev/ladder/rung_3.cuh"
#include "dev/ladder/rung_4.cuh"
#include "dev/ladder/rung_5.cuh"
#include "dev/ladder/rung_6.cuh"

struct Rung {
    std::string adds;
    std::function<void(GPU, const LadderProblem&)> attention;
};

/// `lse` has room for (B, NH, T) numbers of every problem that will be given to the last one.
inline std::vector<Rung> rungs(float* lse) {
    return {{"one thread per query row", rung_1::attention},
            {"K and V through shared memory", rung_2::attention},
            {"online softmax, tiles in registers", rung_3::attention},
            {"tensor cores", rung_4::attention},
            {"copies while computing", rung_5::attention},
            {"the kernel that trains", [lse](GPU device, const LadderProblem& p) { rung_6::attention(device, p, lse); }}};
}

/// The output (HS) of one row; `p` has the sizes, the arrays are the host's.
template <class Numbers>
std::vector<double> attention_by_definition(const LadderProblem& p, const Numbers& q, const Numbers& k, const Numbers& v, int b,
                                            int i, int h) {
    std::vector<double> scores(i + 1), out(p.HS);
    double largest = -INFINITY, total = 0;
    for (int j = 0; j <= i; j++) {
        double product = 0;
        for (int d = 0; d < p.HS; d++) product += double(q[p.at(b, i, h) + d]) * double(k[p.at(b, j, h) + d]);
        scores[j] = product / std::sqrt(double(p.HS));
        largest = std::max(largest, scores[j]);
    }
    for (double& score : scores) total += score = std::exp(score - largest);
    for (int j = 0; j <= i; j++)
        for (int d = 0; d < p.HS; d++) out[d] += scores[j] / total * double(v[p.at(b, j, h) + d]);
    return out;
}
