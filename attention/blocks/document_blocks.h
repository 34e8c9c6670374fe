// Blocks of tokens in packed rows (--document-mask): they are those of each document, counted from its first token, or a document would
// have other blocks in a row than alone. Documents begin anywhere, and how many there are the data say, while memory and launches are
// planned for T tokens. Both hold because every block of a row is known by the number
//     n = (its first token) / stride
// No two have the same where blocks are at least a stride long and lie in one document; numbers end where those of a single text of T
// tokens end; and those of a document are consecutive. Some numbers are of no block. In a row that is one text block n begins at n stride.
#pragma once
#include "model/batch.h"

/// Blocks of `length` tokens, one every `stride` of them, that are whole within their document. A row that is one text has further numbers
/// at its end, of blocks that reach over it. Precondition, with documents: length >= stride.
struct DocumentBlocks {
    int length, stride, T;
    Documents documents = {};

    /// How many tokens of its document lie before token t, and the number of the document's first block.
    constexpr int inside(int b, int t) const { return t - start(b, t); }
    constexpr int first(int b, int t) const { return start(b, t) / stride; }

    /// The first token of block n; -1: no block has this number. As blocks are a stride long, block n holds token (n + 1) stride - 1.
    constexpr int begin(int b, int n) const {
        if (!documents) return n * stride;
        const int last = (n + 1) * stride - 1;
        if (last >= T) return -1;
        const int t = last - inside(b, last) % stride;
        return t + length <= T && start(b, t + length - 1) == start(b, t) ? t : -1;
    }

private:
    constexpr int start(int b, int t) const { return documents ? documents.at(b, t) : 0; }
};

/// Numbers of blocks of a document, from those that count from its first: `chosen` has `slots`, and -1 where there is none.
constexpr void number_in_row(int* chosen, int slots, int first) {
    for (int n = 0; n < slots; n++)
        if (chosen[n] >= 0) chosen[n] += first;
}

/// A `Rows` of keys (kernel/rows.cuh) in which block n has rows n length to (n + 1) length - 1, and so whole tiles, wherever it begins.
/// Its blocks are as far apart as they are long.
struct BlockKeys {
    static constexpr bool per_head = false;
    int count, T;
    DocumentBlocks blocks;
    explicit constexpr BlockKeys(const DocumentBlocks& of) : count(of.T), T(of.T), blocks(of) {}

    constexpr int token(int b, int /*h*/, int row) const {
        const int begin = blocks.begin(b, row / blocks.length);
        return begin < 0 ? -1 : begin + row % blocks.length;
    }
    constexpr int row(int b, int /*h*/, int token) const {
        const int inside = blocks.inside(b, token), n = blocks.first(b, token) + inside / blocks.length;
        return blocks.begin(b, n) == token - inside % blocks.length ? n * blocks.length + inside % blocks.length : -1;
    }
};
