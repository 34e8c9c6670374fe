// Linear layers inside a mechanism. They are those of model/operations/linear.cuh, but on the CPU threads take rows in pieces of a fixed
// size, so that attention gives the same bits for any number of threads. (In a library's multithreaded product the split of sums
// depends on the number of threads.)
#pragma once
#include "attention/mechanism.h"
#include "model/operations/linear.cuh"

/// Calls use(first, count) for pieces of the rows: on the CPU each by one thread, on a GPU all rows at once.
template <class Use>
void each_piece(CPU, int rows, Use use) {
    const int piece = 64;
#pragma omp parallel for
    for (int first = 0; first < rows; first += piece) use(first, std::min(piece, rows - first));
}
#ifdef WITH_GPU
template <class Use>
void each_piece(GPU, int rows, Use use) {
    use(0, rows);
}
#endif

/// out (rows, OUT) = inp (rows, IN) weight^T + bias; bias (OUT) may be null.
template <class Device, class X>
void projection_forward(Device device, X* out, const X* inp, const X* weight, const std::type_identity_t<X>* bias, int rows, int IN,
                        int OUT) {
    each_piece(device, rows, [&](int row, int count) {
        linear_forward(device, out + size_t(row) * OUT, inp + size_t(row) * IN, weight, bias, count, IN, OUT);
    });
}

/// dinp (rows, IN) = or += dout (rows, OUT) weight.
template <class Device, class X>
void projection_backward_input(Device device, X* dinp, const X* dout, const X* weight, int rows, int IN, int OUT, Write write) {
    each_piece(device, rows, [&](int row, int count) {
        linear_backward_input(device, dinp + size_t(row) * IN, dout + size_t(row) * OUT, weight, count, IN, OUT, write);
    });
}

/// dweight (OUT, IN) += dout^T inp; dbias (OUT) += column sums of dout; dbias may be null.
template <class X>
void projection_backward_weight(CPU, Wide<X>* dweight, Wide<X>* dbias, const X* dout, const X* inp, int rows, int IN, int OUT) {
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
void projection_backward_weight(GPU device, Wide<X>* dweight, Wide<X>* dbias, const X* dout, const X* inp, int rows, int IN,
                                int OUT) {
    linear_backward_weight(device, dweight, dbias, dout, inp, rows, IN, OUT, Write::add);
}
#endif

/// The backward pass of OUT projections of a layer's normed input by `weight` (OUT, C), without a bias: adds to to.dx and to the gradient
/// of the weight, from dout (B, T, OUT).
template <class Device, class X>
void input_projection_backward(Device device, const ScoreInputGradients<X>& to, const X* dout, const Slot& weight, int OUT,
                               const LayerInputs<X>& in, const X* weights) {
    projection_backward_weight(device, to.dweights + weight.offset, nullptr, dout, in.x, in.B * in.T, in.C, OUT);
    projection_backward_input(device, to.dx, dout, weights + weight.offset, in.B * in.T, in.C, OUT, Write::add);
}
