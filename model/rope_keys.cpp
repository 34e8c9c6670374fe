#include "model/config_keys.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "model/base/error.h"
#include "model/base/text.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char *FACTOR = "factor", *ORIGINAL = "original_max_position_embeddings";
constexpr double YARN_FAST = 32, YARN_SLOW = 1;   // where the file has none

struct RopeType {
    const char* name;
    RopeScaling::Type type;
    std::vector<const char*> required, optional;
};

const std::vector<RopeType>& rope_types() {
    static const std::vector<RopeType> types = {
        {"default", RopeScaling::Type::none, {}, {}},
        {"linear", RopeScaling::Type::linear, {FACTOR}, {}},
        {"yarn", RopeScaling::Type::yarn, {FACTOR, ORIGINAL},
         {"attention_factor", "beta_fast", "beta_slow", "truncate"}},
        {"llama3", RopeScaling::Type::llama3, {FACTOR, ORIGINAL, "low_freq_factor", "high_freq_factor"}, {}}};
    return types;
}

/// By "rope_type" or its older name "type"; "default" if the object has neither.
const RopeType& type_of(const json& rope, const std::string& where) {
    const char* key = has_field(rope, "rope_type") ? "rope_type" : "type";
    const std::string name = has_field(rope, key) ? string_field(rope, key, where) : "default";
    if (has_field(rope, "type") && rope["type"] != name)
        fail(Exit::checkpoint, where, ": \"rope_type\" is \"", name.substr(0, 80), "\" but \"type\" is ", shown(rope["type"]),
             "; make them agree");
    for (const RopeType& type : rope_types())
        if (name == type.name) return type;
    fail(Exit::checkpoint, where, ": \"", key, "\" is \"", name.substr(0, 80), "\", expected \"default\", \"linear\", \"yarn\" or "
         "\"llama3\"; models of other types run in transformers");
}

/// Exit::checkpoint for a key that the type needs and the object lacks, and for a key that the type does not have.
void require_keys(const json& rope, const RopeType& type, const std::string& where) {
    for (const char* key : type.required)
        if (!has_field(rope, key))
            fail(Exit::checkpoint, where, ": the type \"", type.name, "\" needs \"", key, "\"; copy it from the model's own config.json");
    const auto lists = [](const std::vector<const char*>& keys, const std::string& name) {
        return std::find(keys.begin(), keys.end(), name) != keys.end();
    };
    for (const auto& [name, value] : rope.items()) {
        const bool is_common = name == "rope_theta" || name == "type" || name == "rope_type";
        const bool is_whole = name == "partial_rotary_factor" && value == 1.0;   // every channel of a head rotates
        if (!is_common && !is_whole && !value.is_null() && !lists(type.required, name) && !lists(type.optional, name))
            fail(Exit::checkpoint, where, ": \"", name, "\" is ", shown(value), ", but RoPE of the type \"", type.name,
                 "\" is computed without this key; correct the type, or remove the key if it has no effect");
    }
}

/// YaRN's factor of cosines and sines, sqrt(1/t) of arXiv 2309.00071, section 3.4.
double yarn_attention_factor(double factor) { return 0.1 * std::log(factor) + 1; }

void read_bounds(const json& rope, RopeScaling& scaling, const std::string& where) {
    const bool yarn = scaling.type == RopeScaling::Type::yarn;
    const char *fast = yarn ? "beta_fast" : "high_freq_factor", *slow = yarn ? "beta_slow" : "low_freq_factor";
    scaling.fast = has_field(rope, fast) ? number_field(rope, fast, 1e-3, 1e6, where) : YARN_FAST;
    scaling.slow = has_field(rope, slow) ? number_field(rope, slow, 1e-3, 1e6, where) : YARN_SLOW;
    if (scaling.fast <= scaling.slow)
        fail(Exit::checkpoint, where, ": \"", fast, "\" is ", scaling.fast, " and \"", slow, "\" ", scaling.slow, "; expected \"", fast,
             "\" to be the larger one");
}

