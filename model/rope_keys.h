// What RoPE's keys in config.json may say, whatever the architecture.
#pragma once
#include <string>

#include "model/base/error.h"
#include "model/base/json.h"

/// Exit::checkpoint if `holder`, the file or its object `name`, lets a part of a head's channels rotate.
inline void require_whole_rotation(const nlohmann::json& holder, const std::string& name, const std::string& where) {
    if (has_field(holder, "partial_rotary_factor") && holder["partial_rotary_factor"] != 1.0)
        fail(Exit::checkpoint, where, ": ", name.empty() ? "" : "\"" + name + "\" has ", "\"partial_rotary_factor\" ",
             shown(holder["partial_rotary_factor"]), "; only 1 is supported, every channel of a head rotates");
}
