// Token embedding: row `token` of the table. The backward is a scatter; the rows of a batch are sorted by token on the host, so
// that it is a sum in a fixed order on every device.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/batch.h"
#include "model/device.h"

/// out (rows, C) = table (V, C) [tokens (rows)]. Precondition: 0 <= token < V (checked once, when shards are opened).
template <class X>
void embedding_forward(CPU, X* out, const int32_t* tokens, const X* table, int rows, int C) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) std::copy_n(table + size_t(tokens[row]) * C, C, out + size_t(row) * C);
}

/// dtable (V, C) += the rows of dout (rows, C) at their tokens. Always adds: with a tied head the table already holds the head's
/// gradient. Each thread owns a range of channels for all rows, so the order of the sum never changes.
template <class X>
void embedding_backward(CPU, Wide<X>* dtable, const X* dout, const RowsByToken& by_token, int C) {
    const int width = 32;
#pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += width)
        for (int n = 0; n < by_token.capacity; n++) {
            const TokenRun run = by_token.runs[n];
            Wide<X>* to = dtable + size_t(run.token) * C;
            for (int r = run.begin; r < run.end; r++)
                for (int c = c0; c < std::min(C, c0 + width); c++) to[c] += dout[size_t(by_token.rows[r]) * C + c];
        }
}
