// The products that replace a BLAS where there is none, against the definition.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "model/device/blas.h"
#include "model/device/machine.h"
#include "tests/catch.h"

namespace loops {   // beside the program's own products, which have the same names
#include "model/device/blas/loops.cpp"
}

namespace {

/// Small whole numbers, so that sums are exact; rows of c are three elements apart. beta = 0 must overwrite what c had.
template <class X>
bool multiplies(int M, int N, int K, bool ta, bool tb, X alpha, X beta) {
    std::vector<X> a(size_t(M * K)), b(size_t(K * N)), c(size_t(M * (N + 3)), beta == 0 ? X(NAN) : X(2));
    for (int i = 0; i < M * K; i++) a[size_t(i)] = X(i % 7) - 3;
    for (int i = 0; i < K * N; i++) b[size_t(i)] = X(i % 5) - 2;
    loops::gemm(ta ? Transpose::yes : Transpose::no, tb ? Transpose::yes : Transpose::no, M, N, K, alpha, a.data(), size_t(ta ? M : K),
                b.data(), size_t(tb ? K : N), beta, c.data(), size_t(N + 3));
    bool all = true;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            X sum = 0;
            for (int k = 0; k < K; k++) sum += a[size_t(ta ? k * M + m : m * K + k)] * b[size_t(tb ? n * K + k : k * N + n)];
            all = all && c[size_t(m * (N + 3) + n)] == alpha * sum + (beta == 0 ? 0 : beta * 2);
        }
    return all;
}

}   // namespace

TEMPLATE_TEST_CASE("products without a BLAS: sizes around those of the tiles", "[blas]", float, double) {
    for (int M : {1, 5, 64, 70})
        for (int N : {1, 63, 130})
            for (int K : {1, 17, 256, 300})
                for (int t = 0; t < 4; t++) {
                    INFO("M " << M << ", N " << N << ", K " << K << ", transposed " << t);
                    CHECK(multiplies<TestType>(M, N, K, t & 1, t & 2, 2, t < 2 ? 0 : 3));
                }
}
