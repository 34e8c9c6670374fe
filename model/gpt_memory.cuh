// Where a model's tensors lie in memory. lay_out() runs twice: over no memory, to learn the sizes, then over the allocated block,
// so the plan cannot disagree with the allocation. gpt.cu includes this file.
#pragma once
#include "attention/kernel/layer.h"
#include "model/gpt.h"

template <class Device, class X>
GPT<Device, X>::GPT(const Variants& variants, const Config& config, int B_, int T_, Mode mode_, Recompute recompute_, int shard,
                    int count, size_t bucket, Stored matrices, Optimizer optimizer)
    : net(variants, config, matrices, optimizer),
      B(B_),
      T(T_),
      mode(mode_),
      recompute(recompute_),
      shards(net.tensors.size(), shard, count, bucket) {
    if (!net.sigma.empty() && sharded())
        fail(Exit::usage, "sigma_reparam needs complete matrices on every rank; use --zero-stage 0");
    lay_out();
}

template <class Device, class X>
std::vector<MemoryUse> GPT<Device, X>::memory_plan() const {
    const std::string master = keeps_master() ? "master weights and " : "", muon = net.tensors.has(Role::muon) ? "Muon and " : "";
    return {{"weights", weight_memory.bytes()},
            {"gradients", gradient_memory.bytes()},
            {master + "moments of " + muon + "AdamW", moment_memory.bytes()},
            {"activations", activation_memory.bytes()},
            {"scratch", scratch_memory.bytes()},
            {"keys that attention works on", kernel_memory<X>(Device{}, T, net.config.HS,
                                                              mode == Mode::training ? Pass::backward : Pass::forward)}};
}

template <class Device, class X>
void GPT<Device, X>::allocate(Device device) {
    for (Arena<Device>* arena : {&weight_memory, &gradient_memory, &moment_memory, &activation_memory, &scratch_memory})
        arena->allocate();
    lay_out();
    for (int table : {0, 1})
        if (cosine[table]) rope_table(device, cosine[table], sine[table], T, net.config.rope(), table == 0);
    const StepTotals none{};
    to_device(device, totals, &none, 1);
    if (sigma.count) to_device(device, sigma.linears, net.sigma.data(), net.sigma.size());
    if (mode == Mode::inference) return;
    to_device(device, ranges, owned_ranges().data(), size_t(range_count));
    to_device(device, spans, norm_spans(net.tensors, shards).data(), size_t(span_count));
    fill(device, gradients, shards.size(), W{});   // padding stays zero: norms and sums over ranks run over it
    fill(device, m, shards.owned(), W{});
    fill(device, v, stored_size(second_moments()), W{});
    if (muon.range_count) to_device(device, muon.ranges, owned_muon_ranges().data(), size_t(muon.range_count));
}

template <class Device, class X>
void GPT<Device, X>::lay_out() {
    const size_t n = shards.size(), owned = shards.owned();
    weights = weight_memory.template take<X>(n);
    bf16_matrices = weight_memory.template take<StoredBf16>(net.tensors.bf16_size());
    if (mode == Mode::training) {
        gradients = gradient_memory.template take<W>(n);
        if (keeps_master()) master = moment_memory.template take<W>(owned);
        else if constexpr (!rounds) master = weights;
        m = moment_memory.template take<W>(owned);
        v = moment_memory.template take<W>(stored_size(second_moments()));
    }
    lay_out_activations();
    lay_out_scratch();
}

