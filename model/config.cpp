#include "model/config.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>

#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/options.h"
#include "model/config_keys.h"
#include "model/generation_config.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// ---------------------------------------------------------------------------------------------------------------- presets

/// Qwen3 style: QK-norm, no bias.
Config qwen3(int V, int C, int L, int NH, int NKV, int HS, int F, int max_positions = 32768) {
    Config config;
    config.V = V, config.C = C, config.L = L, config.NH = NH, config.NKV = NKV, config.HS = HS, config.F = F;
    config.max_positions = max_positions;
    config.tokenizer = V == 512 ? "bytes" : "";
    config.end_of_text = V == 512 ? 256 : -1;
    return config;
}

/// Qwen2.5 style: QKV bias, no QK-norm; the head size is C / NH.
Config qwen2(int V, int C, int L, int NH, int NKV, int F, int max_positions = 32768) {
    Config config = qwen3(V, C, L, NH, NKV, C / NH, F, max_positions);
    config.qkv_bias = true;
    config.qk_norm = false;
    return config;
}

const std::vector<std::pair<std::string, Config>>& presets() {
    //                                   V      C    L  NH NKV   HS     F
    static const std::vector<std::pair<std::string, Config>> table = {
        {"qwen-tiny", qwen3(           512,    32,   2,  2,  1,  32,   64)},
        {"qwen-1m", qwen3(             512,   128,   4,  4,  2,  32,  384)},
        {"qwen-2m", qwen3(             512,   192,   4,  3,  3,  64,  512)},
        {"qwen-7m", qwen3(             512,   256,   7,  8,  4,  64,  768)},
        {"qwen-7m-8k", qwen3(         8192,   256,   5,  8,  4,  64,  768)},
        {"qwen-132m", qwen3(         50304,   768,  12, 12, 12,  64, 2368)},
        {"qwen-134m", qwen3(         50304,   768,  12, 12, 12,  64, 2432)},
        {"qwen2.5-0.5b", qwen2(     151936,   896,  24, 14,  2,       4864)},
        {"qwen2.5-1.5b", qwen2(     151936,  1536,  28, 12,  2,       8960, 131072)},
        {"qwen3-0.6b", qwen3(       151936,  1024,  28, 16,  8, 128, 3072, 40960)},
    };
    return table;
}

// ----------------------------------------------------------------------------------------------------------------- checks

/// The sizes of config.json. Their limits are far beyond any real model, yet no product of two or three overflows 64 bits.
struct Size {
    const char* key;
    int Config::* member;
    int highest;
};
constexpr Size SIZES[] = {
    {"vocab_size", &Config::V, 1 << 24}, {"hidden_size", &Config::C, 1 << 18}, {"num_hidden_layers", &Config::L, 1 << 12},
    {"num_attention_heads", &Config::NH, 1 << 12}, {"num_key_value_heads", &Config::NKV, 1 << 12}, {"head_dim", &Config::HS, 1 << 12},
    {"intermediate_size", &Config::F, 1 << 22}, {"max_position_embeddings", &Config::max_positions, 1 << 30}};

/// Matrices only: norms, biases and a variant's tensors are too small to matter for a limit.
int64_t matrix_parameters(const Config& c) {
    const int64_t attention = 2 * int64_t(c.C) * c.HS * (int64_t(c.NH) + c.NKV);
    const int64_t feed_forward = 3 * int64_t(c.C) * c.F;
    return int64_t(c.L) * (attention + feed_forward) + (c.tied ? 1 : 2) * int64_t(c.V) * c.C;
}

// ---------------------------------------------------------------------------------------------------------------- reading

