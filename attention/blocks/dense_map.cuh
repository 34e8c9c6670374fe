// The map of dense attention that teaches a gate (distil.cuh), from a call of the kernel. Its maxima are per tile. Documents' blocks begin
// anywhere, so with documents the call is split in two (block_documents.cuh), and rows and tiles are those of blocks.
#pragma once
#include "attention/blocks/block_documents.cuh"
#include "attention/blocks/block_tiles.cuh"
#include "attention/blocks/distil.cuh"

/// The map of the call `a`, which has no output gate. Maxima go to `tile_max` (B, NH, T, tiles) unless the call has memory for them.
/// `any` (B, N, N) stands in for scores: it is read and has no effect.
template <class Device, class X, class P>
DenseMap<Wide<X>> dense_map_of_call(Device device, const P& policy, AttentionForward<X> a, Wide<X>* tile_max, const BlockLists& lists,
                                    const Wide<X>* any, const GateShape& s, const BlocksOfDocuments<Device, X>& of_documents) {
    if (a.documents || !a.statistics.tile_max) a.statistics.tile_max = tile_max;
    if (a.documents) {
        Wide<X>* const no_biases = nullptr;
        list_tiles(device, lists, no_biases, any, 1, TileChoice{.dense_heads = s.NH}, {s, s.NH});
        a.list = {lists.count, lists.list, tiles_of(s.T)};
        of_documents.forward(device, policy, a, {s.block, s.block, s.T, a.documents});
    } else {
        attention_forward(device, policy, a);
    }
    return {a.statistics.tile_max, a.lse};
}
