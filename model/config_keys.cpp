#include "model/config_keys.h"

#include <algorithm>
#include <map>
#include <set>

#include "model/base/error.h"

using nlohmann::json;

namespace {

/// Keys that config_from_json() computes, and checks.
const std::set<std::string> COMPUTED = {
    "architectures", "attention_bias", "attention_layer_settings", "attention_variant", "bos_token_id", "engine_tokenizer",
    "eos_token_id", "head_dim", "hidden_size", "initializer_range", "intermediate_size", "layer_types", "max_position_embeddings",
    "max_window_layers", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "use_sliding_window", "vocab_size"};

/// Keys without effect on what the model computes: how transformers 4 and 5 store and run it, what it returns, labels of classifiers,
/// and defaults for writing text, which transformers 4 kept here.
const std::set<std::string> WITHOUT_EFFECT = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_experts_implementation", "_name_or_path",
    "attn_implementation", "bad_words_ids", "base_model_tp_plan", "begin_suppress_tokens", "chunk_size_feed_forward",
    "classifier_dropout", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "experts_implementation", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "id2label", "is_decoder", "label2id",
    "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "name_or_path", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_past", "output_router_logits", "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_last_hidden_states", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "transformers_weights", "typical_p",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_return_dict"};

/// Keys that may have these values only, and what any other would be.
struct Only {
    json values;
    const char* otherwise;
};
const std::map<std::string, Only>& only() {
    static const std::map<std::string, Only> keys = {
        {"add_cross_attention", {{false}, "there is no second text to attend to"}},
        {"attention_dropout", {{0}, "nothing is dropped"}},
        {"hidden_act", {{"silu", "swish"}, "the feed-forward network is SwiGLU"}},
        {"is_causal", {{true}, "no token sees a later one"}},
        {"is_encoder_decoder", {{false}, "the model is a decoder"}},
        {"mlp_bias", {{false}, "the feed-forward network has no biases"}},
        {"partial_rotary_factor", {{1}, "every channel of a head rotates"}},
        {"per_layer_config", {json::array({json::object()}), "layers differ in their attention only (\"layer_types\")"}},
        {"pruned_heads", {json::array({json::object()}), "no head is left out"}},
        {"quantization_config", {json::array(), "weights are read in float32, bfloat16, float16 or float64"}},
        {"tie_encoder_decoder", {{false}, "the model is a decoder"}},
        {"use_mrope", {{false}, "a token has one position"}},
    };
    return keys;
}

std::string in_words(const json& values) {
    std::string all;
    for (const json& value : values) all += (all.empty() ? "" : " or ") + written(value);
    return all;
}

/// Ours names the Python files that checkpoints carry beside an "attention_variant".
void require_own_code(const json& object, const std::string& where) {
    if (!has_field(object, "auto_map")) return;
    const json ours = auto_map(), &held = object["auto_map"];
    bool own = has_field(object, "attention_variant") && held.is_object();
    for (const auto& [key, value] : held.items()) own = own && ours.contains(key) && ours[key] == value;
    if (!own)
        fail(Exit::checkpoint, where, ": \"auto_map\" names code of the folder's own, which may compute another model than the "
             "architecture's; remove the key if it does not");
}

}   // namespace

json auto_map() {
    return {{"AutoConfig", "modeling_attention_variants.AttentionVariantsConfig"},
            {"AutoModelForCausalLM", "modeling_attention_variants.AttentionVariantsForCausalLM"}};
}

bool is_known_key(const std::string& key) {
    return COMPUTED.count(key) || WITHOUT_EFFECT.count(key) || only().count(key) || key == "auto_map";
}

void require_known_keys(const json& object, const std::string& where) {
    require_own_code(object, where);
    for (const auto& [key, value] : object.items()) {
        const auto entry = only().find(key);
        if (entry != only().end()) {
            const auto& [values, otherwise] = entry->second;
            if (value.is_null() || std::find(values.begin(), values.end(), value) != values.end()) continue;
            fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(value), "; only ", values.empty() ? "null" : in_words(values),
                 " is supported: ", otherwise);
        }
        if (is_known_key(key) || value.is_null() || value.is_number()) continue;
        fail(Exit::checkpoint, where, ": the key \"", key, "\", which is ", shown(value), ", is not known; if it changes nothing that the "
             "model computes, remove it");
    }
}
