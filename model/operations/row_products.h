// A few rows times a matrix, as in every linear layer during decode. The cost is reading the matrix, once for all rows; a library would
// first pack it for reuse by many rows. A row's sums have the same order in every batch, so that texts decoded together have the same
// bits as each alone.
#pragma once
#include "model/base/bf16.h"

/// Maximum number of rows. With more, arithmetic costs more than reading, and a library is faster.
inline constexpr int FEW_ROWS = 16;

/// out (rows, OUT) = inp (rows, IN) weight (OUT, IN)^T, for any number of rows; on all threads.
void multiply_few_rows(float* out, const float* inp, const float* weight, int rows, int IN, int OUT);
void multiply_few_rows(float* out, const float* inp, const StoredBf16* weight, int rows, int IN, int OUT);
void multiply_few_rows(double* out, const double* inp, const double* weight, int rows, int IN, int OUT);
