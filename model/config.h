// The shape of a Qwen model and the settings of its attention variant. Everything that config.json holds, and nothing else.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// Setting::step where any number will do, and where any whole one will.
inline constexpr int REAL = 0, WHOLE = 1;

/// One number that an attention variant can be tuned with: a command-line option, a key of config.json, a default, its range.
struct Setting {
    const char* option;   // "--window"
    const char* key;      // "attention_window", as config.json has it
    double value;         // default
    double lowest;        // inclusive
    double highest;       // inclusive
    int step;             // REAL, WHOLE, or what it must be a multiple of
    const char* help;
    bool of_sequence = false;   // counts tokens, or parts, of a sequence: more than --seq-len has cannot be asked for
    int part = 1;               // tokens of each of those parts,
    const char* part_key = nullptr;   // unless the setting of this key says how many they are
    int sides = 1;              // 2: a window of which half goes to either side of a part, and so of twice as many
};

/// A Qwen2.5-style (qkv_bias) or Qwen3-style (qk_norm) decoder. Sizes as everywhere: see dev/HACKING.md, "Names".
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
    double init_std = 0.02;       // initializer_range
    int max_positions = 32768;    // max_position_embeddings
    std::string tokenizer;        // "bytes", the path of a tokenizer.json, or "" when it is not known
    int end_of_text = -1;         // id of the token between documents, -1 when it is not known
    std::string variant = "causal";             // attention_variant
    bool names_variant = false;                 // whether config.json says so: other programs' folders do not
    std::map<std::string, double> settings;     // the variant's settings by config.json key, e.g. {"asga_hidden", 16}

    /// The value of a setting that the variant declared; fails when nobody declared it (a programming error).
    double setting(const std::string& key) const;
};

/// Gives every setting that `config` lacks its default, and drops what is none of them (another variant's, another program's). A
/// value outside its range fails with Exit::usage and the range.
void complete_settings(Config& config, const std::vector<Setting>& settings);

/// Exit::usage with the permitted range when a setting in `given` (by config.json key) counts more than the T tokens of a sequence.
/// Defaults, and what a checkpoint was trained with, may: a window is then dense. `config` has all settings, the given ones too.
void require_within_sequence(const std::vector<Setting>& settings, const std::map<std::string, double>& given, const Config& config,
                             int T);

/// Named shapes for --model: "qwen-7m", "qwen2.5-0.5b", ... `known` tells whether the name is one of them.
bool is_preset(const std::string& name);
Config preset(const std::string& name);
std::vector<std::string> preset_names();

/// Fails with Exit::usage or Exit::checkpoint (`code`) and one sentence when the sizes make no model; `where` names their source.
void check_config(const Config& config, const std::string& where, int exit_code);

/// config.json text in Hugging Face form (Qwen2ForCausalLM or Qwen3ForCausalLM), the variant's keys added.
std::string config_to_json(const Config& config);

/// The same in one line, without an end of line.
std::string config_to_json_line(const Config& config);

/// The reverse; `where` (the file's path) is named in errors. Unknown architectures, missing or ill-typed keys, sizes that
/// make no model: Exit::checkpoint. Keys of other programs are ignored; keys that would change the mathematics are refused.
Config config_from_json(const std::string& text, const std::string& where);
