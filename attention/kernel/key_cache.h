// The keys that a layer keeps of a text that is being written, token by token: on the CPU, for one text. (On a GPU, for several:
// text_keys.cuh.)
#pragma once
#include <algorithm>
#include <cstdint>

#include "attention/kernel/arguments.h"
#include "attention/kernel/policy.h"
#include "model/device/math.h"
#include "model/operations/matrix.h"

/// Where a token's key is kept: every token of a text has a slot of its own, or where later rows see no others, the first `leading`
/// have one and the last `recent`. The recent ones are a ring, in which a new token takes the place of the oldest. Of a text in
/// chunks the ring comes first, for the first `recent` tokens of the newest chunk, and behind it lie the last `of_chunk` of all chunks:
///
///     chunk 6, of_chunk 2, after 10 tokens    slot    0 1 2 3   4 5
///                                             token   6 7 8 9   4 5
///
/// While the newest chunk is shorter than the ring, the rest of the ring has tokens of the chunk before, which no row sees any more.
class KeySlots {
public:
    /// For texts of at most `room` tokens.
    constexpr KeySlots(const KeptKeys& kept, int room)
        : leading_(std::min(kept.leading, room)),
          recent_(kept.chunk ? kept.chunk - kept.of_chunk : std::max(1, std::min(kept.recent, room - leading_))), chunk_(kept.chunk),
          of_chunk_(kept.of_chunk), count_(used(room)) {}

    constexpr int count() const { return count_; }
    /// How many slots hold a token of a text of `tokens` tokens: the first ones.
    constexpr int used(int tokens) const {
        if (!chunk_) return std::min(tokens, leading_ + recent_);
        return std::min(tokens, recent_) + tokens / chunk_ * of_chunk_ + std::max(0, tokens % chunk_ - recent_);
    }
    constexpr int slot(int token) const {
        if (!chunk_) return token < leading_ ? token : leading_ + (token - leading_) % recent_;
        const int inside = token % chunk_;
        return inside < recent_ ? inside : token / chunk_ * of_chunk_ + inside;
    }

    /// The token in a slot once the text has `tokens` tokens. Precondition: slot < used(tokens).
    constexpr int token(int slot, int tokens) const {
        if (chunk_) {
            const int newest = newest_chunk(tokens), later = slot - recent_;
            if (later >= 0) return later / of_chunk_ * chunk_ + recent_ + later % of_chunk_;
            return newest + slot < tokens ? newest + slot : newest - chunk_ + slot;
        }
        if (slot < leading_) return slot;
        const int newest = tokens - 1 - leading_;   // counted in the ring
        return leading_ + newest - (newest - (slot - leading_)) % recent_;
    }
    /// Whether a token still has its slot.
    constexpr bool has(int token, int tokens) const { return this->token(slot(token), tokens) == token; }

    /// `count` tokens from `first` on, in slots one behind the other.
    struct Run {
        int first, count;
    };
    /// The first such tokens from `from` on that a row to come may see, as many as there are; with a count of 0 past the last.
    constexpr Run run(int from, int tokens) const {
        if (chunk_) {
            const int newest = newest_chunk(tokens), inside = from % chunk_;
            if (from < newest && inside < recent_) from = of_chunk_ ? from - inside + recent_ : newest;
            const int start = from - from % chunk_, end = from - start < recent_ ? start + recent_ : start + chunk_;
            return {from, std::max(0, std::min(end, tokens) - from)};
        }
        if (from < std::min(leading_, tokens)) return {from, std::min(leading_, tokens) - from};
        from = std::max(from, oldest(tokens));
        return {from, from < tokens ? std::min(tokens - from, leading_ + recent_ - slot(from)) : 0};   // up to the ring's end
    }

    /// The tokens in slots from .. from + n - 1, first to last: in this order, or where a ring begins anew among them, all that have
    /// slots, but for the leading ones before.
    struct Range {
        int first, last;
    };
    constexpr Range range(int from, int n, int tokens) const {
        const int first = token(from, tokens);
        if (chunk_) {
            const bool in_order = from >= recent_ || from + n <= std::min(recent_, tokens - newest_chunk(tokens));
            return in_order ? Range{first, token(from + n - 1, tokens)} : Range{0, tokens - 1};
        }
        const int turn = slot(oldest(tokens));
        const bool in_order = tokens <= count_ || from + n <= leading_ || (from >= leading_ && (from >= turn || from + n <= turn));
        if (in_order) return {first, first + n - 1};
        return {std::min(first, oldest(tokens)), tokens - 1};
    }

private:
    /// The first token of the newest chunk.
    constexpr int newest_chunk(int tokens) const { return (tokens - 1) / chunk_ * chunk_; }
    /// The oldest token in the ring of a text that is not in chunks.
    constexpr int oldest(int tokens) const { return std::max(std::min(leading_, tokens), tokens - recent_); }

