// The tensors of a Qwen decoder by name: which there are, their shapes and where they lie in the flat buffers.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "model/tensors.h"

/// One decoder layer. Slots that the model's form does not have stay empty.
template <class Attention>
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
    Attention attention;
};

/// A linear layer that reads (gamma / sigma(W)) W in place of its matrix W (model/sigma_reparam.cuh). Numbers only: kernels read it.
struct SigmaLinear {
    Slot weight, gamma, u;   // (OUT, IN), (1), (IN)
    int OUT, IN;
    size_t v, next_u;   // where this layer's begin among those of all layers, (OUT) and (IN)
    bool moves;         // whether u does, from step to step
};

template <class Attention>
struct Qwen {
    Config config;
    TensorList tensors;
    std::vector<SigmaLinear> sigma;         // every linear layer, or none
    std::vector<std::string> sigma_names;   // "model.layers.0.mlp.up_proj", ...
    Slot embedding;    // (V, C)
    Slot final_norm;   // (C)
    Slot head;         // (V, C), the embedding when tied
    std::vector<Layer<Attention>> layers;

    /// Completes the variant's settings with their defaults, checks their ranges and lists every tensor.
    explicit Qwen(const Config& c) : config(c) {
        config.variant = Attention::name;
        complete_settings(config, Attention::settings());
        const auto matrix = normal(config.init_std);
        const int64_t V = config.V, C = config.C;
        embedding = tensors.add("model.embed_tokens.weight", {V, C}, matrix, Decay::yes);
        for (int l = 0; l < config.L; l++) layers.push_back(layer(l));
        tensors.align();
        final_norm = tensors.add("model.norm.weight", {C}, ones(), Decay::no);
        tensors.align();
        head = config.tied ? embedding : tensors.add("lm_head.weight", {V, C}, matrix, Decay::yes);
        tensors.train_only([this](const std::string& name) { return layers[0].attention.trains(name); });
        for (size_t k = 0; k < sigma.size(); k++) sigma[k].moves = tensors.find(sigma_names[k] + ".sigma_u")->role == Role::state;
    }

    /// Parameters that a token is multiplied with: all, but the embedding once only when the head is a matrix of its own.
    double matmul_parameters() const { return double(tensors.parameters()) - (config.tied ? 0.0 : double(config.V) * config.C); }

    /// Where the tensors of layer l begin in a flat buffer; for l = L, where the last layer's end.
    size_t layer_begin(int l) const { return l < config.L ? layers[l].input_norm.offset : final_norm.offset; }

    /// Whether the variant has the setting sigma_reparam, and it is on.
    bool reparametrised() const {
        for (const Setting& s : Attention::settings())
            if (s.key == std::string("sigma_reparam")) return config.setting(s.key) != 0;
        return false;
    }

private:
    Layer<Attention> layer(int l) {
        const std::string prefix = "model.layers." + std::to_string(l) + ".", attn = prefix + "self_attn.", mlp = prefix + "mlp.";
        const auto matrix = normal(config.init_std);
        const int64_t C = config.C, Q = int64_t(config.NH) * config.HS, KV = int64_t(config.NKV) * config.HS, F = config.F,
                      HS = config.HS;
        Layer<Attention> s{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, Attention(config, l)};
        tensors.align();
        s.input_norm = tensors.add(prefix + "input_layernorm.weight", {C}, ones(), Decay::no);
        tensors.align();
        s.qkv = joined({tensors.add(attn + "q_proj.weight", {Q, C}, matrix, Decay::yes),
                        tensors.add(attn + "k_proj.weight", {KV, C}, matrix, Decay::yes),
                        tensors.add(attn + "v_proj.weight", {KV, C}, matrix, Decay::yes)});
        tensors.align();
        if (config.qkv_bias)
            s.qkv_bias = joined({tensors.add(attn + "q_proj.bias", {Q}, zeros(), Decay::no),
                                 tensors.add(attn + "k_proj.bias", {KV}, zeros(), Decay::no),
                                 tensors.add(attn + "v_proj.bias", {KV}, zeros(), Decay::no)});
        if (config.qk_norm) {
            s.q_norm = tensors.add(attn + "q_norm.weight", {HS}, ones(), Decay::no);
            s.k_norm = tensors.add(attn + "k_norm.weight", {HS}, ones(), Decay::no);
        }
        tensors.align();
        s.own.offset = tensors.size();
        s.attention.declare(tensors, attn);
        s.own.size = tensors.size() - s.own.offset;
        tensors.align();
        s.o_proj = tensors.add(attn + "o_proj.weight", {C, Q}, matrix, Decay::yes);
        s.post_attention_norm = tensors.add(prefix + "post_attention_layernorm.weight", {C}, ones(), Decay::no);
        tensors.align();
        s.gate_up = joined({tensors.add(mlp + "gate_proj.weight", {F, C}, matrix, Decay::yes),
                            tensors.add(mlp + "up_proj.weight", {F, C}, matrix, Decay::yes)});
        tensors.align();
        s.down_proj = tensors.add(mlp + "down_proj.weight", {C, F}, matrix, Decay::yes);
        if (!reparametrised()) return s;
        tensors.align();
        for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) add_sigma(attn + name);
        for (const char* name : {"gate_proj", "up_proj", "down_proj"}) add_sigma(mlp + name);
        return s;
    }

    /// gamma and u of a linear layer; start_sigma() gives them their first values.
    void add_sigma(const std::string& name) {
        const Tensor& weight = *tensors.find(name + ".weight");
        const Slot slot = weight.slot;
        const int OUT = int(weight.shape[0]), IN = int(weight.shape[1]);
        const Slot gamma = tensors.add(name + ".sigma_gamma", {1}, ones(), Decay::no);
        const Slot u = tensors.add_state(name + ".sigma_u", {IN}, normal(1));
        const SigmaLinear* last = sigma.empty() ? nullptr : &sigma.back();
        sigma.push_back({slot, gamma, u, OUT, IN, last ? last->v + last->OUT : 0, last ? last->next_u + last->IN : 0, true});
        sigma_names.push_back(name);
    }

    static Slot joined(std::initializer_list<Slot> parts) {
        Slot all = *parts.begin();
        all.size = 0;
        for (const Slot& part : parts) all.size += part.size;
        return all;
    }
};
