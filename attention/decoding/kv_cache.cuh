// The KV cache of a layer: several sequences, each with its own length. All values that change from step to step are in device memory, so
// that a GPU's steps with the same number of rows have identical launches.
#pragma once
#include <algorithm>
#include <utility>

#include "attention/decoding/layer_cache.h"
#include "attention/mechanism.h"
#include "attention/scores/each_element.cuh"
#include "model/device/math.h"
#include "model/operations/matrix.h"

/// `count` tokens from `first` on, in consecutive slots.
struct SlotRun {
    int first, count;
};
/// The first and the last token of a range of slots.
struct SlotRange {
    int first, last;
};

/// The slot of each token in the cache. Every token has a slot of its own, unless later rows see only the first `leading` and the last
/// `recent` tokens. Then the recent slots are a ring, in which a new token replaces the oldest.
class RingSlots {
public:
    using Kept = KeptKeys;
    /// Capacity: `room` tokens.
    constexpr RingSlots(const KeptKeys& kept, int room)
        : leading_(std::min(kept.leading, room)), recent_(std::max(1, std::min(kept.recent, room - leading_))) {}

    constexpr int count() const { return leading_ + recent_; }
    /// The number of slots in use, from the first on, for a sequence of `tokens` tokens.
    constexpr int used(int tokens) const { return std::min(tokens, count()); }
    constexpr int slot(int token) const { return token < leading_ ? token : leading_ + (token - leading_) % recent_; }

    /// The token in a slot of a sequence of `tokens` tokens. Precondition: slot < used(tokens).
    constexpr int token(int slot, int tokens) const {
        if (slot < leading_) return slot;
        const int newest = tokens - 1 - leading_;   // counted in the ring
        return leading_ + newest - (newest - (slot - leading_)) % recent_;
    }

    /// The longest run of tokens from `from` on that later rows may see and that have consecutive slots; count 0 past the last
    /// token.
    constexpr SlotRun run(int from, int tokens) const {
        if (from < std::min(leading_, tokens)) return {from, std::min(leading_, tokens) - from};
        from = std::max(from, oldest(tokens));
        return {from, from < tokens ? std::min(tokens - from, count() - slot(from)) : 0};   // up to the ring's end
    }

    /// The tokens in slots from .. from + n - 1, first to last. If the ring wraps among these slots: all tokens in slots, without
    /// the leading ones before.
    constexpr SlotRange range(int from, int n, int tokens) const {
        const int first = token(from, tokens), turn = slot(oldest(tokens));
        const bool in_order = tokens <= count() || from + n <= leading_ || (from >= leading_ && (from >= turn || from + n <= turn));
        if (in_order) return {first, first + n - 1};
        return {std::min(first, oldest(tokens)), tokens - 1};
    }

private:
    /// The oldest token in the ring.
    constexpr int oldest(int tokens) const { return std::max(std::min(leading_, tokens), tokens - recent_); }

    int leading_, recent_;
};

/// The same for a sequence in chunks whose last `of_chunk` tokens are seen by later chunks. The first slots hold the other tokens of
/// the newest chunk; the last tokens of all chunks follow:
///
///     chunk 6, of_chunk 2, after 10 tokens    slot    0 1 2 3   4 5
///                                             token   6 7 8 9   4 5
///
/// At the beginning of a chunk, the remaining first slots hold tokens of the previous chunk, which no later row sees.
class ChunkSlots {
public:
    using Kept = KeptChunks;
    constexpr ChunkSlots(const KeptChunks& kept, int room)
        : chunk_(kept.chunk), of_chunk_(kept.of_chunk), others_(chunk_ - of_chunk_), count_(used(room)) {}

    constexpr int count() const { return count_; }
    constexpr int used(int tokens) const {
        return std::min(tokens, others_) + tokens / chunk_ * of_chunk_ + std::max(0, tokens % chunk_ - others_);
    }
    constexpr int slot(int token) const {
        const int inside = token % chunk_;
        return inside < others_ ? inside : token / chunk_ * of_chunk_ + inside;
    }