template <class Device, class X>
void GPT<Device, X>::lay_out_activations() {
    const Config& c = net.config;
    const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
    auto take = [this](size_t count) { return activation_memory.template take<X>(count); };
    auto take_wide = [this](size_t count) { return activation_memory.template take<W>(count); };
    for (int table : {0, 1}) {
        if (table == 0 ? !net.any(&LayerFacts::rotates) : net.all(&LayerFacts::rotates)) continue;
        cosine[table] = take_wide(size_t(T) * c.HS / 2), sine[table] = take_wide(size_t(T) * c.HS / 2);
    }
    auxiliary = net.any(&LayerFacts::has_auxiliary_loss) ? take_wide(size_t(c.L) * B * c.NH) : nullptr;
    residual = take((c.L + 1) * BT * c.C);
    final_normed = take(BT * c.C), final_rstd = take_wide(BT);
    layers.resize(c.L), attention_bytes.resize(c.L);
    const bool all_share = mode == Mode::inference || recompute == Recompute::layers;
    size_t of_attention = 0;   // where a layer's attention begins: last, so that layers of different sizes can share it
    for (int l = 0; l < c.L; l++) {
        LayerActivations<X>& a = layers[l];
        if (all_share && l > 0) {
            a = layers[0];
            activation_memory.rewind(of_attention);
            lay_out_attention(l);
            continue;
        }
        if (l == 0 || recompute == Recompute::nothing)
            a.normed1 = take(BT * c.C), a.normed2 = take(BT * c.C), a.activated = take(BT * c.F);
        else
            a.normed1 = layers[0].normed1, a.normed2 = layers[0].normed2, a.activated = layers[0].activated;
        a.rstd1 = take_wide(BT), a.rstd2 = take_wide(BT);
        a.qkv = take(BT * (heads + c.NKV) * c.HS);
        a.qk = take(BT * heads * c.HS), a.qk_rstd = take_wide(BT * heads);
        a.middle = take(BT * c.C);
        a.gate_up = take(BT * 2 * c.F);
        of_attention = activation_memory.used();
        lay_out_attention(l);
    }
}

/// What layer l's attention keeps. Its size may differ between layers, as their mechanisms may.
template <class Device, class X>
void GPT<Device, X>::lay_out_attention(int l) {
    const size_t rows = size_t(B) * T * net.config.NH;
    const LayerFacts& facts = net.layers[l].attention->facts;
    const size_t begin = activation_memory.used();
    LayerState<X>& state = layers[l].attention;
    state.score_inputs = take_score_inputs<X>(activation_memory, facts.features, facts.gated, B, T, net.config.NH, 1);
    state.out = activation_memory.template take<X>(rows * net.config.HS);
    state.gated_out = facts.gated ? activation_memory.template take<X>(rows * net.config.HS) : state.out;
    state.lse = activation_memory.template take<W>(rows);
    state.kept = activation_memory.template take<std::byte>(attention(l).kept_bytes(shape()));
    attention_bytes[l] = activation_memory.used() - begin;
}

template <class Device, class X>
void GPT<Device, X>::lay_out_sigma() {
    if (net.sigma.empty()) return;
    size_t rows = 0, columns = 0;
    sigma.count = int(net.sigma.size());
    for (const SigmaLinear& s : net.sigma) {
        rows += s.OUT, columns += s.IN;
        sigma.rows = std::max(sigma.rows, s.OUT), sigma.columns = std::max(sigma.columns, s.IN);
    }
    auto take = [this](size_t count) { return scratch_memory.template take<W>(count); };
    sigma.linears = scratch_memory.template take<SigmaLinear>(sigma.count);
    sigma.v = take(rows), sigma.row_sums = take(rows), sigma.next_u = take(columns), sigma.norm = take(sigma.count);
}

/// Nothing but the ranges lives beyond the update, in which all other scratch memory is free.
template <class Device, class X>
void GPT<Device, X>::lay_out_muon() {
    const std::vector<UpdateRange> owned = owned_muon_ranges();
    muon.matrices = muon_matrices(net.tensors, owned), muon.range_count = int(owned.size());
    size_t largest = 0, longest_side = 0;
    for (const MuonMatrix& matrix : muon.matrices) {
        largest = std::max(largest, size_t(matrix.OUT) * size_t(matrix.IN));
        longest_side = std::max(longest_side, size_t(std::min(matrix.OUT, matrix.IN)));
    }
    const size_t at_once = std::min(muon.matrices.size(), std::is_same_v<Device, CPU> ? size_t(omp_get_max_threads()) : 1);
    auto take = [this](size_t count) { return scratch_memory.template take<X>(count); };
    const size_t gram = longest_side * longest_side;
    muon.workspaces.clear();
    for (size_t n = 0; n < at_once; n++)
        muon.workspaces.push_back({take(largest), take(largest), take(gram), take(gram), scratch_memory.template take<double>(1)});
}

