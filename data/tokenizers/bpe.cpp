#include "data/tokenizers/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace {

constexpr uint64_t no_pair = UINT64_MAX;
constexpr size_t few = 48;          // tokens; with more, a heap is faster than a linear search for the lowest rank
constexpr uint64_t odd = 0x9E3779B97F4A7C15;   // 2^64 / golden ratio (Fibonacci hashing)

uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

PieceCache::Entry& PieceCache::find(std::string_view piece, bool& found) {
    uint64_t words[3] = {};
    std::memcpy(words, piece.data(), piece.size());
    uint64_t hash = words[0] * odd;
    hash = (std::rotl(hash, 32) ^ words[1]) * odd;
    hash = (std::rotl(hash, 32) ^ words[2]) * odd;
    Entry& entry = entries_[hash >> (64 - bits)];
    found = entry.bytes == piece.size() && std::memcmp(entry.piece, words, sizeof words) == 0;
    if (!found) {
        std::memcpy(entry.piece, words, sizeof words);
        entry.bytes = 0;   // until the caller fills in the ids
    }
    return entry;
}

BytePairEncoder::BytePairEncoder(const std::array<uint32_t, byte_values>& byte_ids, const std::vector<Merge>& merges,
                                 std::unordered_map<std::string, uint32_t> whole_pieces)
    : byte_ids_(byte_ids), whole_pieces_(std::move(whole_pieces)) {
    const size_t places = std::bit_ceil(std::max<size_t>(16, 2 * merges.size() + 1));   // at most half full
    rules_.assign(places, {no_pair, no_rank});
    shift_ = 64 - std::countr_zero(places);
    for (const Merge& merge : merges) {
        const uint64_t pair = pair_of(merge.left, merge.right);
        rules_[place_of(pair)] = {pair, static_cast<uint32_t>(results_.size())};   // of equal pairs the last wins
        results_.push_back(merge.result);
    }
}

// Index of the pair in the table, or of the slot for it.
size_t BytePairEncoder::place_of(uint64_t pair) const {
    size_t place = (pair * odd ^ std::rotl(pair, 17) * odd) >> shift_;
    while (rules_[place].pair != pair && rules_[place].pair != no_pair) place = (place + 1) & (rules_.size() - 1);
    return place;
}

uint32_t BytePairEncoder::rank(uint32_t left, uint32_t right) const { return rules_[place_of(pair_of(left, right))].rank; }

void BytePairEncoder::encode(std::string_view piece, MergeScratch& scratch, std::vector<uint32_t>& ids) const {
    if (piece.size() == 1) return ids.push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
    if (piece.size() > PieceCache::longest_piece) {
        const std::span<const uint32_t> result = merged(piece, scratch);
        ids.insert(ids.end(), result.begin(), result.end());
        return;
    }
    bool found;
    PieceCache::Entry& entry = scratch.cache.find(piece, found);
    if (found) {
        ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
        return;
    }
    const std::span<const uint32_t> result = merged(piece, scratch);
    ids.insert(ids.end(), result.begin(), result.end());
    if (result.size() > PieceCache::most_ids) return;
    std::copy(result.begin(), result.end(), entry.ids);
    entry.count = static_cast<uint8_t>(result.size());
    entry.bytes = static_cast<uint8_t>(piece.size());
}

std::span<const uint32_t> BytePairEncoder::merged(std::string_view piece, MergeScratch& scratch) const {
    std::vector<uint32_t>& ids = scratch.ids;
    ids.resize(piece.size());
    if (!whole_pieces_.empty())
        if (const auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
            ids[0] = whole->second;
            return {ids.data(), 1};
        }
    for (size_t i = 0; i < piece.size(); ++i) ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    scratch.ranks.resize(piece.size());
    for (size_t i = 0; i + 1 < piece.size(); ++i) scratch.ranks[i] = rank(ids[i], ids[i + 1]);
    const size_t count = piece.size() <= few ? merge_few(scratch, piece.size()) : merge_many(scratch, piece.size());
    return {ids.data(), count};
}

// Linear search for the lowest rank; each merge shifts the tokens after it.
size_t BytePairEncoder::merge_few(MergeScratch& scratch, size_t count) const {
    uint32_t* ids = scratch.ids.data();
    uint32_t* ranks = scratch.ranks.data();   // ranks[i]: of tokens i and i + 1
    while (count > 1) {
        const size_t i = std::min_element(ranks, ranks + count - 1) - ranks;   // the leftmost of equal ones
        if (ranks[i] == no_rank) break;
        ids[i] = results_[ranks[i]];
        std::copy(ids + i + 2, ids + count, ids + i + 1);
        std::copy(ranks + i + 1, ranks + count - 1, ranks + i);
        --count;
        if (i > 0) ranks[i - 1] = rank(ids[i - 1], ids[i]);
        if (i + 1 < count) ranks[i] = rank(ids[i], ids[i + 1]);
    }
    return count;
}

// Tokens form a linked list, indexed by their first byte; a heap holds every pair that may merge, by rank, then index. A heap entry
// is stale if the pair at its index has another rank by now.
size_t BytePairEncoder::merge_many(MergeScratch& scratch, size_t count) const {
    std::vector<uint32_t>&ids = scratch.ids, &ranks = scratch.ranks, &previous = scratch.previous, &next = scratch.next;
    std::vector<uint64_t>& heap = scratch.heap;
    const auto none = static_cast<uint32_t>(count);
    previous.resize(count);
    next.resize(count);
    heap.clear();
    for (uint32_t i = 0; i < none; ++i) {
        previous[i] = i == 0 ? none : i - 1;
        next[i] = i + 1;
        if (i + 1 == none) ranks[i] = no_rank;
        if (ranks[i] != no_rank) heap.push_back(pair_of(ranks[i], i));
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    const auto update = [&](uint32_t i) {
        ranks[i] = next[i] == none ? no_rank : rank(ids[i], ids[next[i]]);
        if (ranks[i] == no_rank) return;
        heap.push_back(pair_of(ranks[i], i));
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    };
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), std::greater<>());
        const auto lowest = static_cast<uint32_t>(heap.back() >> 32), i = static_cast<uint32_t>(heap.back());
        heap.pop_back();
        if (ranks[i] != lowest) continue;
        const uint32_t gone = next[i];
        ids[i] = results_[lowest];
        ranks[gone] = no_rank;
        next[i] = next[gone];
        if (next[i] != none) previous[next[i]] = i;
        update(i);
        if (previous[i] != none) update(previous[i]);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != none; i = next[i]) ids[kept++] = ids[i];
    return kept;
}
