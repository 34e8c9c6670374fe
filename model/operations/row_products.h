// A few rows times a matrix, as in every linear layer when text is written: what that costs is reading the matrix, once for all
// rows. A library packs it first, for reuse by many rows. The sum of a row and an output is taken in the same order whatever is
// beside it, so that texts that are written side by side get the bits that each would get alone.
#pragma once
#include "model/base/bf16.h"

/// At most so many rows: with more, arithmetic costs more than reading, and a library is better at it.
inline constexpr int FEW_ROWS = 16;

/// out (rows, OUT) = inp (rows, IN) weight (OUT, IN)^T, for any number of rows; on all threads.
void multiply_few_rows(float* out, const float* inp, const float* weight, int rows, int IN, int OUT);
void multiply_few_rows(float* out, const float* inp, const StoredBf16* weight, int rows, int IN, int OUT);
void multiply_few_rows(double* out, const double* inp, const double* weight, int rows, int IN, int OUT);
