// The Forgetting Transformer's sums over tokens on the GPU, with more tokens than a block has threads, against the CPU in double.
#include "attention/forgetting.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

namespace {

using Numbers = std::vector<double>;

/// c of every row but the first of its head, less c of the key before: log f, if both are right in both parts.
Numbers steps(const Numbers& row, const Numbers& column, int heads, int T) {
    Numbers all;
    for (int n = 0; n < heads; n++)
        for (int t = 1; t < T; t++) {
            const double *const c = &row[(size_t(n) * T + t) * 2], *const before = &column[size_t(n) * 2 * padded(T) + t - 1];
            all.push_back(c[0] - before[0] + (c[1] - before[padded(T)]));
        }
    return all;
}

void check_sums(int B, int NH, int T) {
    INFO(B << " sequences of " << T << " tokens, " << NH << " heads");
    const size_t tokens = size_t(B) * T * NH, keys = size_t(B) * NH * 2 * padded(T);
    const Numbers u = rounded<float>(normal_numbers(tokens, 1)), drow = rounded<float>(normal_numbers(2 * tokens, 2)),
                  dcolumn = rounded<float>(normal_numbers(keys, 3));
    Numbers row(2 * tokens, NAN), column(keys, NAN), du(tokens, NAN);
    running_sum(CPU{}, ForgetForward<double>{u.data(), row.data(), column.data(), NH, T}, B, NH, T);
    running_sum(CPU{}, ForgetBackward<double>{du.data(), u.data(), drow.data(), dcolumn.data(), NH, T}, B, NH, T);

    const DeviceArray<float> d_u(u), d_drow(drow), d_dcolumn(dcolumn), d_row(2 * tokens, NAN), d_column(keys, NAN), d_du(tokens, NAN);
    const GPU device = test_gpu();
    running_sum(device, ForgetForward<float>{d_u.data(), d_row.data(), d_column.data(), NH, T}, B, NH, T);
    running_sum(device, ForgetBackward<float>{d_du.data(), d_u.data(), d_drow.data(), d_dcolumn.data(), NH, T}, B, NH, T);
    CHECK(difference(steps(d_row.numbers(), d_column.numbers(), B * NH, T), steps(row, column, B * NH, T), {1e-6}) == "");
    CHECK(difference(d_du.numbers(), du, {1e-6, 1e-6}) == "");
    for (int head = 0; head < 2 * B * NH; head++)   // what score() reads behind the last key is a number
        CHECK(d_column.numbers()[(size_t(head) + 1) * padded(T) - 1] == 0);
}

}   // namespace

TEST_CASE("GPU forgetting: sums over tokens", "[gpu][attention]") {
    check_sums(2, 3, 2);
    check_sums(1, 2, 255);
    check_sums(2, 1, 1000);   // pieces of four tokens, the last threads without any
}
