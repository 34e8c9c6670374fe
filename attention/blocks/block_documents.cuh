// Attention over chosen blocks (block_sparse.cuh) in rows of packed documents. Blocks begin with each document, but the kernel's tiles
// begin with the row. Two calls make one softmax:
//     own blocks    all tokens in text order; the kernel itself counts positions from a document's first token
//     past blocks   rows of queries and keys by blocks (document_blocks.h), which begin with tiles; tokens of a document's first block
//                   have none
#pragma once
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/forced_blocks.h"
#include "attention/blocks/more_rows.cuh"

/// Keys up to the query in its own block.
struct OwnBlock : ForcedBlocks {
    OwnBlock(const Policy& p, int block_) : ForcedBlocks(p, block_, 0, 1) {}
    static constexpr Traits traits{.gates_output = true, .gates_pairs = true};   // by the head gate if any; by 1
};

/// The passes, with their memory. Lists, biases and maxima of tiles in `a` are by rows of blocks.
template <class Device, class X>
class BlocksOfDocuments {
public:
    /// For policies that gate pairs only if P does.
    template <class P>
    BlocksOfDocuments(Device device, BumpAllocator& allocator, const LayerShape& s, const P& policy)
        : more_(device, allocator, s, s.T, policy) {}

    /// `a` has no output gate.
    template <class P>
    void forward(Device device, const P& policy, const AttentionForward<X>& a, const DocumentBlocks& blocks) const {
        AttentionForward<X> own = of_own(a);
        if (!P::traits.gates_pairs) own.statistics.pair_gate = nullptr;
        attention_forward(device, OwnBlock(policy, blocks.length), own);
        const BlockKeys keys(blocks);
        const BlockQueries queries(blocks);
        more_.gather_keys(device, a, keys);
        more_.forward(device, ChosenBlock(policy), more_arguments(a, queries, a.list), queries, keys);
    }
    template <class P>
    void backward(Device device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                  const DocumentBlocks& blocks) const {
        attention_backward(device, OwnBlock(policy, blocks.length), of_own(a), g);
        const BlockKeys keys(blocks);
        const BlockQueries queries(blocks);
        more_.gather_keys(device, a, keys);
        more_.backward(device, ChosenBlock(policy), more_arguments(a, queries, a.list), g, queries, keys);
    }

private:
    static AttentionForward<X> of_own(AttentionForward<X> a) {
        a.list = {}, a.tile = nullptr, a.statistics.tile_max = nullptr;
        return a;
    }
    MoreRows<Device, X> more_;
};