/// What distinguishes the architectures that are read and written. `defaults`: of keys that config.json lacks, as transformers has them
/// for the model type (scripts/config_defaults.json); those of all types are in COMMON_DEFAULTS. A missing rope_theta is 1e4, keys of
/// windows are in layer_types.cpp, and a num_key_value_heads or head_dim that is in neither follows from the other sizes.
struct ModelForm {
    const char* architecture;
    const char* model_type;
    bool qk_norm, qkv_bias;
    const char* defaults;
};
constexpr const char* COMMON_DEFAULTS = R"({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
    "initializer_range": 0.02, "tie_word_embeddings": false})";
constexpr ModelForm FORMS[] = {
    {"Qwen3ForCausalLM", "qwen3", true, false, R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "head_dim": 128, "max_position_embeddings": 32768})"},
    {"Qwen2ForCausalLM", "qwen2", false, true, R"({"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "max_position_embeddings": 32768})"},
    {"LlamaForCausalLM", "llama", false, false, R"({"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048,
        "bos_token_id": 1, "eos_token_id": 2})"}};

constexpr const char* ARCHITECTURES = "Qwen3ForCausalLM, Qwen2ForCausalLM or LlamaForCausalLM";

/// By `architectures` or, if that is missing, by `model_type`.
const ModelForm& form_of(const json& object, const std::string& where) {
    std::string name;
    if (!has_field(object, "architectures")) {
        name = string_field(object, "model_type", where);
    } else {
        const json& list = object["architectures"];
        if (!list.is_array() || list.size() != 1 || !list[0].is_string())
            fail(Exit::checkpoint, where, ": \"architectures\" is ", list.is_array() ? written(list).substr(0, 80) : shown(list),
                 ", expected a list of one name: ", ARCHITECTURES);
        name = list[0].get<std::string>();
    }
    for (const ModelForm& form : FORMS) {
        if (name != form.architecture && name != form.model_type) continue;
        if (has_field(object, "model_type") && object["model_type"] != form.model_type)
            fail(Exit::checkpoint, where, ": \"model_type\" is ", shown(object["model_type"]), ", but \"architectures\" is ",
                 form.architecture, ", whose type is \"", form.model_type, "\"; make them agree");
        return form;
    }
    fail(Exit::checkpoint, where, ": the architecture is \"", name.substr(0, 80), "\", expected ", ARCHITECTURES);
}

/// Precondition: check_config().
const ModelForm& form_of(const Config& config) {
    return *std::find_if(std::begin(FORMS), std::end(FORMS), [&](const ModelForm& form) {
        return form.qk_norm == config.qk_norm && form.qkv_bias == config.qkv_bias;
    });
}

/// Exit::checkpoint for what transformers would compute otherwise than the key, or the lack of it, has it for other architectures.
void refuse_for_form(const json& object, const ModelForm& form, const std::string& where) {
    if (!form.qkv_bias && has_field(object, "attention_bias") && object["attention_bias"] != false)   // Qwen2 has no such key
        fail(Exit::checkpoint, where, ": \"attention_bias\" is ", shown(object["attention_bias"]), "; ", form.architecture,
             " is supported with false only");
    const bool llama = !form.qkv_bias && !form.qk_norm;
    if (llama && !object.contains("attention_variant") && has_field(object, "use_sliding_window") && object["use_sliding_window"] != false)
        fail(Exit::checkpoint, where, ": \"use_sliding_window\" is ", shown(object["use_sliding_window"]), ", but LlamaForCausalLM has no "
             "sliding windows; name an \"attention_variant\", or remove the key");
}

/// The file's keys, and the defaults of those that it lacks.
json with_defaults(const json& object, const ModelForm& form) {
    json all = parse_json(COMMON_DEFAULTS);
    all.update(parse_json(form.defaults));
    all.update(object);
    if (!has_field(all, "num_key_value_heads")) all["num_key_value_heads"] = all["num_attention_heads"];
    return all;
}

