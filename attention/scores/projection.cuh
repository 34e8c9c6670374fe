// Linear layers inside a mechanism. They are those of model/operations/linear.cuh, but on the CPU threads take rows in pieces of a fixed
// size, so that attention gives the same bits for any number of threads. (In a library's multithreaded product the split of sums
// depends on the number of threads.)
#pragma once
#include "model/operations/linear.cuh"

/// out (rows, OUT) = inp (rows, IN) weight^T + bias; bias (OUT) may be null.
template <class X>
void projection_forward(CPU, X* out, const X* inp, const X* weight, const X* bias, int rows, int IN, int OUT) {
    const int piece = 64;
#pragma omp parallel for
    for (int row = 0; row < rows; row += piece)
        linear_forward(CPU{}, out + size_t(row) * OUT, inp + size_t(row) * IN, weight, bias, std::min(piece, rows - row), IN, OUT);
}

/// dinp (rows, IN) = or += dout (rows, OUT) weight.
template <class X>
void projection_backward_input(CPU, X* dinp, const X* dout, const X* weight, int rows, int IN, int OUT, Write write) {
    const int piece = 64;
#pragma omp parallel for
    for (int row = 0; row < rows; row += piece)
        linear_backward_input(CPU{}, dinp + size_t(row) * IN, dout + size_t(row) * OUT, weight, std::min(piece, rows - row), IN,
                              OUT, write);
}

/// dweight (OUT, IN) += dout^T inp; dbias (OUT) += column sums of dout; dbias may be null.
template <class X>
void projection_backward_weight(CPU, X* dweight, X* dbias, const X* dout, const X* inp, int rows, int IN, int OUT) {
    const int piece = 16;   // outputs
#pragma omp parallel for
    for (int o0 = 0; o0 < OUT; o0 += piece) {
        const int outputs = std::min(piece, OUT - o0);
        gemm(Transpose::yes, Transpose::no, outputs, IN, rows, X(1), dout + o0, OUT, inp, IN, X(1), dweight + size_t(o0) * IN, IN);
        for (int row = 0; dbias && row < rows; row++)
            for (int o = o0; o < o0 + outputs; o++) dbias[o] += dout[size_t(row) * OUT + o];
    }
}

#ifdef WITH_GPU

template <class X>
void projection_forward(GPU device, X* out, const X* inp, const X* weight, const X* bias, int rows, int IN, int OUT) {
    linear_forward(device, out, inp, weight, bias, rows, IN, OUT);
}
template <class X>
void projection_backward_input(GPU device, X* dinp, const X* dout, const X* weight, int rows, int IN, int OUT, Write write) {
    linear_backward_input(device, dinp, dout, weight, rows, IN, OUT, write);
}
template <class X>
void projection_backward_weight(GPU device, Wide<X>* dweight, Wide<X>* dbias, const X* dout, const X* inp, int rows, int IN,
                                int OUT) {
    linear_backward_weight(device, dweight, dbias, dout, inp, rows, IN, OUT, Write::add);
}

#endif
