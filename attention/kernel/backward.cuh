// The tiled attention kernel on the GPU, backward, for any policy: the kernel and its launches. A block keeps the K and V of its key
// tile in shared memory and their gradients in registers. For each query tile that sees the key tile, its steps are
// (backward_block.cuh):
//     loads       wait for this tile's Q, dO and row values; barrier; start to copy the next tile's
//     products    S^T = K Q^T and dP^T = V dO^T, from them P^T and dS^T;  dV += P^T dO, dK += dS^T Q;  dS^T to shared memory
//     barrier     dS^T is complete
//     release     the previous query tile's semaphore: its dQ has reached memory by now
//     product     dS K
//     semaphore   each warp waits until the next higher key tile has added to this query tile
//     adds        dQ += dS K in global memory, where the L2 cache does the sum
#pragma once
#include "attention/kernel/backward_block.cuh"

template <class Shape, class P>
__global__ void __launch_bounds__(Shape::THREADS, Shape::BLOCKS)
    attention_backward_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                              const __grid_constant__ AttentionBackward<typename Shape::X> g,
                              const __grid_constant__ BackwardMemory memory) {
    auto& shared = dynamic_shared<BackwardShared<Shape>>();
    if (threadIdx.x == 0) shared.work = atomicAdd(memory.work_counter, 1);
    __syncthreads();
    BackwardBlock<Shape, P>(policy, a, g, memory, shared, shared.work).run();
}

template <class Shape, class P, class X>
void attention_backward_as(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                           const BackwardMemory& memory) {
    const Features f = policy.features();
    if (a.gate && !MAY_BE_GATED<P>)
        fail(Exit::usage, "attention's backward pass: arguments with a gate, for a policy without gates_output()");
    const size_t shared = BackwardBlock<Shape, P>::shared_bytes(f), key_tiles = blocks_for(a.S, Shape::KEYS);
    require_shared_memory(shared, Shape::HS, f);
    const Grid query_tiles(a.NH, tiles_of(a.T), a.B), blocks(key_tiles * a.NKV * a.B);
    launch(device, attention_prepare_kernel<X, Shape::HS, Shape::KEYS, P>, query_tiles, 128, 0, policy, a, g, memory);
    launch(device, attention_backward_kernel<Shape, P>, blocks, Shape::THREADS, shared, policy, a, g, memory);
    if (f.head)
        launch(device, attention_head_sums_kernel<Wide<X>>, blocks_for(size_t(a.B) * a.NH * f.head, 128), 128, 0, g.dhead,
               memory.head_parts, a.B * a.NH, int(key_tiles), f.head);
}

/// Gradients of attention_forward(): dq, dk, dv and those of the score inputs and the gate. `a` holds the forward call's arguments
/// with its outputs `out` and `lse`. Preconditions: as in the forward pass; all pointers are in device memory; g.workspace has
/// attention_workspace() bytes; rows of dq, dk and dv begin at even indices, as elements are written in pairs. Fails on a gate if the
/// policy does not define gates_output() itself.
template <class X, class P>
void attention_backward(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g) {
    require_aligned(a.q, "q"), require_aligned(a.k, "k"), require_aligned(a.v, "v");
    if (const Features f = policy.features(); std::max({f.head, f.row, f.column}) > MOST_FEATURES)
        fail(Exit::usage, "attention's backward pass on the GPU takes at most ", MOST_FEATURES,
             " features per head, row or column");
    specialise(policy, [&](const auto& special) {
        using Special = std::decay_t<decltype(special)>;
        const Features f = special.features();
        BackwardMemory memory(g.workspace, a.B, a.T, a.S, a.NH, f);
        memory.stuck = stuck();
        for_head_size(a.HS, [&](auto HS) {
            using Shape = BackwardShape<X, HS, MODIFIES_SCORES<Special>>;
            if constexpr (Shape::tuned && HS > 64)
                if (BackwardBlock<Shape, Special>::shared_bytes(f) > max_shared_memory())
                    return attention_backward_as<BackwardShape<X, HS, false, true>>(device, special, a, g, memory);
            attention_backward_as<Shape>(device, special, a, g, memory);
        });
    });
}
