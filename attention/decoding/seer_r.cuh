// Decoding of SeerAttention-R (attention/seer_r.cuh): the gate's keys of complete blocks and the pooled keys of the newest block, as in
// block_sparse.cuh. Every row chooses.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/decoding/visited.h"
#include "attention/seer_r.cuh"

template <class X>
struct Decoding<seer_r, CPU, X> {
    GateState<CPU, X> keys;
    Decoding(const seer_r& p, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, p.gate_shape(LayerShape(room)).without_queries()) {}

    void prefill(const seer_r& p, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        for (int t = 0; t < in.T && !p.is_dense(); t++) keys.add(in, t, BlockGateUse<X>(weights + p.wk.offset));
    }
    template <class Step>
    void decode(const Step& step, const seer_r& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const AttentionForward<X> a = token_block_arguments(in, state, Statistics<X>{});
        const int position = step.keys.tokens(), slots = p.is_dense() ? 0 : std::min(p.top, position / p.block);
        step.keys.append(a);
        if (!p.is_dense()) keys.add(in, 0, BlockGateUse<X>(weights + p.wk.offset));
        const std::vector<int> chosen = choose(p, in, weights + p.wq.offset, slots, position);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& span) {
            const int* const mine = chosen.data() + size_t(h / (in.NH / in.NKV)) * slots;
            row.visit(VisitedBlocks(p.forced(), mine, slots), query_of(a, {}, h, position), span);
        });
    }

private:
    /// The choice (NKV, slots) of the token at `position`.
    std::vector<int> choose(const seer_r& p, const LayerInputs<X>& in, const X* wq, int slots, int position) const {
        const int HS = in.HS, width = in.NH / in.NKV * HS, past = position / p.block;
        std::vector<int> chosen(size_t(in.NKV) * slots), order;
        std::vector<X> scores(past), query(HS);
        const size_t row = HS;
        for (int kv = 0; kv < in.NKV && slots > 0; kv++) {
            for (int d = 0; d < HS; d++)
                query[d] = inner_product(wq + (size_t(kv) * HS + d) * width, in.query(in.q_pre, 0, 0, 0) + size_t(kv) * width, width);
            rotate_heads(CPU{}, Heads<X>{query.data(), row}, Heads<const X>{query.data(), row},
                         Angles<Wide<X>>{in.cosine, in.sine}.from(position, HS), 1, 1, 1, HS, 1);
            for (int c = 0; c < past; c++) scores[c] = inner_product(query.data(), keys.key(kv, c), HS) / std::sqrt(X(HS));
            int* const to = chosen.data() + size_t(kv) * slots;
            choose_blocks(CPU{}, to, scores.data(), TileChoice{.top = slots}, past, order);
            finish_choice(to, slots, scores.data(), past, 0, p.threshold);
        }
        return chosen;
    }
};

#ifdef WITH_GPU

/// The choice of a step's rows: scores (sequences, NKV, blocks) and chosen blocks (sequences, NKV, slots).
struct ChoiceOfRows {
    float* scores;
    int* chosen;
    int slots;
    float threshold;
};

namespace block_gate_decoding {

/// Block (kv, b): the row chooses and adds its key.
template <class X>
__global__ void __launch_bounds__(THREADS)
    token_rows_kernel(const ChoiceOfRows choice, const GateState<GPU, X> keys, const LayerInputs<X> in, const X* wq,
                      const BlockGateUse<X> use, const DecodeRows rows) {
    auto& shared = dynamic_shared<Shared>();
    const int kv = blockIdx.x, b = blockIdx.y, sequence = rows.sequence[b], t = rows.position[b], past = t / keys.s.block;
    const int group = in.NH / in.NKV, width = group * in.HS;
    const size_t list = size_t(sequence) * in.NKV + kv;
    float* const scores = choice.scores + list * keys.s.blocks();
    int* const chosen = choice.chosen + list * choice.slots;
    project(shared, wq + size_t(kv) * in.HS * width, in.query(in.q_pre, b, 0, kv * group), width, in, t);
    score_blocks(scores, shared, keys, sequence, kv, past);
    if (choice.slots > 0 && threadIdx.x < WARP) {
        choose_blocks(chosen, scores, TileChoice{.top = choice.slots}, past);
        __syncwarp();
        if (threadIdx.x == 0) finish_choice(chosen, choice.slots, scores, past, 0, choice.threshold);
    }
    add_keys(shared, keys, in, use, b, sequence, kv, t, t + 1);
}

}   // namespace block_gate_decoding

template <class X>
struct Decoding<seer_r, GPU, X> {
    GateState<GPU, X> keys;
    ChoiceOfRows choice;

    Decoding(const seer_r& p, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, p.gate_shape(LayerShape(room)).without_queries()) {
        const int slots = p.slots_of(LayerShape(room));
        const size_t lists = size_t(room.B) * room.NKV;
        choice = {memory.take<float>(lists * keys.s.blocks()), memory.take<int>(lists * slots), slots, p.threshold};
    }

    void prefill(const GPU& device, int sequence, const seer_r& p, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        using namespace block_gate_decoding;
        if (!p.is_dense())
            launch(device, prompt_keys_kernel<X>, Grid(in.NKV, blocks_for(in.T, p.block)), THREADS, sizeof(Shared), keys, in,
                   BlockGateUse<X>(weights + p.wk.offset), sequence);
    }
    template <class Step>
    void decode(const Step& step, const seer_r& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        using namespace block_gate_decoding;
        if (!p.is_dense())
            launch(step, token_rows_kernel<X>, Grid(in.NKV, in.B), THREADS, sizeof(Shared), choice, keys, in, weights + p.wq.offset,
                   BlockGateUse<X>(weights + p.wk.offset), step.rows);
        attention_forward(step, VisitedBlocksOfSequences(p.forced(), choice.chosen, in.NH, in.NKV, choice.slots),
                          token_block_arguments(in, state, Statistics<X>{}));
    }
};

#endif
