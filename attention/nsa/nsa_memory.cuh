// How NSA (attention/nsa.cuh) lays out what it keeps and what it needs while a pass runs.
#pragma once
#include "attention/nsa/compress.cuh"
#include "attention/gates/gated_sum.cuh"
#include "attention/kernel/walk.h"

enum { CMP, SLC, WIN };   // the branches

/// What a layer keeps for its backward pass.
template <class X>
struct NsaKept {
    X* projected;             // (B, T, 4, NKV, HS) k and v of cmp, k (rotated) and v of slc; null where the model's are shared
    X *k_hidden, *v_hidden;   // (B, R, NKV, HS) inside phi
    X *k, *v;                 // (B, R, NKV, HS) compressed
    GatedBranches<X> branches;
    Wide<X>* lse[BRANCHES];   // (B, NH, T); that of slc is the layer's own
    int *count, *tiles;       // (B, NH, N) and (B, NH, N, N), N = tiles_of(T)
    size_t bytes;

    NsaKept(std::byte* memory, const LayerShape& s, const BlockGrid& grid, bool shared) {
        const size_t BT = size_t(s.B) * s.T, KV = size_t(s.NKV) * s.HS, compressed = size_t(s.B) * grid.rows(s.T) * KV;
        const size_t N = tiles_of(s.T);
        Carve carve(memory);
        projected = shared ? nullptr : carve.take<X>(BT * 4 * KV);
        for (X** part : {&k_hidden, &v_hidden, &k, &v}) *part = carve.take<X>(compressed);
        for (int c = 0; c < BRANCHES; c++) {
            branches.out[c] = carve.take<X>(BT * s.NH * s.HS);
            branches.gate[c] = carve.take<Wide<X>>(BT * s.NH);
            lse[c] = c == SLC ? nullptr : carve.take<Wide<X>>(BT * s.NH);
        }
        count = carve.take<int>(s.B * s.NH * N), tiles = carve.take<int>(s.B * s.NH * N * N);
        bytes = carve.bytes();
    }
};

/// Scratch memory of either pass.
template <class X>
struct NsaWork {
    Carve carve;
    CompressWork<X> compress;
    X* logits;                  // (B, T, 3, NH) of the gates; backward: their gradient
    Wide<X> *shares, *scores;   // (B, NKV, N, R) and (B, NKV, N, N): the choice of blocks
    X* dprojected;              // (B, T, 4, NKV, HS)
    Wide<X> *dq, *dk;           // (B, T, NH, HS) and (B, T, NKV, HS): what slc adds
    X* dv;                      // (B, T, NKV, HS)
    Wide<X>* dk_compressed;     // (B, R, NKV, HS)
    X *dk_narrow, *dv_compressed;
    Wide<X>* dgate[BRANCHES];   // (B, T, NH)
    std::byte* attention;

    NsaWork(std::byte* memory, const LayerShape& s, const CompressShape& blocks, size_t attention_bytes)
        : carve(memory), compress(carve, blocks) {
        const size_t BT = size_t(s.B) * s.T, KV = size_t(s.NKV) * s.HS, compressed = blocks.keys() * s.HS, N = tiles_of(s.T);
        logits = carve.take<X>(BT * BRANCHES * s.NH);
        shares = carve.take<Wide<X>>(s.B * s.NKV * N * blocks.grid.rows(s.T)), scores = carve.take<Wide<X>>(s.B * s.NKV * N * N);
        dprojected = carve.take<X>(BT * 4 * KV);
        dq = carve.take<Wide<X>>(BT * s.NH * s.HS), dk = carve.take<Wide<X>>(BT * KV), dv = carve.take<X>(BT * KV);
        dk_compressed = carve.take<Wide<X>>(compressed);
        dk_narrow = carve.take<X>(compressed), dv_compressed = carve.take<X>(compressed);
        for (auto& part : dgate) part = carve.take<Wide<X>>(BT * s.NH);
        attention = carve.take<std::byte>(attention_bytes);
    }
};
