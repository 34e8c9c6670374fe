// The Forgetting Transformer's sums of log gates: how many digits are left of them in a long text.
#include "attention/forgetting.cuh"
#include "tests/attention_case.h"

namespace {

/// What c_i - c_j is off by, at most, for pairs `apart` tokens from each other, relative to itself.
double worst_error(int T, int apart) {
    std::vector<float> u = normal_numbers<float>(T, 3), row(2 * size_t(T)), column(2 * size_t(padded(T)));
    running_sum(CPU{}, ForgetForward<float>{u.data(), row.data(), column.data(), 1, T}, 1, 1, T);
    Config config;
    for (const Setting& setting : forgetting::settings()) config.settings[setting.key] = setting.value;
    const forgetting policy(config, 0);
    double worst = 0;
    for (int i = apart; i < T; i++) {
        double exact = 0;
        for (int l = i - apart + 1; l <= i; l++) exact -= softplus(-double(u[l]));
        const Pair<float> pair{nullptr, &row[2 * size_t(i)], &column[i - apart], size_t(padded(T)), float(i), float(i - apart)};
        worst = std::max(worst, std::abs(policy.score(0.0f, pair) / exact - 1));
    }
    return worst;
}

}   // namespace

TEST_CASE("forgetting: near pairs have all their digits far into a long text", "[attention][forgetting]") {
    const int T = 32768;   // where c is -26000 and float32 counts in steps of 1/512
    for (int apart : {1, 2, 50, 1000}) {
        INFO("tokens apart: " << apart);
        CHECK(worst_error(T, apart) < 3e-7);
    }
}
