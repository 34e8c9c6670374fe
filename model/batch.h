// One micro-batch of tokens.
#pragma once
#include <cstddef>
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

/// The documents of packed rows: token t of row b belongs to the one whose first token in that row is at(b, t). Empty: each row is
/// one text.
struct Documents {
    const int32_t* start = nullptr;   // (B, T)
    int T = 0;
    bool restart_positions = false;   // RoPE counts from a document's first token instead of the row's
    constexpr explicit operator bool() const { return start != nullptr; }
    constexpr int at(int b, int t) const { return start[size_t(b) * T + t]; }
};

/// How batches tell documents apart.
struct DocumentBorders {
    int32_t end_of_text = -1;         // the token between documents; -1: rows are one text each
    bool restart_positions = false;
    constexpr explicit operator bool() const { return end_of_text >= 0; }
};

/// Fills start (B, T) as Documents has it. A document begins with `end_of_text`, the token between documents; what a row has before
/// the first of them is the rest of a document, and begins at 0.
void find_documents(const int32_t* tokens, int B, int T, int32_t end_of_text, int32_t* start);

/// B sequences of T tokens in device memory.
struct Batch {
    int B, T;
    const int32_t* tokens;              // (B, T)
    const int32_t* targets = nullptr;   // (B, T) the next token of each; null if no loss is computed
    RowsByToken by_token = {};          // rows of `tokens`; empty if there is no backward pass
    Documents documents = {};           // of `tokens`, where attention keeps them apart
};
