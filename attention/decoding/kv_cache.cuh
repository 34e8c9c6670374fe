// KV caches of a layer: of one sequence on the CPU, of several on a GPU. There all values that change from step to step are in device
// memory, so that steps with the same number of rows have identical launches.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention/decoding/layer_cache.h"
#include "attention/mechanism.h"
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
    Wide<X> tile_bias = 0;
};

/// Keys, values and features of columns.
template <class Device, class X, class Slots = RingSlots>
class KVCache;

/// The cache of one sequence, on the CPU.
template <class X, class Slots>
class KVCache<CPU, X, Slots> {
public:
    KVCache(BumpAllocator& memory, const CacheRoom& room, int column_features, const typename Slots::Kept& kept)
        : slots_(kept, room.T), stored_(room.keys), NH_(room.NH), NKV_(room.NKV), HS_(room.HS), features_(column_features) {
        const size_t slots = size_t(slots_.count());
        const bool rounds = stored_ == Stored::as_bf16;
        k_ = memory.take<X>(rounds ? 0 : slots * row()), v_ = memory.take<X>(rounds ? 0 : slots * row());
        bf16_k_ = memory.take<StoredBf16>(rounds ? slots * row() : 0),
        bf16_v_ = memory.take<StoredBf16>(rounds ? slots * row() : 0);
        column_stride_ = slots + LANES<X>;
        columns_ = memory.take<Wide<X>>(size_t(NH_) * features_ * column_stride_);
    }

    /// Number of tokens of the sequence so far.
    int tokens() const { return tokens_; }

    /// Appends the a.S tokens of a.k, a.v and a.column.
    void append(const AttentionForward<X>& a) {
        for (int j = 0; j < a.S; j++, tokens_++) {
            const size_t to = slots_.slot(tokens_);
            keep(a.k.data + j * a.k.row, k_, bf16_k_, to);
            keep(a.v.data + j * a.v.row, v_, bf16_v_, to);
            for (int n = 0; n < NH_ * features_; n++) columns_[n * column_stride_ + to] = a.column[size_t(n) * padded(a.S) + j];
        }
    }

    /// Feature f of head h of the last token.
    Wide<X> last_feature(int h, int f) const {
        return columns_[(size_t(h) * features_ + f) * column_stride_ + slots_.slot(tokens_ - 1)];
    }

    /// Calls use(span) for all cached keys of query head h, in the order of the sequence.
    template <class Use>
    void each_span(int h, Use use) const {
        for (SlotRun run = slots_.run(0, tokens_); run.count; run = slots_.run(run.first + run.count, tokens_))
            use(span(h, run.first, run.count));
    }

    /// Size of the memory that tile() needs, in elements.
    size_t tile_size() const { return stored_ == Stored::as_bf16 ? size_t(2) * TILE * HS_ : 0; }

    /// span() of at most TILE keys in type X: in place, or widened into `memory` (tile_size()).
    KeySpan<X> tile(int h, int j, int count, X* memory) const {
        KeySpan<X> keys = span(h, j, count);
        if (stored_ == Stored::as_computed) return keys;
        const size_t from = slots_.slot(j) * row() + size_t(h / (NH_ / NKV_)) * HS_;
        X* const values = memory + size_t(TILE) * HS_;
        for (int n = 0; n < count; n++) {
            widen(memory + size_t(n) * HS_, bf16_k_ + from + n * row(), HS_);
            widen(values + size_t(n) * HS_, bf16_v_ + from + n * row(), HS_);
        }
        keys.k = {memory, size_t(HS_)}, keys.v = {values, size_t(HS_)};
        return keys;
    }

    /// Keys j .. j + count - 1 of query head h; without k and v if these are stored as bf16. Precondition: the keys are cached in
    /// consecutive slots.
    KeySpan<X> span(int h, int j, int count) const {
        const int slot = slots_.slot(j);
        const size_t at = stored_ == Stored::as_bf16 ? 0 : slot * row() + size_t(h / (NH_ / NKV_)) * HS_;
        return {
            j, count, {k_ + at, row()}, {v_ + at, row()}, columns_ + size_t(h) * features_ * column_stride_ + slot, column_stride_};
    }

private:
    size_t row() const { return size_t(NKV_) * HS_; }
    void keep(const X* from, X* exact, StoredBf16* rounded, size_t slot) {
        if (stored_ == Stored::as_computed) std::copy_n(from, row(), exact + slot * row());
        else std::transform(from, from + row(), rounded + slot * row(), [](X x) { return StoredBf16(x); });
    }

    Slots slots_;
    Stored stored_;
    int NH_, NKV_, HS_, features_, tokens_ = 0;
    X *k_, *v_;            // (slots, NKV, HS), or
    StoredBf16 *bf16_k_, *bf16_v_;
    Wide<X>* columns_;     // (NH, features, column_stride)
    size_t column_stride_;
};