RopeScaling read_scaling(const json& rope, const std::string& where) {
    if (!rope.is_object()) fail(Exit::checkpoint, where, " is ", shown(rope), ", expected an object or null");
    const RopeType& type = type_of(rope, where);
    require_keys(rope, type, where);
    RopeScaling scaling{.type = type.type};
    if (scaling.type == RopeScaling::Type::none) return scaling;
    scaling.factor = number_field(rope, FACTOR, 1, 1e6, where);
    if (scaling.type == RopeScaling::Type::linear) return scaling;
    scaling.original_positions = int(integer_field(rope, ORIGINAL, 1, 1 << 30, where));
    read_bounds(rope, scaling, where);
    if (scaling.type != RopeScaling::Type::yarn) return scaling;
    if (has_field(rope, "truncate")) scaling.truncate = bool_field(rope, "truncate", where);
    scaling.attention_factor = has_field(rope, "attention_factor") ? number_field(rope, "attention_factor", 1e-3, 1e3, where)
                                                                   : yarn_attention_factor(scaling.factor);
    return scaling;
}

double read_theta(const json& object, const std::string& where) { return number_field(object, "rope_theta", 1, 1e12, where); }

const char* name_of(RopeScaling::Type type) {
    return std::find_if(rope_types().begin(), rope_types().end(), [&](const RopeType& t) { return t.type == type; })->name;
}

/// What rope_scaling and rope_parameters both have.
ordered_json scaling_keys(const RopeScaling& scaling) {
    ordered_json keys{{"rope_type", name_of(scaling.type)}};
    if (scaling.type == RopeScaling::Type::none) return keys;
    keys[FACTOR] = scaling.factor;
    if (scaling.type == RopeScaling::Type::linear) return keys;
    const bool yarn = scaling.type == RopeScaling::Type::yarn;
    keys[ORIGINAL] = scaling.original_positions;
    keys[yarn ? "beta_fast" : "high_freq_factor"] = scaling.fast;
    keys[yarn ? "beta_slow" : "low_freq_factor"] = scaling.slow;
    if (yarn && scaling.attention_factor != yarn_attention_factor(scaling.factor)) keys["attention_factor"] = scaling.attention_factor;
    if (!scaling.truncate) keys["truncate"] = false;
    return keys;
}

}   // namespace

void read_rope(const json& object, Config& config, const std::string& where) {
    std::optional<double> theta;
    if (has_field(object, "rope_theta")) theta = read_theta(object, where);
    std::optional<RopeScaling> scaling;
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        if (!has_field(object, key)) continue;
        const json& rope = object[key];
        const std::string inside = where + ": \"" + key + "\"";
        const RopeScaling found = read_scaling(rope, inside);
        if (scaling && *scaling != found)
            fail(Exit::checkpoint, where, ": \"rope_scaling\" and \"rope_parameters\" differ; make them agree, or remove one");
        scaling = found;
        if (!has_field(rope, "rope_theta")) continue;
        const double inner = read_theta(rope, inside);
        if (theta && *theta != inner)
            fail(Exit::checkpoint, where, ": \"rope_theta\" is ", *theta, " but \"", key, "\" says ", inner, "; make them agree");
        theta = inner;
    }
    config.rope_theta = theta.value_or(1e4);
    config.rope_scaling = scaling.value_or(RopeScaling{});
    if (config.rope_scaling.type == RopeScaling::Type::yarn && config.rope_theta == 1)
        fail(Exit::checkpoint, where, ": \"rope_theta\" is 1, but RoPE of the type \"yarn\" needs one above 1");
}

std::string scaling_in_words(const RopeScaling& scaling) {
    if (scaling.type == RopeScaling::Type::none) return "";
    return text("RoPE scaled by %g (%s)", scaling.factor, name_of(scaling.type));
}

void write_rope(const Config& config, ordered_json& object) {
    const ordered_json scaling = scaling_keys(config.rope_scaling);
    const bool plain = config.rope_scaling.type == RopeScaling::Type::none;
    object["rope_theta"] = config.rope_theta;   // read by transformers 4 ...
    object["rope_scaling"] = plain ? ordered_json() : scaling;
    object["rope_parameters"] = {{"rope_theta", config.rope_theta}};   // ... and by transformers 5
    object["rope_parameters"].update(scaling);
}
