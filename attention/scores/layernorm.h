// Layer norm of one vector without affine parameters, (x - mean) / sqrt(variance + eps), as gates apply it to queries and keys.
#pragma once
#include <cmath>

/// out (n); returns 1 / sqrt(variance + eps).
template <class X>
X layernorm_row(X* out, const X* x, int n, double eps) {
    X mean = 0, variance = 0;
    for (int d = 0; d < n; d++) mean += x[d];
    mean /= X(n);
    for (int d = 0; d < n; d++) variance += (x[d] - mean) * (x[d] - mean);
    const X rstd = X(1) / std::sqrt(variance / X(n) + X(eps));
    for (int d = 0; d < n; d++) out[d] = (x[d] - mean) * rstd;
    return rstd;
}

/// dx (n) += rstd (dout - mean(dout) - out mean(dout out)), where `out` is what layernorm_row() wrote.
template <class X>
void layernorm_row_backward(X* dx, const X* dout, const X* out, X rstd, int n) {
    X mean = 0, product = 0;
    for (int d = 0; d < n; d++) mean += dout[d], product += dout[d] * out[d];
    mean /= X(n), product /= X(n);
    for (int d = 0; d < n; d++) dx[d] += rstd * (dout[d] - mean - out[d] * product);
}
