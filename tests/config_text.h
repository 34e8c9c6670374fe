// config.json as tests change it, and the sentence with which it is refused.
#pragma once
#include <string>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "tests/errors.h"

using nlohmann::json;

inline json as_json(const std::string& preset_name = "qwen-tiny") { return json::parse(config_to_json(preset(preset_name))); }

/// The sentence with which a config.json is refused; "" where it is not.
inline std::string refusal(const std::string& text) {
    return refusal(Exit::checkpoint, [&] { config_from_json(text, "here/config.json"); });
}

inline void refused(json object, const std::string& key, const json& value, const std::string& expected = "") {
    object[key] = value;
    const std::string sentence = refusal(object.dump());
    INFO(sentence);
    CHECK(sentence.find("here/config.json") != std::string::npos);
    CHECK(sentence.find(expected.empty() ? key : expected) != std::string::npos);
}
