// Blocks of tokens in packed rows (--document-mask, varlen). Blocks are counted from each document's first token; otherwise a document's
// blocks would depend on the row. Documents begin anywhere and their number depends on the data, while memory and launches are planned
// for T tokens. Both are possible because every block of a row has the number
//     n = (its first token) / stride
// Numbers are unique if blocks are at least a stride long and lie in one document. Their maximum is that of a single text of T tokens, and
// a document's numbers are consecutive. Some numbers have no block. In a row that is one text, block n begins at n stride.
// If queries go by blocks too, a document's last block is cut short. All of these blocks but the first of each document follow a
// complete block. Their number in the row of queries is one more than that block's, and so unique.
#pragma once
#include "model/batch.h"

/// Blocks of `length` tokens, one every `stride` tokens, that are complete within their document. A row that is one text has further
/// numbers at its end, of blocks that extend past it. Precondition, with documents: length >= stride.
struct DocumentBlocks {
    int length, stride, T;
    Documents documents = {};

    /// The number of tokens of its document before token t, and the number of the document's first block.
    constexpr int inside(int b, int t) const { return t - start(b, t); }
    constexpr int first(int b, int t) const { return start(b, t) / stride; }
    /// The number of token t's past blocks: the blocks of its document before its own. For length == stride.
    constexpr int past(int b, int t) const { return inside(b, t) / length; }

    /// The first token of block n; -1: no block has this number. As blocks are a stride long, block n holds token (n + 1) stride - 1.
    constexpr int begin(int b, int n) const {
        if (!documents) return n * stride;
        const int last = (n + 1) * stride - 1;
        if (last >= T) return -1;
        const int t = last - inside(b, last) % stride;
        return t + length <= T && start(b, t + length - 1) == start(b, t) ? t : -1;
    }

    /// The first token of the block after block n - 1, complete or not; -1: its document has no tokens there. For length == stride.
    constexpr int following(int b, int n) const {
        const int before = n > 0 ? begin(b, n - 1) : -1, t = before + length;
        return before >= 0 && t < T && start(b, t) == start(b, before) ? t : -1;
    }

    /// Length of the document of token t.
    constexpr int tokens(int b, int t) const {
        if (!documents) return T;
        int first = t + 1, last = T;   // the next document's first token is among these
        while (first < last) {
            const int middle = (first + last) / 2;
            if (start(b, middle) == start(b, t)) first = middle + 1;
            else last = middle;
        }
        return first - start(b, t);
    }

private:
    constexpr int start(int b, int t) const { return documents ? documents.at(b, t) : 0; }
};

/// A `Rows` of keys (kernel/rows.cuh): block n has rows n length to (n + 1) length - 1, whole tiles, wherever it begins in the text. For
/// length == stride.
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

/// A `Rows` of queries: row n length + m is token m of following(n), so a tile's rows are of one block. Tokens of documents' first
/// blocks have no row.
struct BlockQueries {
    static constexpr bool per_head = false;
    int count, T;
    DocumentBlocks blocks;
    explicit constexpr BlockQueries(const DocumentBlocks& of) : count(of.T), T(of.T), blocks(of) {}

    constexpr int token(int b, int /*h*/, int row) const {
        const int begin = blocks.following(b, row / blocks.length), m = row % blocks.length;
        return begin >= 0 && begin + m < T && blocks.inside(b, begin + m) == blocks.inside(b, begin) + m ? begin + m : -1;
    }
    constexpr int row(int b, int /*h*/, int token) const {
        const int inside = blocks.inside(b, token);
        return inside < blocks.length ? -1 : blocks.first(b, token) * blocks.length + inside;
    }
};
