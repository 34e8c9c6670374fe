// The tensors of a Qwen decoder by name: their shapes and offsets in the flat buffers.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention/variant.h"
#include "model/config.h"
#include "model/tensors.h"

/// One decoder layer. Slots of tensors that this form of the model lacks stay empty.
struct Layer {
    Slot input_norm;            // (C)
    Slot qkv;                   // ((NH + 2 NKV) * HS, C): q_proj, k_proj and v_proj are contiguous
    Slot qkv_bias;              // ((NH + 2 NKV) * HS)
    Slot q_norm, k_norm;        // (HS)
    Slot o_proj;                // (C, NH * HS)
    Slot post_attention_norm;   // (C)
    Slot gate_up;               // (2 F, C): gate_proj, then up_proj
    Slot down_proj;             // (C, F)
    Slot own;                   // all tensors declared by the attention variant
    const Variant* variant;
    std::unique_ptr<AttentionLayer> attention;
};

/// A model of `variant`; in a hybrid, some layers have another variant (Config::layers).
struct Qwen {
    const Variant& variant;
    Config config;
    TensorList tensors;
    std::vector<SigmaLinear> sigma;         // every linear layer with the setting sigma_reparam, else none
    std::vector<std::string> sigma_names;   // "model.layers.0.mlp.up_proj", ...
    Slot embedding;    // (V, C)
    Slot final_norm;   // (C)
    Slot head;         // (V, C), the embedding when tied
    std::vector<Layer> layers;
    std::string pattern;   // the attention of the layers in the form of --layers: "sinks:3,causal"

    /// Fills in defaults of settings (complete_layers()) and lists every tensor. Exit::usage if a setting is out of range.
    Qwen(const Variants& variants, const Config& config, Stored matrices = Stored::as_computed, Optimizer optimizer = Optimizer::adamw);

    /// Parameters that each token is multiplied with: all but an untied embedding, which is a lookup.
    double matmul_parameters() const { return double(tensors.parameters()) - (config.tied ? 0.0 : double(config.V) * config.C); }

    /// Offset of layer l's tensors in a flat buffer; for l = L, the end of the last layer's.
    size_t layer_begin(int l) const { return l < config.L ? layers[l].input_norm.offset : final_norm.offset; }

    /// Whether a fact holds for any layer, or for all: any(&LayerFacts::reads_x).
    bool any(bool LayerFacts::* fact) const {
        return std::any_of(layers.begin(), layers.end(), [fact](const Layer& layer) { return layer.attention->facts.*fact; });
    }
    bool all(bool LayerFacts::* fact) const {
        return std::all_of(layers.begin(), layers.end(), [fact](const Layer& layer) { return layer.attention->facts.*fact; });
    }

private:
    Layer layer(const Variants& variants, int l);
    void add_sigma(const std::string& name);
};