    int leading_, recent_, chunk_, of_chunk_, count_;
};

/// Keys of one head that lie one behind the other: row n is that of key first + n of the text.
template <class X>
struct KeySpan {
    int first, count;
    Heads<const X> k, v;
    const Wide<X>* columns = nullptr;   // feature f of row n at columns[f * column_stride + n]; readable for a pack past the end
    size_t column_stride = 0;
    Wide<X> tile_bias = 0;
};

/// Keys, values and features of columns.
template <class X>
class KeyCache {
public:
    KeyCache(BumpAllocator& memory, const TextRoom& room, int column_features, const KeptKeys& kept)
        : slots_(kept, room.T), stored_(room.keys), NH_(room.NH), NKV_(room.NKV), HS_(room.HS), features_(column_features) {
        const size_t slots = size_t(slots_.count());
        const bool rounds = stored_ == Stored::as_bf16;
        k_ = memory.take<X>(rounds ? 0 : slots * row()), v_ = memory.take<X>(rounds ? 0 : slots * row());
        bf16_k_ = memory.take<StoredBf16>(rounds ? slots * row() : 0), bf16_v_ = memory.take<StoredBf16>(rounds ? slots * row() : 0);
        column_stride_ = slots + LANES<X>;
        columns_ = memory.take<Wide<X>>(size_t(NH_) * features_ * column_stride_);
    }

    /// Of the text so far.
    int tokens() const { return tokens_; }

    /// The a.S tokens of a.k, a.v and a.column follow.
    void append(const AttentionForward<X>& a) {
        for (int j = 0; j < a.S; j++, tokens_++) {
            const size_t to = slots_.slot(tokens_);
            keep(a.k.data + j * a.k.row, k_, bf16_k_, to);
            keep(a.v.data + j * a.v.row, v_, bf16_v_, to);
            for (int n = 0; n < NH_ * features_; n++) columns_[n * column_stride_ + to] = a.column[size_t(n) * padded(a.S) + j];
        }
    }

    /// Feature f of head h of the last token.
    Wide<X> last_feature(int h, int f) const { return columns_[(size_t(h) * features_ + f) * column_stride_ + slots_.slot(tokens_ - 1)]; }

    /// Calls use(span) for all that is kept of query head h's keys, in the order of the text.
    template <class Use>
    void each_span(int h, Use use) const {
        for (KeySlots::Run run = slots_.run(0, tokens_); run.count; run = slots_.run(run.first + run.count, tokens_))
            use(span(h, run.first, run.count));
    }

    /// Numbers of memory that tile() needs.
    size_t tile_size() const { return stored_ == Stored::as_bf16 ? size_t(2) * TILE * HS_ : 0; }

    /// span() of at most TILE keys in numbers to compute with: where they lie, or widened in `memory` (tile_size()).
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

    /// Keys j .. j + count - 1 of query head h; those that are stored as bf16 without k and v. Precondition: they are kept, and lie one
    /// behind the other.
    KeySpan<X> span(int h, int j, int count) const {
        const int slot = slots_.slot(j);
        const size_t at = stored_ == Stored::as_bf16 ? 0 : slot * row() + size_t(h / (NH_ / NKV_)) * HS_;
        return {j, count, {k_ + at, row()}, {v_ + at, row()}, columns_ + size_t(h) * features_ * column_stride_ + slot, column_stride_};
    }

private:
    size_t row() const { return size_t(NKV_) * HS_; }
    void keep(const X* from, X* exact, StoredBf16* rounded, size_t slot) {
        if (stored_ == Stored::as_computed) std::copy_n(from, row(), exact + slot * row());
        else std::transform(from, from + row(), rounded + slot * row(), [](X x) { return StoredBf16(x); });
    }

    KeySlots slots_;
    Stored stored_;
    int NH_, NKV_, HS_, features_, tokens_ = 0;
    X *k_, *v_;            // (slots, NKV, HS), or
    StoredBf16 *bf16_k_, *bf16_v_;
    Wide<X>* columns_;     // (NH, features, column_stride)
    size_t column_stride_;
};