void read_sizes(const json& object, const ModelForm& form, Config& config, const std::string& where) {
    const bool has_head_dim = object.contains("head_dim") && (form.qk_norm || !object["head_dim"].is_null());
    for (const auto& [key, member, highest] : SIZES)
        if (member != &Config::HS || has_head_dim) config.*member = int(integer_field(object, key, 1, highest, where));
    if (has_head_dim) return;
    if (config.C % config.NH != 0)
        fail(Exit::checkpoint, where, ": \"head_dim\" is missing and hidden_size (", config.C,
             ") is not a multiple of num_attention_heads (", config.NH, ")");
    config.HS = config.C / config.NH;
}

/// config.end_of_text and, where the file has several, config.listed_ends; config.begin_of_text.
void read_ends_of_text(const json& object, Config& config, const std::string& where) {
    const std::vector<int> ends = eos_token_ids(object, config.V, where);
    if (ends.size() == 1) config.end_of_text = ends[0];
    else config.listed_ends = ends;
    if (config.tokenizer == "bytes") config.end_of_text = 256;
    const bool has_begin = has_field(object, "bos_token_id");
    if (object.value("bos_token_id", json()) == object.value("eos_token_id", json())) return;
    config.begin_of_text = has_begin ? int(integer_field(object, "bos_token_id", -1, INT_MAX, where)) : -1;
}

void read_settings(const json& object, Config& config, const std::string& where) {
    for (const auto& [key, value] : object.items()) {
        if (!value.is_number() || is_known_key(key)) continue;
        if (!std::isfinite(value.get<double>())) fail(Exit::checkpoint, where, ": \"", key, "\" is not a finite number");
        config.settings[key] = value.get<double>();
    }
}

}   // namespace

double Config::setting(const std::string& key) const {
    const auto entry = settings.find(key);
    if (entry == settings.end()) fail(Exit::usage, "the variant ", variant, " reads the setting \"", key, "\" but does not declare it");
    return entry->second;
}

std::vector<int> Config::ends_of_text() const {
    const auto listed = std::find(listed_ends.begin(), listed_ends.end(), end_of_text);
    if (end_of_text < 0 || listed != listed_ends.end()) return listed_ends;
    return {end_of_text};
}

std::string form_in_words(const Config& config) {
    const std::string scaling = scaling_in_words(config.rope_scaling);
    return std::string(config.qk_norm ? "QK-norm" : "no QK-norm") + (config.qkv_bias ? ", QKV bias" : "") +
           (scaling.empty() ? "" : ", " + scaling);
}

bool is_preset(const std::string& name) {
    return std::any_of(presets().begin(), presets().end(), [&](const auto& preset) { return preset.first == name; });
}

Config preset(const std::string& name) {
    std::string all;
    for (const auto& [known, config] : presets()) {
        if (name == known) return config;
        all += (all.empty() ? "" : ", ") + known;
    }
    const std::string near = nearest(name, preset_names());
    fail(Exit::usage, "there is no preset and no folder named \"", name, "\"", near.empty() ? "" : "; did you mean " + near + "?",
         " Presets: ", all);
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const auto& preset : presets()) names.push_back(preset.first);
    return names;
}

void check_config(const Config& config, const std::string& where, Exit code) {
    for (const auto& [key, member, highest] : SIZES)
        if (config.*member < 1 || config.*member > highest)
            fail(code, where, ": ", key, " is ", config.*member, ", expected 1 to ", highest);
    if (config.V < 2) fail(code, where, ": vocab_size is ", config.V, ", expected at least 2 tokens to choose from");
    if (config.tokenizer == "bytes" && config.V < 257)
        fail(code, where, ": vocab_size is ", config.V, ", the bytes tokenizer needs at least 257 (256 bytes and end-of-text)");
    if (config.NH % config.NKV != 0)
        fail(code, where, ": num_attention_heads (", config.NH, ") must be a multiple of num_key_value_heads (", config.NKV, ")");
    if (config.HS % 2 != 0) fail(code, where, ": head_dim is ", config.HS, ", expected an even number (RoPE rotates pairs)");
    if (config.qkv_bias && config.qk_norm)
        fail(code, where, ": QKV bias (Qwen2) and QK-norm (Qwen3) cannot be combined; use one or neither");
    if (!(config.norm_eps > 0 && config.norm_eps < 1))
        fail(code, where, ": rms_norm_eps is ", config.norm_eps, ", expected above 0 and below 1");
    if (!is_variant_name(config.variant)) fail(code, where, ": attention_variant must be made of a-z, 0-9 and _");
    if (!config.layers.empty() && config.layers.size() != size_t(config.L))
        fail(code, where, ": attention is given for ", config.layers.size(), " layers, but num_hidden_layers is ", config.L,
             "; make them agree");
    if (matrix_parameters(config) >= int64_t(1) << 40)
        fail(code, where, ": the model would have ", matrix_parameters(config), " parameters; the limit is 2^40");
}

