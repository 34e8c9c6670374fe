// The tensors of a Qwen decoder by name: which there are, their shapes and where they lie in the flat buffers.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "attention/variant.h"
#include "model/config.h"
#include "model/tensors.h"

/// One decoder layer. Slots that the model's form does not have stay empty.
struct Layer {
    Slot input_norm;            // (C)
    Slot qkv;                   // (NH + 2 NKV) * HS rows of C: q_proj, k_proj and v_proj lie one behind the other
    Slot qkv_bias;              // the same for the biases
    Slot q_norm, k_norm;        // (HS)
    Slot o_proj;                // (C, NH * HS)
    Slot post_attention_norm;   // (C)
    Slot gate_up;               // 2 F rows of C: gate_proj, then up_proj
    Slot down_proj;             // (C, F)
    Slot own;                   // all tensors that the attention variant declared
    std::unique_ptr<AttentionLayer> attention;
};

/// A linear layer that reads (gamma / sigma(W)) W in place of its matrix W (model/sigma_reparam.cuh). Numbers only: kernels read it.
struct SigmaLinear {
    Slot weight, gamma, u;   // (OUT, IN), (1), (IN)
    int OUT, IN;
    size_t v, next_u;   // where this layer's begin among those of all layers, (OUT) and (IN)
    bool moves;         // whether u does, from step to step
};

/// A model of `variant`.
struct Qwen {
    const Variant& variant;
    Config config;
    TensorList tensors;
    std::vector<SigmaLinear> sigma;         // every linear layer, or none
    std::vector<std::string> sigma_names;   // "model.layers.0.mlp.up_proj", ...
    Slot embedding;    // (V, C)
    Slot final_norm;   // (C)
    Slot head;         // (V, C), the embedding when tied
    std::vector<Layer> layers;

    /// Completes the variant's settings with their defaults, checks their ranges and lists every tensor.
    Qwen(const Variant& variant, const Config& config);

    /// Parameters that a token is multiplied with: all, but the embedding once only when the head is a matrix of its own.
    double matmul_parameters() const { return double(tensors.parameters()) - (config.tied ? 0.0 : double(config.V) * config.C); }

    /// Where the tensors of layer l begin in a flat buffer; for l = L, where the last layer's end.
    size_t layer_begin(int l) const { return l < config.L ? layers[l].input_norm.offset : final_norm.offset; }

    /// Whether the variant has the setting sigma_reparam, and it is on.
    bool reparametrised() const;

    /// Whether a fact holds of any layer, or of all: any(&LayerFacts::reads_x).
    bool any(bool LayerFacts::* fact) const {
        return std::any_of(layers.begin(), layers.end(), [fact](const Layer& layer) { return layer.attention->facts.*fact; });
    }
    bool all(bool LayerFacts::* fact) const {
        return std::all_of(layers.begin(), layers.end(), [fact](const Layer& layer) { return layer.attention->facts.*fact; });
    }

private:
    Layer layer(int l);
    void add_sigma(const std::string& name);
};
