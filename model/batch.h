// One micro-batch of tokens.
#pragma once
#include <cstdint>

/// At most RUN rows of a batch with the same token: RowsByToken::rows[begin .. end).
struct TokenRun {
    int32_t token, begin, end;
};

/// The rows of a batch sorted by token, ascending within each token, and divided into runs. Tokens with several runs come first,
/// their runs adjacent. Unused runs are empty.
struct RowsByToken {
    static constexpr int RUN = 256;
    const int32_t* rows = nullptr;
    const TokenRun* runs = nullptr;   // (capacity)
    int capacity = 0;

    /// Upper bound on the runs of `rows` tokens from a vocabulary of V.
    static int capacity_for(int rows, int V) { return (rows < V ? rows : V) + rows / RUN + 1; }
};

/// Fills rows (n) and runs (capacity_for(n, V)) from tokens (n).
void sort_by_token(const int32_t* tokens, int n, int V, int32_t* rows, TokenRun* runs);

/// B sequences of T tokens in device memory.
struct Batch {
    int B, T;
    const int32_t* tokens;              // (B, T)
    const int32_t* targets = nullptr;   // (B, T) the next token of each; null if no loss is computed
    RowsByToken by_token = {};          // rows of `tokens`; empty if there is no backward pass
};
