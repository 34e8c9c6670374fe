// Byte-pair encoding: a piece of text starts as its bytes; repeatedly, the adjacent pair whose merge was learnt earliest (the
// leftmost of equal pairs) becomes one token.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/utf8.h"

/// left + right -> result. The index in the list of merges is the rank: the lowest goes first.
struct Merge {
    uint32_t left, right, result;
};

/// A direct-mapped cache of the ids of pieces, for one thread: a piece replaces an older one.
class PieceCache {
public:
    static constexpr size_t longest_piece = 24;   // bytes
    static constexpr size_t most_ids = 9;

    PieceCache() : entries_(size_t{1} << bits) {}

    struct alignas(64) Entry {        // one cache line
        uint64_t piece[3] = {};       // bytes, then zeros
        uint32_t ids[most_ids] = {};
        uint8_t bytes = 0;            // of the piece; 0: the entry is empty
        uint8_t count = 0;            // of ids
    };

    /// Precondition: 1 to longest_piece bytes. The entry for `piece`; if not `found`, it is empty and may be filled.
    Entry& find(std::string_view piece, bool& found);

private:
    static constexpr int bits = 16;
    std::vector<Entry> entries_;
};

/// Temporaries for merging, for one thread.
struct MergeScratch {
    std::vector<uint32_t> ids, ranks, previous, next;
    std::vector<uint64_t> heap;
    PieceCache cache;
};

/// Immutable. Encoding n bytes takes O(n log n).
class BytePairEncoder {
public:
    /// byte_ids: each byte's token. whole_pieces: pieces (as bytes) that are one token regardless of merges.
    BytePairEncoder(const std::array<uint32_t, byte_values>& byte_ids, const std::vector<Merge>& merges,
                    std::unordered_map<std::string, uint32_t> whole_pieces);

    /// Appends the ids of a piece.
    void encode(std::string_view piece, MergeScratch& scratch, std::vector<uint32_t>& ids) const;

private:
    struct Rule {
        uint64_t pair;
        uint32_t rank;
    };
    static constexpr uint32_t no_rank = UINT32_MAX;

    size_t place_of(uint64_t pair) const;
    uint32_t rank(uint32_t left, uint32_t right) const;
    std::span<const uint32_t> merged(std::string_view piece, MergeScratch& scratch) const;
    size_t merge_few(MergeScratch& scratch, size_t count) const;
    size_t merge_many(MergeScratch& scratch, size_t count) const;

    std::array<uint32_t, byte_values> byte_ids_;
    std::vector<Rule> rules_;               // a hash table by pair, with linear probing
    int shift_ = 0;                         // the hash's upper bits are the index
    std::vector<uint32_t> results_;         // by rank
    std::unordered_map<std::string, uint32_t> whole_pieces_;
};
