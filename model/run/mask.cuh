// The mask of a variant as a picture: the values on which the output of each row depends. Rows are queries, columns keys; black is visible.
// The mask is measured rather than declared, with unit vectors as values (UnitValues). A variant whose values are not the model's (nsa)
// reports its pairs instead.
#pragma once
#include "model/base/picture.h"
#include "model/base/text.h"
#include "model/device/machine.h"
#include "model/run/run.cuh"

/// Precondition: GPT::forward() of one sequence of T tokens. (NH, T, T): 1 where the last layer's output of row i depends on the
/// value of key j. Weights that float32 rounds to 0 count as hidden.
inline std::vector<uint8_t> pairs_in_outputs(GPT<CPU, float>& gpt, int T, const Documents& documents = {}) {
    const Config& c = gpt.net.config;
    const int l = c.L - 1;
    LayerActivations<float>& a = gpt.layers[l];
    std::vector<uint8_t> seen(size_t(c.NH) * T * T);
    UnitValues<CPU, float> values(T, c.NKV, c.HS);
    Arena<CPU> memory;
    values.take(memory), memory.allocate(), values.take(memory);
    values.write(CPU{});
    auto attend = [&](int j0) {   // j0 = T: all values are zero
        const LayerInputs<float> in = values.in_place_of_values(gpt.attention_inputs(l, 1, T, documents), j0);
        gpt.attention(l).forward(CPU{}, in, gpt.weights, a.attention, gpt.scratch.attention, {});
        return a.attention.gated_out;   // (T, NH, HS)
    };
    const std::vector<float> nothing(attend(T), a.attention.gated_out + size_t(T) * c.NH * c.HS);
    for (int j0 = 0; j0 < T; j0 += c.HS) {
        const float* out = attend(j0);
        for (int i = 0; i < T; i++)
            for (int h = 0; h < c.NH; h++)
                for (int d = 0; d < std::min(c.HS, T - j0); d++) {
                    const size_t at = (size_t(i) * c.NH + h) * c.HS + d;
                    seen[(size_t(h) * T + i) * T + j0 + d] = out[at] != nothing[at];
                }
    }
    return seen;
}

/// The same, as reported by the layer itself if it can.
inline std::vector<uint8_t> seen_pairs(GPT<CPU, float>& gpt, int T, const Documents& documents = {}) {
    const int l = gpt.net.config.L - 1, NH = gpt.net.config.NH;
    if (!gpt.net.layers[l].attention->facts.reports_pairs) return pairs_in_outputs(gpt, T, documents);
    const CpuPasses<float>& attention = cpu_passes_of<float>(*gpt.net.layers[l].attention);
    const LayerInputs<float> in = gpt.attention_inputs(l, 1, T, documents);
    const LayerState<float>& state = gpt.layers[l].attention;
    std::vector<uint8_t> seen(size_t(NH) * T * T);
#pragma omp parallel for
    for (int row = 0; row < NH * T; row++)
        for (int j = 0; j < T; j++) seen[size_t(row) * T + j] = attention.sees(in, state, row / T, row % T, j);
    return seen;
}

/// One picture per head, or a single one if all are equal. Short sequences are drawn larger.
inline Picture draw_mask(const std::vector<uint8_t>& seen, int NH, int T) {
    const int scale = std::max(1, 256 / T);
    std::vector<Picture> heads;
    for (int h = 0; h < NH; h++) {
        Picture head(T * scale, T * scale, 255);
        for (int y = 0; y < head.height; y++)
            for (int x = 0; x < head.width; x++)
                if (seen[(size_t(h) * T + y / scale) * T + x / scale]) head.at(x, y) = 0;
        heads.push_back(std::move(head));
    }
    const bool same = std::all_of(heads.begin(), heads.end(), [&](const Picture& p) { return p.grey == heads[0].grey; });
    return same ? heads[0] : side_by_side(heads);
}

inline int last_of_own_variant(const Config& config, const Variants& variants) {
    int l = config.L - 1;
    while (l > 0 && config.of_layer(l).variant != variants.own.name) l--;
    return l;
}

/// --show-mask: writes a picture of the mask of the last layer of the model's own variant on the first tokens of the data, and prints its
/// statistics.
inline void show_mask(const Variants& variants, const Options& o) {
    if (o.seq_len > 4096)
        fail(Exit::usage, "--show-mask draws one pixel per pair: --seq-len must be from 1 to 4096, not ", o.seq_len);
    require_picture_name(o.show_mask);
    use_threads(o.threads, 1);
    Origin origin = find_origin(o, variants, chosen_checkpoint(o), true);
    const Data data = open_data(o, 1, origin.config);
    if (!data.val && !data.train) fail(Exit::usage, "--show-mask needs tokens: give --val-data, or leave out --evaluate");
    const int T = o.seq_len, l = last_of_own_variant(origin.config, variants);
    const Qwen whole(variants, origin.config);
    Config up_to_layer = origin.config;
    up_to_layer.L = l + 1;
    if (!up_to_layer.layers.empty()) up_to_layer.layers.resize(size_t(l) + 1);
    GPT<CPU, float> gpt(variants, up_to_layer, 1, T, Mode::inference);
    require_documents_apart(whole, o);
    std::vector<MemoryUse> plan = gpt.memory_plan();
    plan.push_back({"weights of all layers", sizeof(float) * whole.tensors.size()});
    add_overheads(CPU{}, plan, 0, false);
    require_memory(plan, o, available_memory(), 1);
    gpt.allocate(CPU{});
    std::vector<float> weights(whole.tensors.size());
    if (origin.folder()) load_weights(*origin.folder(), whole.tensors, o.seed, weights.data());
    else initialise(whole.tensors, o.seed, weights.data());
    for (const Tensor& t : gpt.net.tensors)
        std::copy_n(&weights[whole.tensors.find(t.name)->slot.offset], t.slot.size, gpt.weights + t.slot.offset);
    std::vector<int32_t> tokens(T), targets(T);
    const TokenStream& stream = (data.val ? data.val : data.train)->first();
    validation_rows(stream, 0, T, 1, tokens.data(), targets.data());
    const Config& c = gpt.net.config;
    Monitor<CPU, float> monitor(1, T, gpt.net);
    monitor.allocate();
    BatchFeed<CPU> feed(1, T, c.V, borders(o, c));
    feed.allocate(CPU{});
    const Batch batch = feed.put(CPU{}, tokens.data(), nullptr, 1, T);
    observed_forward(CPU{}, gpt, batch, monitor);
    const double tiles = mean_of({sum_of(monitor.take_report(), &BranchReport::tiles).back()});

    const AttentionLayer& layer = *gpt.net.layers.back().attention;
    const std::vector<uint8_t> seen = seen_pairs(gpt, T, batch.documents);
    const Picture picture = draw_mask(seen, c.NH, T);
    write_picture(o.show_mask, picture);
    const double pairs = double(std::count(seen.begin(), seen.end(), 1));
    std::cout << o.show_mask << ": layer " << l << " of " << gpt.net.layers.back().variant->name
              << ", rows are queries, columns keys, black is seen; "
              << text("%.1f%% of causal pairs", 100 * pairs / (c.NH * (T * (T + 1.0) / 2)))
              << (std::isnan(tiles) ? "" : text(", %.1f%% of causal tiles", 100 * tiles))
              << (!std::isnan(tiles) && layer.facts.branch_names.size() > 1 ? " in all softmaxes" : "") << "\n";
}
