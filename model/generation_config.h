// generation_config.json: the tokens that end a text, and the defaults of sampling.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "model/base/json.h"

struct GenerationConfig {
    std::vector<int> ends;               // ids that each end a text; none: those of config.json
    std::optional<double> temperature;   // 0 without "do_sample": true, as in transformers
    std::optional<int> top_k;
    std::optional<double> top_p;
    std::string not_applied;             // "repetition_penalty 1.1, num_beams 4": keys that this program does not implement

    /// "temperature 0.7, top-k 20", for output; "" if nothing is set.
    std::string in_words() const;
};

/// Parses generation_config.json of a model with a vocabulary of V; `where` (the file's path) is named in
/// errors, which are all Exit::checkpoint. An empty text has nothing set.
GenerationConfig generation_config_from_json(const std::string& text, int V, const std::string& where);

/// The ids of "eos_token_id" in either file: one, a list, or none. Ids beyond a vocabulary of V are left out.
std::vector<int> eos_token_ids(const nlohmann::json& object, int V, const std::string& where);

/// The file that a checkpoint of the model with this config.json has, unless it came with one.
std::string default_generation_config(const nlohmann::json& model);