#ifdef WITH_GPU

/// The cache of several sequences, on a GPU; an argument of kernels.
template <class X, class Slots>
class KVCache<GPU, X, Slots> {
public:
    Slots slots;   // of each sequence
    int NH, NKV, HS, features;
    X *k, *v;         // (sequences, NKV, slots, HS)
    float* columns;   // (sequences, NH, features, slots)

    /// Capacity: room.B sequences of room.T tokens each.
    KVCache(BumpAllocator& memory, const LayerShape& room, int column_features, const typename Slots::Kept& kept)
        : slots(kept, room.T), NH(room.NH), NKV(room.NKV), HS(room.HS), features(column_features) {
        const size_t rows = size_t(room.B) * slots.count();
        k = memory.take<X>(rows * NKV * HS), v = memory.take<X>(rows * NKV * HS);
        columns = memory.take<float>(rows * NH * features);
    }

    /// Key head kv's rows of k or v in a sequence.
    constexpr size_t head_at(int sequence, int kv) const { return (size_t(sequence) * NKV + kv) * slots.count() * HS; }
    /// Query head h's features in a sequence: feature f of slot s at [f * slots.count() + s].
    constexpr float* head_columns(int sequence, int h) const {
        return columns + (size_t(sequence) * NH + h) * features * slots.count();
    }
};

/// Keys to append: `count` tokens of a sequence from `first` on, or one token per row.
struct NewKeys {
    DecodeRows rows = {};   // null: tokens of `sequence`
    int sequence = 0, first = 0, count = 1;

    constexpr int sequence_of(int b) const { return rows.sequence ? rows.sequence[b] : sequence; }
    constexpr int position(int b, int t) const { return rows.sequence ? rows.position[b] : t; }
    /// Whether the token is the last of a prompt in its slot. A prompt is written in no order, so that only the last may write.
    template <class Slots>
    constexpr bool takes_slot(const Slots& slots, int t) const {
        return rows.sequence || slots.token(slots.slot(t), first + count) == t;
    }
};

/// Block (n, b): token to.first + n of sequence b, keys and values of all heads.
template <class X, class Slots>
__global__ void append_keys_kernel(const KVCache<GPU, X, Slots> keys, const AttentionForward<X> a, const NewKeys to) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, t = to.first + int(blockIdx.x), pieces = keys.NKV * keys.HS / PIECE;
    if (!to.takes_slot(keys.slots, t)) return;
    const int sequence = to.sequence_of(b), slot = keys.slots.slot(to.position(b, t));
    const size_t token = size_t(b) * a.S + t;
    for (int n = threadIdx.x; n < pieces; n += blockDim.x) {
        const int d = n * PIECE;
        const size_t at = keys.head_at(sequence, d / keys.HS) + size_t(slot) * keys.HS + d % keys.HS;
        store_packed(keys.k + at, load_packed(a.k.data + token * a.k.row + d));
        store_packed(keys.v + at, load_packed(a.v.data + token * a.v.row + d));
    }
}

/// The same for the features: a thread for each token, head and feature of sequence b.
template <class X, class Slots>
__global__ void append_columns_kernel(const KVCache<GPU, X, Slots> keys, const AttentionForward<X> a, const NewKeys to) {
    const int b = blockIdx.y, n = int(blockIdx.x * blockDim.x + threadIdx.x);
    const int t = to.first + n % to.count, row = n / to.count;   // of (NH, features)
    if (row >= keys.NH * keys.features || !to.takes_slot(keys.slots, t)) return;
    const int slot = keys.slots.slot(to.position(b, t));
    keys.head_columns(to.sequence_of(b), 0)[size_t(row) * keys.slots.count() + slot] =
        a.column[(size_t(b) * keys.NH * keys.features + row) * padded(a.S) + t];
}

template <class X, class Slots>
void append(const GPU& device, const KVCache<GPU, X, Slots>& keys, const AttentionForward<X>& a, const NewKeys& to) {
    const size_t columns = size_t(to.count) * keys.NH * keys.features;
    if (to.count) launch(device, append_keys_kernel<X, Slots>, Grid(to.count, a.B), 4 * WARP, 0, keys, a, to);
    if (columns) launch(device, append_columns_kernel<X, Slots>, Grid(blocks_for(columns, 256), a.B), 256, 0, keys, a, to);
}

/// Prefill: the first a.S tokens of a sequence.
template <class X, class Slots>
void append_prompt(const GPU& device, const KVCache<GPU, X, Slots>& keys, const AttentionForward<X>& a, int sequence) {
    append(device, keys, a, NewKeys{{}, sequence, 0, a.S});
}

/// Decode: one token of each of a.B sequences.
template <class X, class Slots>
void append(const GPU& device, const KVCache<GPU, X, Slots>& keys, const AttentionForward<X>& a, const DecodeRows& rows) {
    append(device, keys, a, NewKeys{rows});
}

#endif