    constexpr int token(int slot, int tokens) const {
        const int newest = newest_chunk(tokens), later = slot - others_;
        if (later >= 0) return later / of_chunk_ * chunk_ + others_ + later % of_chunk_;
        return newest + slot < tokens ? newest + slot : newest - chunk_ + slot;
    }

    constexpr SlotRun run(int from, int tokens) const {
        const int newest = newest_chunk(tokens), inside = from % chunk_;
        if (from < newest && inside < others_) from = of_chunk_ ? from - inside + others_ : newest;
        const int start = from - from % chunk_, end = from - start < others_ ? start + others_ : start + chunk_;
        return {from, std::max(0, std::min(end, tokens) - from)};
    }

    constexpr SlotRange range(int from, int n, int tokens) const {
        const bool in_order = from >= others_ || from + n <= std::min(others_, tokens - newest_chunk(tokens));
        return in_order ? SlotRange{token(from, tokens), token(from + n - 1, tokens)} : SlotRange{0, tokens - 1};
    }

private:
    constexpr int newest_chunk(int tokens) const { return (tokens - 1) / chunk_ * chunk_; }   // its first token

    int chunk_, of_chunk_, others_, count_;
};

constexpr RingSlots slots_for(const KeptKeys& kept, int room) { return {kept, room}; }
constexpr ChunkSlots slots_for(const KeptChunks& kept, int room) { return {kept, room}; }

/// The slots of policy P.
template <class P>
using SlotsOf = decltype(slots_for(std::declval<P>().kept_keys(), 0));

/// Consecutive keys of one head: row n belongs to key first + n of the sequence.
template <class X>
struct KeySpan {
    int first, count;
    Heads<const X> k, v;
    const Wide<X>* columns = nullptr;   // feature f of row n at columns[f * column_stride + n]; readable for a pack past the end
    size_t column_stride = 0;
};

/// Keys, values and features of columns of several sequences; an argument of kernels.
template <class Device, class X, class Slots = RingSlots>
struct KVCache {
    Slots slots;   // of each sequence
    Stored stored;
    int NH, NKV, HS, features;
    int column_stride;              // the slots and, on the CPU, a pack more
    X *k, *v;                       // (sequences, NKV, slots, HS), or, on the CPU,
    StoredBf16 *bf16_k, *bf16_v;    // the same rounded
    Wide<X>* columns;               // (sequences, NH, features, column_stride)

    /// Capacity: room.B sequences of room.T tokens each.
    KVCache(BumpAllocator& memory, const CacheRoom& room, int column_features, const typename Slots::Kept& kept)
        : slots(kept, room.T), stored(room.keys), NH(room.NH), NKV(room.NKV), HS(room.HS), features(column_features),
          column_stride(slots.count() + (std::is_same_v<Device, CPU> ? LANES<X> : 0)) {
        const size_t numbers = size_t(room.B) * NKV * slots.count() * HS, rounded = stored == Stored::as_bf16 ? numbers : 0;
        k = memory.take<X>(numbers - rounded), v = memory.take<X>(numbers - rounded);
        bf16_k = memory.take<StoredBf16>(rounded), bf16_v = memory.take<StoredBf16>(rounded);
        columns = memory.take<Wide<X>>(size_t(room.B) * NH * features * column_stride);
    }

    /// Key head kv's rows of k or v in a sequence.
    constexpr size_t head_at(int sequence, int kv) const { return (size_t(sequence) * NKV + kv) * slots.count() * HS; }
    /// Query head h's features in a sequence: feature f of slot s at [f * column_stride + s].
    constexpr Wide<X>* head_columns(int sequence, int h) const {
        return columns + (size_t(sequence) * NH + h) * features * column_stride;
    }

    // ---- on the CPU

    /// Size of the memory that tile() needs, in elements.
    size_t tile_size() const { return stored == Stored::as_bf16 ? size_t(2) * TILE * HS : 0; }