template <class Device, class X>
void GPT<Device, X>::lay_out_scratch() {
    const Config& c = net.config;
    const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
    auto take = [this](size_t count) { return scratch_memory.template take<X>(count); };
    auto take_wide = [this](size_t count) { return scratch_memory.template take<W>(count); };
    Scratch<X>& s = scratch;
    s.losses = take_wide(BT);
    s.qk_pre = net.any(&LayerFacts::reads_qk_pre) ? take(BT * heads * c.HS) : nullptr;
    totals = scratch_memory.template take<StepTotals>(1);
    lay_out_sigma();
    size_t workspace = 0;
    for (int l = 0; l < c.L; l++) workspace = std::max(workspace, attention(l).workspace_bytes(Device{}, shape()));
    s.attention = scratch_memory.template take<std::byte>(workspace);
    target_weight = mode == Mode::inference ? nullptr : take_wide(1);
    if (mode == Mode::inference) return lay_out_logits(0);
    range_count = int(owned_ranges().size()), span_count = int(norm_spans(net.tensors, shards).size());
    ranges = scratch_memory.template take<UpdateRange>(range_count);
    spans = scratch_memory.template take<NormSpan>(span_count);
    muon.ranges = scratch_memory.template take<UpdateRange>(owned_muon_ranges().size());
    shard_squares = sharded() ? scratch_memory.template take<double>(shards.count()) : nullptr;
    const size_t of_passes = scratch_memory.used();
    lay_out_muon();
    scratch_memory.rewind(of_passes);
    s.dnormed = take(BT * c.C);
    const size_t of_loss = scratch_memory.used();
    s.dresidual = take(BT * c.C);
    const size_t shared = scratch_memory.used();
    s.dactivated = take(BT * c.F), s.dgate_up = take(BT * 2 * c.F);
    size_t end = scratch_memory.used();
    scratch_memory.rewind(shared);
    s.dout = take(BT * c.NH * c.HS), s.dqkv = take(BT * (heads + c.NKV) * c.HS);
    s.dqk = take_wide(BT * heads * c.HS);
    s.dqk_pre = net.any(&LayerFacts::reads_qk_pre) ? take_wide(BT * heads * c.HS) : nullptr;
    const size_t of_layer = scratch_memory.used();   // last, so that layers of different sizes can share it
    s.dscore_inputs.clear();
    for (const Layer& layer : net.layers) {
        const LayerFacts& facts = layer.attention->facts;
        scratch_memory.rewind(of_layer);
        s.dscore_inputs.push_back(take_score_inputs<X>(scratch_memory, facts.features, facts.gated, B, T, c.NH, B));
        end = std::max(end, scratch_memory.used());
    }
    scratch_memory.rewind(of_loss);
    lay_out_logits(std::is_same_v<Device, CPU> ? 0 : (end - of_loss) / sizeof(X));
}

/// Logits in memory of which `spare` elements are there anyway.
template <class Device, class X>
void GPT<Device, X>::lay_out_logits(size_t spare) {
    const size_t most = std::max<size_t>(LOGITS<Device>, std::min(LOGITS<Device> + spare, MOST_LOGITS)), V = net.config.V;
    logit_rows = int(std::clamp<size_t>(most / V / 128 * 128, 128, std::max(128, B * T)));
    scratch.logits = scratch_memory.template take<X>(logit_rows * V);
}
