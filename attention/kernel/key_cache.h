// The keys that a layer keeps of a text that is being written, token by token: on the CPU, for one text.
#pragma once
#include <algorithm>
#include <cstdint>

#include "attention/kernel/arguments.h"
#include "attention/kernel/policy.h"
#include "model/device/math.h"

/// Keys of one head that lie one behind the other: row n is that of key first + n of the text.
template <class X>
struct KeySpan {
    int first, count;
    Heads<const X> k, v;
    const Wide<X>* columns = nullptr;   // feature f of row n at columns[f * column_stride + n]; readable for a pack past the end
    size_t column_stride = 0;
    Wide<X> tile_bias = 0;
};

/// Keys, values and features of columns: of all tokens, or where later rows see no others, of the first `leading` and the last
/// `recent`. The recent ones are a ring, in which a new token takes the place of the oldest.
template <class X>
class KeyCache {
public:
    /// For at most room.T tokens; room.B is 1.
    KeyCache(BumpAllocator& memory, const LayerShape& room, int column_features, const KeptKeys& kept)
        : kept_(kept), NH_(room.NH), NKV_(room.NKV), HS_(room.HS), features_(column_features) {
        kept_.leading = std::min(kept.leading, room.T);
        kept_.recent = std::max(1, std::min(kept.recent, room.T - kept_.leading));
        const size_t slots = size_t(kept_.leading) + kept_.recent;
        k_ = memory.take<X>(slots * row()), v_ = memory.take<X>(slots * row());
        column_stride_ = slots + LANES<X>;
        columns_ = memory.take<Wide<X>>(size_t(NH_) * features_ * column_stride_);
    }

    /// Of the text so far.
    int tokens() const { return tokens_; }

    /// The a.S tokens of a.k, a.v and a.column follow.
    void append(const AttentionForward<X>& a) {
        for (int j = 0; j < a.S; j++, tokens_++) {
            const size_t to = slot(tokens_);
            std::copy_n(a.k.data + j * a.k.row, row(), k_ + to * row());
            std::copy_n(a.v.data + j * a.v.row, row(), v_ + to * row());
            for (int n = 0; n < NH_ * features_; n++) columns_[n * column_stride_ + to] = a.column[size_t(n) * padded(a.S) + j];
        }
    }

    /// Feature f of head h of the last token.
    Wide<X> last_feature(int h, int f) const { return columns_[(size_t(h) * features_ + f) * column_stride_ + slot(tokens_ - 1)]; }

    /// Calls use(span) for all that is kept of query head h's keys, in the order of the text.
    template <class Use>
    void each_span(int h, Use use) const {
        const int leading = std::min(tokens_, kept_.leading);
        if (leading) use(span(h, 0, leading));
        for (int j = std::max(leading, tokens_ - kept_.recent), count; j < tokens_; j += count) {
            count = std::min(tokens_ - j, kept_.recent - (j - leading) % kept_.recent);   // up to the ring's end
            use(span(h, j, count));
        }
    }

    /// Keys j .. j + count - 1 of query head h. Precondition: they are kept, and lie one behind the other.
    KeySpan<X> span(int h, int j, int count) const {
        const size_t at = slot(j) * row() + size_t(h / (NH_ / NKV_)) * HS_;
        return {j, count, {k_ + at, row()}, {v_ + at, row()}, columns_ + size_t(h) * features_ * column_stride_ + slot(j), column_stride_};
    }

private:
    size_t row() const { return size_t(NKV_) * HS_; }
    size_t slot(int j) const { return j < kept_.leading ? j : kept_.leading + (j - kept_.leading) % kept_.recent; }

    KeptKeys kept_;
    int NH_, NKV_, HS_, features_, tokens_ = 0;
    X *k_, *v_;            // (slots, NKV, HS)
    Wide<X>* columns_;     // (NH, features, column_stride)
    size_t column_stride_;
};