    /// Keys j .. j + count - 1 of a sequence, at most TILE, of key head kv: in place, or widened into `memory` (tile_size()).
    /// Precondition: the keys are cached in consecutive slots.
    KeySpan<X> tile(int sequence, int kv, int j, int count, X* memory) const {
        const size_t from = head_at(sequence, kv) + size_t(slots.slot(j)) * HS, row = HS;
        if (stored == Stored::as_computed) return {j, count, {k + from, row}, {v + from, row}};
        widen(memory, bf16_k + from, count * row), widen(memory + TILE * row, bf16_v + from, count * row);
        return {j, count, {memory, row}, {memory + TILE * row, row}};
    }
};

/// Keys to append: `count` tokens of a sequence from `first` on, or one token per row.
struct NewKeys {
    DecodeRows rows = {};   // null: tokens of `sequence`
    int sequence = 0, first = 0, count = 1;

    constexpr int sequence_of(int b) const { return rows.sequence ? rows.sequence[b] : sequence; }
    constexpr int position(int b, int t) const { return rows.sequence ? rows.position[b] : t; }
    /// Whether the token is the last of a prompt in its slot. Tokens of a prompt are written in any order.
    template <class Slots>
    constexpr bool takes_slot(const Slots& slots, int t) const {
        return rows.sequence || slots.token(slots.slot(t), first + count) == t;
    }
};

/// Appends keys and values. Rows are (b, token, key head).
template <class Device, class X, class Slots>
struct AppendKeys {
    KVCache<Device, X, Slots> cache;
    Heads<const X> k, v;   // (B, S, NKV, HS)
    int S;
    NewKeys to;
    constexpr void operator()(unsigned row, int d) const {
        const int kv = int(row) % cache.NKV, n = int(row) / cache.NKV, t = to.first + n % to.count, b = n / to.count;
        if (!to.takes_slot(cache.slots, t)) return;
        const size_t at = cache.head_at(to.sequence_of(b), kv) + size_t(cache.slots.slot(to.position(b, t))) * cache.HS + d;
        const size_t token = size_t(b) * S + t, from = size_t(kv) * cache.HS + d;
        const X key = k.data[token * k.row + from], value = v.data[token * v.row + from];
        if (cache.stored == Stored::as_computed) cache.k[at] = key, cache.v[at] = value;
        else if constexpr (std::is_same_v<Device, CPU>) cache.bf16_k[at] = StoredBf16(key), cache.bf16_v[at] = StoredBf16(value);
    }
};

/// Appends features. Rows are (b, query head, feature).
template <class Device, class X, class Slots>
struct AppendColumns {
    KVCache<Device, X, Slots> cache;
    const Wide<X>* column;   // (B, NH, features, padded(S))
    int S;
    NewKeys to;
    constexpr void operator()(unsigned row, int n) const {
        const int t = to.first + n, of_sequence = cache.NH * cache.features, b = int(row) / of_sequence;
        if (!to.takes_slot(cache.slots, t)) return;
        Wide<X>* const features = cache.head_columns(to.sequence_of(b), 0) + size_t(row % of_sequence) * cache.column_stride;
        features[cache.slots.slot(to.position(b, t))] = column[size_t(row) * padded(S) + t];
    }
};

/// Appends one token of each of a.B sequences (NewKeys{rows}), or tokens of a prompt.
template <class On, class Device, class X, class Slots>
void append(const On& device, const KVCache<Device, X, Slots>& cache, const AttentionForward<X>& a, const NewKeys& to) {
    const size_t features = size_t(a.B) * cache.NH * cache.features;
    if (to.count == 0) return;
    each_element(device, size_t(a.B) * to.count * cache.NKV, cache.HS, AppendKeys<Device, X, Slots>{cache, a.k, a.v, a.S, to});
    if (features) each_element(device, features, to.count, AppendColumns<Device, X, Slots>{cache, a.column, a.S, to});
}

/// Prefill: the first a.S tokens of a sequence.
template <class On, class Device, class X, class Slots>
void append_prompt(const On& device, const KVCache<Device, X, Slots>& cache, const AttentionForward<X>& a, int sequence) {
    append(device, cache, a, NewKeys{{}, sequence, 0, a.S});
}
