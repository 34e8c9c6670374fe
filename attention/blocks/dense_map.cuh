// The dense call whose map teaches a gate (distil.cuh). Its maxima are per tile. Documents' blocks begin anywhere, so with documents the
// call is split in two (block_documents.cuh), and rows and tiles are by blocks.
#pragma once
#include "attention/blocks/block_documents.cuh"
#include "attention/blocks/block_tiles.cuh"
#include "attention/blocks/distil.cuh"

/// The call, with its memory.
template <class Device, class X>
class DenseTeacher {
    using W = Wide<X>;

public:
    W* divergences;   // (B, NH, T), for distil()

    /// `teaches` false: no memory. `is_output`: the call's result is the layer's.
    DenseTeacher(BumpAllocator& allocator, const LayerShape& s, bool teaches, bool is_output) : is_output_(is_output) {
        const size_t rows = teaches * size_t(s.B) * s.NH * s.T, own = is_output ? 0 : rows;
        divergences = allocator.take<W>(rows), tile_max_ = allocator.take<W>(rows * tiles_of(s.T));
        out_ = allocator.take<X>(own * s.HS), lse_ = allocator.take<W>(own);
    }

    /// The map of the policy's call without an output gate; `statistics` are filled if its result is the layer's. `lists` and
    /// `of_documents` are scratch memory.
    template <class P>
    DenseMap<W> map(Device device, const P& policy, const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics,
                    const GateShape& s, const BlockLists& lists, const BlocksOfDocuments<Device, X>& of_documents) const {
        AttentionForward<X> a = ungated_arguments(in, state, is_output_ ? statistics : Statistics<X>{});
        if (!is_output_) a.out = out_, a.lse = lse_;
        if (a.documents || !a.statistics.tile_max) a.statistics.tile_max = tile_max_;
        if (a.documents) {
            list_tiles<W>(device, lists, nullptr, nullptr, TileChoice{.dense_heads = s.NH}, {s, s.NH});
            a.list = {lists.count, lists.list, tiles_of(s.T)};
            of_documents.forward(device, policy, a, {s.block, s.block, s.T, a.documents});
        } else {
            attention_forward(device, policy, a);
        }
        return {a.statistics.tile_max, a.lse};
    }

private:
    bool is_output_;
    W *tile_max_, *lse_;   // (B, NH, T, tiles), (B, NH, T)
    X* out_;               // (B, T, NH, HS)
};
