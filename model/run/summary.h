// Tables that describe a model, printed before training and by --dry-run.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "attention/layers.h"
#include "model/base/text.h"
#include "model/gpt.h"

/// Floating-point operations of a training step per token: 6 per matmul parameter (2 forward, 4 backward), 12 HS per visible pair
/// of the variant (two matrix products forward, four backward) and 4 HS per pair computed in the forward pass only. Mechanisms' own
/// parameters count as if applied to every token, an overestimate for those applied once per block of tokens.
struct Flops {
    int T = 0;
    double per_token = 0;
    PairCount visited, dense;   // per sequence of T tokens, all layers and heads
    double cached_keys = 0;     // keys needed to decode after T tokens: of one key/value head, summed over the layers
    double cached_features = 0; // features of those keys that scores read, over all heads and layers
};
inline Flops count_flops(const Qwen& net, int T) {
    const Config& c = net.config;
    Flops f;
    f.T = T;
    double further = 0;
    for (const auto& layer : net.layers) {
        const PairCount count = layer.attention->expected_pairs(c.NH, T);
        f.visited.pairs += count.pairs, f.visited.tiles += count.tiles;
        f.cached_keys += layer.attention->cached_keys(T);
        f.cached_features += double(layer.attention->facts.features.column) * c.NH * T;
        further += layer.attention->further_pairs(c.NH, T);
    }
    const PairCount causal = count_pairs(Policy(c, 0), c.NH, T);   // the same in every layer
    f.dense = {c.L * causal.pairs, c.L * causal.tiles};
    f.per_token = 6 * net.matmul_parameters() + (12.0 * f.visited.pairs + 4.0 * further) * c.HS / T;
    return f;
}

/// "model.layers.3.mlp.up_proj.weight" -> "model.layers.{i}.mlp.up_proj.weight"
inline std::string without_layer(std::string name) {
    const std::string prefix = "model.layers.";
    if (name.rfind(prefix, 0) != 0) return name;
    const size_t end = name.find('.', prefix.size());
    return name.replace(prefix.size(), end - prefix.size(), "{i}");
}

/// The role of the tensor in a table; "" for AdamW without decay.
inline const char* role_word(Role role) {
    switch (role) {
        case Role::muon: return "  decays, by Muon";
        case Role::decays: return "  decays";
        case Role::statistic: return "  statistic";
        case Role::state: return "  state";
        case Role::frozen: return "  frozen";
        case Role::plain: break;
    }
    return "";
}

inline void print_tensors(const TensorList& list) {
    struct Kind {
        std::string name, shape;
        int copies = 0;
        size_t size = 0;
        Role role;
    };
    std::vector<Kind> kinds;
    std::map<std::string, size_t> place;
    for (const Tensor& t : list) {
        const std::string name = without_layer(t.name);
        const auto [at, fresh] = place.emplace(name, kinds.size());
        if (fresh) {
            std::string shape;
            for (int64_t n : t.shape) shape += (shape.empty() ? "(" : ", ") + std::to_string(n);
            kinds.push_back({name, shape + ")", 0, 0, t.role});
        }
        kinds[at->second].copies++;
        kinds[at->second].size += t.slot.size;
    }
    std::vector<std::pair<std::string, std::string>> rows;
    for (const Kind& k : kinds)
        rows.push_back({k.name, text("%-16s x %-3d %12zu%s", k.shape.c_str(), k.copies, k.size, role_word(k.role))});
    print_table("tensor", rows);
}

inline std::vector<std::pair<std::string, std::string>> model_rows(const Qwen& net, const Flops& f) {
    const Config& c = net.config;
    const double key_bytes = 2.0 * c.NKV * c.HS * sizeof(float);   // a key and its value, over all heads
    const double cache = key_bytes * f.cached_keys + sizeof(float) * f.cached_features;
    const char* const bound = net.any(&LayerFacts::expects_at_most) ? "at most " : "";
    std::vector<std::pair<std::string, std::string>> rows = {
        {"attention", net.pattern},
        {"form", form_in_words(c) + (c.tied ? ", tied head" : ", untied head")},
        {"layers L, channels C, width F", text("%d, %d, %d", c.L, c.C, c.F)},
        {"heads NH, NKV, head size HS", text("%d, %d, %d", c.NH, c.NKV, c.HS)},
        {"vocabulary V", std::to_string(c.V)},
        {"parameters", std::to_string(net.tensors.parameters())},
        {"FLOPs per token of training", text("%s%.4g", bound, f.per_token)},
        {"visible pairs per sequence", text("%s%.0f (%.1f%% of causal)", bound, f.visited.pairs,
                                            100 * f.visited.pairs / f.dense.pairs)},
        {"visited tiles per sequence", text("%s%.0f (%.1f%% of causal)", bound, f.visited.tiles,
                                            100 * f.visited.tiles / f.dense.tiles)},
        {text("KV cache of %d tokens", f.T), text("%s in float32 (%.1f%% of causal)", human_bytes(cache).c_str(),
                                                  100 * cache / (key_bytes * double(c.L) * f.T))},
        {"causal and prefix-consistent", net.all(&LayerFacts::is_causal) ? "yes" : "no: outputs depend on later tokens"}};
    if (net.tensors.trained() < net.tensors.parameters())
        rows.push_back({"trained parameters", std::to_string(net.tensors.trained())});
    for (const Setting& s : settings_of(net.variant)) rows.push_back({s.key, text("%g", c.setting(s.key))});
    return rows;
}

inline std::string listed(const std::vector<int>& layers) {
    std::string all;
    for (int l : layers) all += (all.empty() ? "" : ", ") + std::to_string(l);
    return all;
}

/// Precondition: a hybrid. A row for the layers of each pattern, "sinks:window=64", in the order of their first layers.
template <class Device, class X>
std::vector<std::pair<std::string, std::string>> kind_rows(const GPT<Device, X>& gpt) {
    const Config& c = gpt.net.config;
    std::vector<std::pair<std::string, std::vector<int>>> kinds;
    for (int l = 0; l < c.L; l++) {
        const std::string pattern = pattern_of(c.layers[size_t(l)], *gpt.net.layers[size_t(l)].variant);
        auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == pattern; });
        if (kind == kinds.end()) kind = kinds.insert(kind, {pattern, {}});
        kind->second.push_back(l);
    }
    const PairCount dense = count_pairs(Policy(c, 0), c.NH, gpt.T);
    std::vector<std::pair<std::string, std::string>> rows;
    for (const auto& [pattern, layers] : kinds) {
        const Layer& layer = gpt.net.layers[size_t(layers.front())];
        const PairCount count = layer.attention->expected_pairs(c.NH, gpt.T);
        const std::string kept = human_bytes(double(gpt.attention_bytes[size_t(layers.front())]));
        rows.push_back(
            {pattern,
             text("%s%.1f%% of causal pairs, %.1f%% of tiles, %.0f cached keys, %s kept, %zu own parameters: layers %s",
                  layer.attention->facts.expects_at_most ? "at most " : "", 100 * count.pairs / dense.pairs,
                  100 * count.tiles / dense.tiles, layer.attention->cached_keys(gpt.T), kept.c_str(), layer.own.size,
                  listed(layers).c_str())});
    }
    return rows;
}

inline void print_memory(const std::vector<MemoryUse>& plan) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const MemoryUse& use : plan) rows.push_back({use.what, human_bytes(double(use.bytes))});
    rows.push_back({"predicted peak per rank", human_bytes(double(total_bytes(plan)))});
    print_table("memory", rows);
}
