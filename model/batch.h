// One micro-batch of tokens as the model reads it.
#pragma once
#include <cstdint>

/// At most RUN rows of a batch that hold the same token: RowsByToken::rows[begin .. end).
struct TokenRun {
    int32_t token, begin, end;
};

/// The rows of a batch sorted by token, in ascending order for each token, and cut into runs. The runs of tokens that fill more
/// than one come first, next to each other. Runs beyond those that are needed are empty.
struct RowsByToken {
    static constexpr int RUN = 256;
    const int32_t* rows = nullptr;
    const TokenRun* runs = nullptr;   // (capacity)
    int capacity = 0;

    /// Runs that `rows` tokens of a vocabulary of V may need.
    static int capacity_for(int rows, int V) { return (rows < V ? rows : V) + rows / RUN + 1; }
};

/// Fills rows (n) and runs (capacity_for(n, V)) from tokens (n).
void sort_by_token(const int32_t* tokens, int n, int V, int32_t* rows, TokenRun* runs);

/// B sequences of T tokens in the memory of the device that computes.
struct Batch {
    int B, T;
    const int32_t* tokens;              // (B, T)
    const int32_t* targets = nullptr;   // (B, T) the token behind each; null where no loss is asked for
    RowsByToken by_token = {};          // of `tokens`; empty where nothing trains
};
