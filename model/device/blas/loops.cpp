// Matrix products without a BLAS: blocked loops that the compiler vectorises, on all OpenMP threads. Several times slower than
// OpenBLAS, but it lets a GPU trainer be built without one.
#include <algorithm>
#include <cstdio>

#include "model/device/blas.h"
#include "model/device/machine.h"

namespace {

constexpr int tile_rows = 64, tile_columns = 64, depth = 256;   // a tile of c, and the part of K packed at a time
constexpr int lanes = 16, rows_at_once = 4;                      // register block of the inner loop

/// op(matrix), indexed by row and column.
template <class X>
struct Matrix {
    const X* data;
    size_t ld;
    Transpose transpose;
    X operator()(int row, int column) const {
        return transpose == Transpose::yes ? data[size_t(column) * ld + size_t(row)] : data[size_t(row) * ld + size_t(column)];
    }
};

/// Packs `rows` x `columns` elements starting at (row, column) into rows of `Stride` elements, zero-padded outside of R x C.
template <int Stride, class X>
void copy(X* to, const Matrix<X>& from, int row, int column, int rows, int columns, int R, int C) {
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            to[r * Stride + c] = row + r < R && column + c < C ? from(row + r, column + c) : X(0);
}

/// sums += a b, where a is `tile_rows` x k and b is k x `tile_columns`.
template <class X>
void add_products(X* sums, const X* a, const X* b, int k) {
    for (int row = 0; row < tile_rows; row += rows_at_once)
        for (int column = 0; column < tile_columns; column += lanes) {
            X part[rows_at_once][lanes] = {};
            for (int at = 0; at < k; at++)
                for (int r = 0; r < rows_at_once; r++)
                    for (int lane = 0; lane < lanes; lane++)
                        part[r][lane] += a[(row + r) * depth + at] * b[at * tile_columns + column + lane];
            for (int r = 0; r < rows_at_once; r++)
                for (int lane = 0; lane < lanes; lane++) sums[(row + r) * tile_columns + column + lane] += part[r][lane];
        }
}

/// One thread per tile of c, so that the sums do not depend on the number of threads.
template <class X>
void multiply(Matrix<X> a, Matrix<X> b, int M, int N, int K, X alpha, X beta, X* c, size_t ldc) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int row = 0; row < M; row += tile_rows)
        for (int column = 0; column < N; column += tile_columns) {
            alignas(64) static thread_local X left[tile_rows * depth], right[depth * tile_columns];
            alignas(64) X sums[tile_rows * tile_columns] = {};
            for (int k = 0; k < K; k += depth) {
                const int here = std::min(depth, K - k);
                copy<depth>(left, a, row, k, tile_rows, here, M, K);
                copy<tile_columns>(right, b, k, column, here, tile_columns, K, N);
                add_products(sums, left, right, here);
            }
            for (int r = 0; r < std::min(tile_rows, M - row); r++)
                for (int n = 0; n < std::min(tile_columns, N - column); n++) {
                    X& out = c[size_t(row + r) * ldc + size_t(column + n)];
                    out = alpha * sums[r * tile_columns + n] + (beta == 0 ? X(0) : beta * out);   // c may be unset
                }
        }
}

}   // namespace

void gemm(Transpose ta, Transpose tb, int M, int N, int K, float alpha, const float* a, size_t lda, const float* b, size_t ldb,
          float beta, float* c, size_t ldc) {
    multiply<float>({a, lda, ta}, {b, ldb, tb}, M, N, K, alpha, beta, c, ldc);
}
void gemm(Transpose ta, Transpose tb, int M, int N, int K, double alpha, const double* a, size_t lda, const double* b, size_t ldb,
          double beta, double* c, size_t ldc) {
    multiply<double>({a, lda, ta}, {b, ldb, tb}, M, N, K, alpha, beta, c, ldc);
}

void choose_blas_kernels(char**) {}
int use_blas_threads(int threads) { return threads; }
std::string describe_blas() { return "no BLAS"; }

void warn_about_blas() {
    std::fputs(
        "warning: this program was built without a BLAS and computes several times slower on the CPU: apt install "
        "libopenblas-openmp-dev and build again\n",
        stderr);
}
