// The shape of a Qwen model and the settings of its attention variant: the contents of config.json.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/rope.h"

/// Setting::step of a real-valued setting and of an integer one.
inline constexpr int REAL = 0, WHOLE = 1;

/// A hyperparameter of an attention variant, or of every model: its command-line option, key in config.json, default and range.
struct Setting {
    const char* option;   // "--window"
    const char* key;      // "attention_window", as config.json has it
    double value;         // default
    double lowest;        // inclusive
    double highest;       // inclusive
    int step;             // REAL, WHOLE, or a divisor of every valid value
    const char* help;
    bool of_sequence = false;   // counts tokens, or blocks of them, of a sequence: limited by --seq-len
    int part = 1;               // tokens per block,
    const char* part_key = nullptr;   // unless the setting with this key gives it
    int sides = 1;              // 2: a window that extends to both sides of a block, so the limit doubles
};

/// The attention of one layer of a hybrid.
struct LayerAttention {
    std::string variant;
    std::map<std::string, double> settings = {};   // by config.json key: for the model's own variant those that differ from the
                                                   // model's, for another variant all
    bool operator==(const LayerAttention&) const = default;
};

/// A Qwen2.5-style (qkv_bias) or Qwen3-style (qk_norm) decoder, or Llama's form with neither. Sizes are named as in dev/HACKING.md,
/// "Names".
struct Config {
    int V = 512;        // vocabulary
    int C = 256;        // channels of the residual stream         (hidden_size)
    int L = 7;          // layers                                  (num_hidden_layers)
    int NH = 8;         // query heads                             (num_attention_heads)
    int NKV = 4;        // key/value heads, NH % NKV == 0          (num_key_value_heads)
    int HS = 64;        // head size, even; NH * HS may differ from C  (head_dim)
    int F = 768;        // width of the feed-forward network       (intermediate_size)
    bool qkv_bias = false;   // Qwen2 form
    bool qk_norm = true;     // Qwen3 form: RMSNorm over each head of q and k before RoPE
    bool tied = true;        // the output head is the embedding
    double norm_eps = 1e-6;
    double rope_theta = 1e6;
    RopeScaling rope_scaling;
    double init_std = 0.02;       // initializer_range
    int max_positions = 32768;    // max_position_embeddings
    std::string tokenizer;        // "bytes", the path of a tokenizer.json, or "" if unknown
    int end_of_text = -1;         // id of the token between documents, -1 if unknown       (eos_token_id)
    std::optional<int> begin_of_text;   // first token of a text if not end_of_text; -1: none   (bos_token_id)
    std::vector<int> listed_ends; // an eos_token_id with several tokens; the one between documents is unknown
    std::string variant = "causal";             // attention_variant; in a hybrid, the variant of `settings`
    bool names_variant = false;                 // whether config.json has attention_variant; other programs' folders do not
    std::map<std::string, double> settings;     // the variant's and the model's by config.json key, e.g. {"asga_hidden", 16}

    std::string generation_config;              // generation_config.json of the folder that the model came from, verbatim; "": none

    std::vector<LayerAttention> layers;         // (L) in a hybrid; empty if every layer is `variant` with `settings`

    /// The config for the attention of layer l: a model with this layer's variant and settings in every layer.
    Config of_layer(int l) const;

    Rope rope() const { return {HS, rope_theta, rope_scaling}; }

    /// The tokens that each end a text: those of the list, unless the data has defined another one since; or the token between documents;
    /// or none, if unknown.
    std::vector<int> ends_of_text() const;

    /// The value of a setting. Exit::usage if the variant does not declare it (a programming error).
    double setting(const std::string& key) const;
};

/// The settings that every model has, whatever its attention.
const std::vector<Setting>& model_settings();

/// Adds the default of every setting that `config` lacks and drops unknown ones (another variant's, another program's).
/// Exit::usage, naming the range, if a value is outside it.
void complete_settings(Config& config, const std::vector<Setting>& settings);

/// Precondition: `config` has all settings, those in `given` (by config.json key) included.
/// Exit::usage, naming the permitted range, if a setting in `given` exceeds a sequence of T tokens. Defaults and a checkpoint's own
/// settings may exceed it: a window is then dense.
void require_within_sequence(const std::vector<Setting>& settings, const std::map<std::string, double>& given, const Config& config,
                             int T);

/// Named shapes for --model: "qwen-7m", "qwen2.5-0.5b", ... preset() of an unknown name: Exit::usage.
bool is_preset(const std::string& name);
Config preset(const std::string& name);
std::vector<std::string> preset_names();

/// The model's form and the numbers that no other line has, for output: "QK-norm, QKV bias".
std::string form_in_words(const Config& config);

/// Fails with `code` if the sizes are not valid; `where` names their source in the message.
void check_config(const Config& config, const std::string& where, Exit code);

/// Whether transformers' own code computes the model: causal layers and equal sliding windows, without sigma_reparam; Llama's form has no
/// windows there. Other models name their code in "auto_map" (scripts/attention_torch), and their layer_types has our names, so that they
/// are not loaded as plain attention.
bool transformers_computes(const Config& config);

/// config.json in Hugging Face form (Qwen2ForCausalLM, Qwen3ForCausalLM, or with neither biases nor QK-norm
/// LlamaForCausalLM, which transformers computes so) plus the variant's keys. A hybrid of causal layers and equal sliding windows is one of
/// transformers, too.
std::string config_to_json(const Config& config);

/// The same on one line, without a newline.
std::string config_to_json_line(const Config& config);

/// Parses config.json; `where` (the file's path) is named in errors. Exit::checkpoint on unknown architectures, ill-typed keys,
/// invalid sizes, and keys that would change the mathematics or are not known. Missing keys have the defaults of transformers.
Config config_from_json(const std::string& text, const std::string& where);
