// The KV caches of several texts on a GPU, and the texts of the rows of a decode step. (key_cache.h: one text on the CPU.) All values
// that change from step to step are in device memory, so that steps with the same number of rows have identical launches.
#pragma once
#include "attention/kernel/key_cache.h"
#include "model/device/device.h"

#ifdef WITH_GPU

/// Keys, values and features of columns, as an argument of kernels.
template <class X, class Slots = RingSlots>
struct TextKeys {
    Slots slots;   // of each text
    int NH, NKV, HS, features;
    X *k, *v;         // (texts, NKV, slots, HS)
    float* columns;   // (texts, NH, features, slots)

    /// Capacity: room.B texts of room.T tokens each.
    TextKeys(BumpAllocator& memory, const LayerShape& room, int column_features, const typename Slots::Kept& kept)
        : slots(kept, room.T), NH(room.NH), NKV(room.NKV), HS(room.HS), features(column_features) {
        const size_t rows = size_t(room.B) * slots.count();
        k = memory.take<X>(rows * NKV * HS), v = memory.take<X>(rows * NKV * HS);
        columns = memory.take<float>(rows * NH * features);
    }

    /// Key head kv's rows of k or v in a text.
    constexpr size_t head_at(int text, int kv) const { return (size_t(text) * NKV + kv) * slots.count() * HS; }
    /// Query head h's features in a text: feature f of slot s at [f * slots.count() + s].
    constexpr float* head_columns(int text, int h) const {
        return columns + (size_t(text) * NH + h) * features * slots.count();
    }
};

/// The cached data of the token before a row, as in KeyCache.
template <class X>
struct LastFeatures {
    const TextKeys<X>& keys;
    int text, token;
    constexpr float last_feature(int h, int f) const {
        return keys.head_columns(text, h)[size_t(f) * keys.slots.count() + keys.slots.slot(token)];
    }
};

/// Keys to append: `count` tokens of a text from `first` on, or one token per row.
struct NewKeys {
    DecodeRows rows = {};   // null: tokens of `text`
    int text = 0, first = 0, count = 1;

    constexpr int text_of(int b) const { return rows.sequence ? rows.sequence[b] : text; }
    constexpr int position(int b, int t) const { return rows.sequence ? rows.position[b] : t; }
    /// Whether the token is the last of a prompt in its slot: the tokens are written in no order, and only the last may write.
    template <class Slots>
    constexpr bool takes_slot(const Slots& slots, int t) const {
        return rows.sequence || slots.token(slots.slot(t), first + count) == t;
    }
};

/// Block (n, b): token to.first + n of sequence b, keys and values of all heads.
template <class X, class Slots>
__global__ void append_keys_kernel(const TextKeys<X, Slots> keys, const AttentionForward<X> a, const NewKeys to) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, t = to.first + int(blockIdx.x), pieces = keys.NKV * keys.HS / PIECE;
    if (!to.takes_slot(keys.slots, t)) return;
    const int text = to.text_of(b), slot = keys.slots.slot(to.position(b, t));
    const size_t token = size_t(b) * a.S + t;
    for (int n = threadIdx.x; n < pieces; n += blockDim.x) {
        const int d = n * PIECE;
        const size_t at = keys.head_at(text, d / keys.HS) + size_t(slot) * keys.HS + d % keys.HS;
        store_packed(keys.k + at, load_packed(a.k.data + token * a.k.row + d));
        store_packed(keys.v + at, load_packed(a.v.data + token * a.v.row + d));
    }
}

/// The same for the features: a thread for each token, head and feature of sequence b.
template <class X, class Slots>
__global__ void append_columns_kernel(const TextKeys<X, Slots> keys, const AttentionForward<X> a, const NewKeys to) {
    const int b = blockIdx.y, n = int(blockIdx.x * blockDim.x + threadIdx.x);
    const int t = to.first + n % to.count, row = n / to.count;   // of (NH, features)
    if (row >= keys.NH * keys.features || !to.takes_slot(keys.slots, t)) return;
    const int slot = keys.slots.slot(to.position(b, t));
    keys.head_columns(to.text_of(b), 0)[size_t(row) * keys.slots.count() + slot] =
        a.column[(size_t(b) * keys.NH * keys.features + row) * padded(a.S) + t];
}

template <class X, class Slots>
void append(const GPU& device, const TextKeys<X, Slots>& keys, const AttentionForward<X>& a, const NewKeys& to) {
    const size_t columns = size_t(to.count) * keys.NH * keys.features;
    if (to.count) launch(device, append_keys_kernel<X, Slots>, Grid(to.count, a.B), 4 * WARP, 0, keys, a, to);
    if (columns) launch(device, append_columns_kernel<X, Slots>, Grid(blocks_for(columns, 256), a.B), 256, 0, keys, a, to);
}

/// Appends the first a.S tokens of a text.
template <class X, class Slots>
void keep_prompt(const GPU& device, const TextKeys<X, Slots>& keys, const AttentionForward<X>& a, int text) {
    append(device, keys, a, {{}, text, 0, a.S});
}

/// Appends the B rows of a step.
template <class X, class Slots>
void keep_rows(const GPU& device, const TextKeys<X, Slots>& keys, const AttentionForward<X>& a, const DecodeRows& rows) {
    append(device, keys, a, {rows});
}

#endif