// ---------------------------------------------------------------------------------------------------------------- writing

static ordered_json object_of(const Config& config) {
    check_config(config, "config.json to be written", Exit::checkpoint);
    ordered_json object;
    const ModelForm& form = form_of(config);
    object["architectures"] = ordered_json::array({form.architecture});
    object["model_type"] = form.model_type;
    if (!transformers_computes(config))   // files beside config.json, in scripts/attention_torch
        object["auto_map"] = auto_map();
    for (const auto& [key, member, highest] : SIZES) object[key] = config.*member;
    object["hidden_act"] = "silu";
    object["rms_norm_eps"] = config.norm_eps;
    write_rope(config, object);
    if (!form.qkv_bias) object["attention_bias"] = false;   // Qwen2 has no such key: it always has QKV bias
    object["attention_dropout"] = 0.0;
    object["tie_word_embeddings"] = config.tied;
    object["initializer_range"] = config.init_std;
    write_layers(config, object);
    const auto id = [](int token) { return token >= 0 ? ordered_json(token) : ordered_json(nullptr); };
    object["bos_token_id"] = id(config.begin_of_text.value_or(config.end_of_text));
    const std::vector<int> ends = config.ends_of_text();
    object["eos_token_id"] = ends.size() > 1 ? ordered_json(ends) : ends.empty() ? ordered_json(nullptr) : ordered_json(ends[0]);
    object["use_cache"] = true;
    object["torch_dtype"] = "float32";   // transformers 4
    object["dtype"] = "float32";         // transformers 5
    object["transformers_version"] = "4.51.0";   // the first release that knows Qwen3
    object["attention_variant"] = config.variant;
    object["engine_tokenizer"] = config.tokenizer;
    for (const auto& [key, value] : config.settings) object.emplace(key, number(value));   // emplace: a model key wins
    return object;
}

std::string config_to_json(const Config& config) { return written(object_of(config), 2) + "\n"; }
std::string config_to_json_line(const Config& config) { return written(object_of(config)); }

Config config_from_json(const std::string& text, const std::string& where) {
    const json given = parse_json_object(text, where);
    const ModelForm& form = form_of(given, where);
    require_known_keys(given, where);
    refuse_for_form(given, form, where);
    const json object = with_defaults(given, form);

    Config config;
    read_sizes(object, form, config, where);
    config.qkv_bias = form.qkv_bias;
    config.qk_norm = form.qk_norm;
    config.tied = bool_field(object, "tie_word_embeddings", where);
    read_rope(object, config, where);
    config.norm_eps = number_field(object, "rms_norm_eps", 0, 1, where);
    config.init_std = number_field(object, "initializer_range", 0, 10, where);
    config.names_variant = has_field(object, "attention_variant");
    if (config.names_variant) config.variant = string_field(object, "attention_variant", where);
    if (has_field(object, "engine_tokenizer")) config.tokenizer = string_field(object, "engine_tokenizer", where);
    read_ends_of_text(object, config, where);
    read_settings(object, config, where);
    read_layers(object, config, where);
    check_config(config, where, Exit::checkpoint);
    return config;
}
