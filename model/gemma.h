// The part of config.json that only models of Gemma 3's form have (Gemma3ForCausalLM, the text models).
#pragma once
#include <string>

#include "model/base/json.h"
#include "model/config.h"

/// Precondition: config.V. Fills in config.gemma, config.rope_theta and config.max_positions (that of a file which has no such key), from
/// keys as transformers 4 writes them or as transformers 5 does; missing ones have the defaults of transformers. Exit::checkpoint for
/// keys that would change the mathematics.
void read_gemma(const nlohmann::json& object, Config& config, const std::string& where);

/// Precondition: config.gemma. The same keys, as both read them.
void write_gemma(const Config& config, nlohmann::ordered_json& object);

/// Precondition: config.gemma. What its numbers make of attention's formula and of RoPE, for people.
std::string gemma_in_words(const Config& config);

/// Fails with `exit_code`, naming `where`, if a number of config.gemma is not valid or the rest of the form is another one's.
void check_gemma(const Config& config, const std::string& where, int exit_code);

/// The period of full-attention layers of a folder that has no layer_types, as its sliding_window_pattern has it.
int read_pattern(const nlohmann::json& object, const std::string& where);

/// The period of full-attention layers among layers of which each `slides` or not; 0 if they have none.
int pattern_of_layers(const std::vector<bool>& slides);
