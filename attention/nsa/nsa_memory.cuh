// Memory layout of NSA (attention/nsa.cuh): memory kept for the backward pass, and scratch memory.
#pragma once
#include "attention/gates/gated_sum.cuh"
#include "attention/kernel/layer.h"
#include "attention/nsa/selection.cuh"

enum { CMP, SLC, WIN };   // the branches

/// Kept for the backward pass.
template <class X>
struct NsaKept {
    X* projected;             // (B, T, 4, NKV, HS) k and v of cmp, k (rotated) and v of slc; null where the model's are shared
    X *k_hidden, *v_hidden;   // (B, R, NKV, HS) inside phi
    X *k, *v;                 // (B, R, NKV, HS) compressed
    GatedBranches<X> branches;
    Wide<X>* lse[BRANCHES];   // (B, NH, T); slc's is the layer's own
    int* choice;              // slc's (Selection::choice)
    size_t bytes;

    NsaKept(std::byte* memory, const LayerShape& s, const BlockGrid& grid, bool shared, const Selection& selection) {
        const size_t BT = size_t(s.B) * s.T, KV = size_t(s.NKV) * s.HS, compressed = size_t(s.B) * grid.rows(s.T) * KV;
        BumpAllocator allocator(memory);
        projected = shared ? nullptr : allocator.take<X>(BT * 4 * KV);
        for (X** part : {&k_hidden, &v_hidden, &k, &v}) *part = allocator.take<X>(compressed);
        for (int c = 0; c < BRANCHES; c++) {
            branches.out[c] = allocator.take<X>(BT * s.NH * s.HS);
            branches.gate[c] = allocator.take<Wide<X>>(BT * s.NH);
            lse[c] = c == SLC ? nullptr : allocator.take<Wide<X>>(BT * s.NH);
        }
        choice = allocator.take<int>(selection.choice(s).size());
        bytes = allocator.bytes();
    }
};

/// Scratch memory of either pass.
template <class X, class Device>
struct NsaWork {
    BumpAllocator allocator;
    CompressWork<X> compress;
    X* logits;                  // (B, T, 3, NH) of the gates; backward: their gradient
    Wide<X>* scores;            // scores of blocks during the choice
    X* dprojected;              // (B, T, 4, NKV, HS)
    Wide<X> *dq, *dk;           // (B, T, NH, HS) and (B, T, NKV, HS): slc's contribution
    X* dv;                      // (B, T, NKV, HS)
    Wide<X>* dk_compressed;     // (B, R, NKV, HS)
    X *dk_narrow, *dv_compressed;
    Wide<X>* dgate[BRANCHES];   // (B, T, NH)
    SelectedAttention<Device, X> selected;
    std::byte* attention;
    int* positions;             // (B, NH, R) positions of packed documents' compressed keys

    NsaWork(Device device, std::byte* memory, const LayerShape& s, const CompressShape& blocks, const Selection& selection,
            const Policy& policy, size_t score_numbers, size_t attention_bytes)
        : allocator(memory), compress(allocator, blocks), selected(device, allocator, s, selection, policy) {
        const size_t BT = size_t(s.B) * s.T, KV = size_t(s.NKV) * s.HS, compressed = blocks.keys() * s.HS;
        logits = allocator.take<X>(BT * BRANCHES * s.NH);
        scores = allocator.take<Wide<X>>(score_numbers);
        dprojected = allocator.take<X>(BT * 4 * KV);
        dq = allocator.take<Wide<X>>(BT * s.NH * s.HS), dk = allocator.take<Wide<X>>(BT * KV), dv = allocator.take<X>(BT * KV);
        dk_compressed = allocator.take<Wide<X>>(compressed);
        dk_narrow = allocator.take<X>(compressed), dv_compressed = allocator.take<X>(compressed);
        for (auto& part : dgate) part = allocator.take<Wide<X>>(BT * s.NH);
        attention = allocator.take<std::byte>(attention_bytes);
        positions = allocator.take<int>(size_t(s.B) * s.NH * blocks.grid.rows(s.T));
    }
};
