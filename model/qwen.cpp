#include "model/qwen.h"

#include "attention/layers.h"

namespace {

Slot joined(std::initializer_list<Slot> parts) {
    Slot all = *parts.begin();
    all.size = 0;
    for (const Slot& part : parts) all.size += part.size;
    return all;
}

}   // namespace

Qwen::Qwen(const Variants& variants, const Config& c, Stored matrices, Optimizer optimizer)
    : variant(variants.own), config(c), tensors(matrices, optimizer) {
    complete_layers(config, variants);
    pattern = pattern_of(config, variants);
    const auto matrix = normal(config.init_std);
    const int64_t V = config.V, C = config.C;
    embedding = tensors.add_matrix("model.embed_tokens.weight", {V, C}, matrix);
    for (int l = 0; l < config.L; l++) layers.push_back(layer(variants, l));
    tensors.align();
    final_norm = tensors.add("model.norm.weight", {C}, ones(), Decay::no);
    tensors.align();
    head = config.tied ? embedding : tensors.add_matrix("lm_head.weight", {V, C}, matrix);
    tensors.train_only([this](const std::string& name) {
        return std::all_of(layers.begin(), layers.end(), [&](const Layer& layer) { return layer.attention->trains(name); });
    });
    if (matrices == Stored::as_bf16 && !sigma.empty())
        fail(Exit::usage, "sigma_reparam rescales the stored matrices, which must not be rounded; give --weights fp32");
    for (size_t k = 0; k < sigma.size(); k++) sigma[k].moves = tensors.find(sigma_names[k] + ".sigma_u")->role == Role::state;
}

Layer Qwen::layer(const Variants& variants, int l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".", attn = prefix + "self_attn.", mlp = prefix + "mlp.";
    const auto matrix = normal(config.init_std);
    const int64_t C = config.C, Q = int64_t(config.NH) * config.HS, KV = int64_t(config.NKV) * config.HS, F = config.F,
                  HS = config.HS;
    Layer s{};
    const Config own = config.of_layer(l);
    s.variant = variants.find(own.variant);
    s.attention = s.variant->make_layer(own, l);
    tensors.align();
    s.input_norm = tensors.add(prefix + "input_layernorm.weight", {C}, ones(), Decay::no);
    tensors.align();
    s.qkv = joined({tensors.add_hidden_matrix(attn + "q_proj.weight", {Q, C}, matrix),
                    tensors.add_hidden_matrix(attn + "k_proj.weight", {KV, C}, matrix),
                    tensors.add_hidden_matrix(attn + "v_proj.weight", {KV, C}, matrix)});
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
    tensors.add_mechanism([&] { s.attention->declare(tensors, attn); });
    s.own.size = tensors.size() - s.own.offset;
    tensors.align();
    s.o_proj = tensors.add_hidden_matrix(attn + "o_proj.weight", {C, Q}, matrix);
    s.post_attention_norm = tensors.add(prefix + "post_attention_layernorm.weight", {C}, ones(), Decay::no);
    tensors.align();
    s.gate_up = joined({tensors.add_hidden_matrix(mlp + "gate_proj.weight", {F, C}, matrix),
                        tensors.add_hidden_matrix(mlp + "up_proj.weight", {F, C}, matrix)});
    tensors.align();
    s.down_proj = tensors.add_hidden_matrix(mlp + "down_proj.weight", {C, F}, matrix);
    if (config.setting("sigma_reparam") == 0) return s;
    tensors.align();
    tensors.add_mechanism([&] {
        for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) add_sigma(attn + name);
        for (const char* name : {"gate_proj", "up_proj", "down_proj"}) add_sigma(mlp + name);
    });
    return s;
}

/// Adds gamma and u of a linear layer; start_sigma() initialises them.
void Qwen::add_sigma(const std::string& name) {
    const Tensor& weight = *tensors.find(name + ".weight");
    const Slot slot = weight.slot;
    const int OUT = int(weight.shape[0]), IN = int(weight.shape[1]);
    const Slot gamma = tensors.add(name + ".sigma_gamma", {1}, ones(), Decay::no);
    const Slot u = tensors.add_state(name + ".sigma_u", {IN}, normal(1));
    const SigmaLinear* last = sigma.empty() ? nullptr : &sigma.back();
    sigma.push_back({slot, gamma, u, OUT, IN, last ? last->v + last->OUT : 0, last ? last->next_u + last->IN : 0, true});
    sigma_names.push_back(name);
}
