#include "model/gemma.h"

#include <cmath>

#include "model/base/error.h"
#include "model/base/text.h"
#include "model/layer_types.h"
#include "model/rope_keys.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr double LARGEST_FACTOR = 1e6;

/// Keys of which only the usual value is supported.
void refuse_other_mathematics(const json& object, const std::string& where) {
    if (has_field(object, "hidden_activation") && object["hidden_activation"] != "gelu_pytorch_tanh")
        fail(Exit::checkpoint, where, ": \"hidden_activation\" is ", shown(object["hidden_activation"]),
             "; of Gemma3ForCausalLM only \"gelu_pytorch_tanh\" is supported");
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
        if (has_field(object, key))
            fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(object[key]), "; logits are not capped here, only null is supported");
    if (object.contains("sliding_window") && !has_field(object, "sliding_window"))
        fail(Exit::checkpoint, where, ": \"sliding_window\" is null; expected the number of keys that layers of \"sliding_attention\" see");
    if (has_field(object, "use_bidirectional_attention") && object["use_bidirectional_attention"] != false)
        fail(Exit::checkpoint, where, ": \"use_bidirectional_attention\" is ", shown(object["use_bidirectional_attention"]),
             "; only false is supported, no token sees a later one");
}

/// What rope_parameters says of one type of layers; null if nothing.
const json& rope_of(const json& object, const char* type, const std::string& where) {
    static const json none;
    if (!has_field(object, "rope_parameters")) return none;
    const json& all = object["rope_parameters"];
    bool is_known = all.is_object();
    if (is_known)
        for (const auto& [name, rope] : all.items())
            is_known = is_known && (name == "full_attention" || name == "sliding_attention") && (rope.is_object() || rope.is_null());
    if (!is_known)
        fail(Exit::checkpoint, where, ": \"rope_parameters\" of Gemma3ForCausalLM is ", shown(all),
             ", expected an object for \"full_attention\" and one for \"sliding_attention\" in it");
    return has_field(all, type) ? all[type] : none;
}

/// The base of one type of layers, from rope_parameters or the top level.
double read_theta(const json& object, const json& rope, const char* key, double otherwise, const std::string& where) {
    const bool outside = has_field(object, key), inside = has_field(rope, "rope_theta");
    const double theta = outside ? number_field(object, key, 1, 1e12, where) : otherwise;
    if (!inside) return theta;
    const double inner = number_field(rope, "rope_theta", 1, 1e12, where);
    if (outside && inner != theta)
        fail(Exit::checkpoint, where, ": \"", key, "\" is ", theta, " but \"rope_parameters\" says ", inner, "; make them agree");
    return inner;
}

/// What positions are divided by, as `rope` has it: rope_scaling, or one type's part of rope_parameters.
double read_factor(const json& rope, const char* key, const std::string& where) {
    require_whole_rotation(rope, key, where);
    double factor = 1;
    for (const char* type_key : {"rope_type", "type"}) {
        if (!has_field(rope, type_key) || rope[type_key] == "default") continue;
        if (rope[type_key] != "linear")
            fail(Exit::checkpoint, where, ": \"", key, "\" has \"", type_key, "\" ", shown(rope[type_key]),
                 "; of Gemma3ForCausalLM \"default\" and \"linear\" are supported");
        factor = number_field(rope, "factor", 1, LARGEST_FACTOR, where);
    }
    return factor;
}

}   // namespace

void read_gemma(const json& object, Config& config, const std::string& where) {
    refuse_other_mathematics(object, where);
    Gemma gemma;
    if (has_field(object, "query_pre_attn_scalar"))
        gemma.query_scalar = number_field(object, "query_pre_attn_scalar", 1, LARGEST_FACTOR, where);
    const json &full = rope_of(object, "full_attention", where), &sliding = rope_of(object, "sliding_attention", where);
    config.rope_theta = read_theta(object, full, "rope_theta", 1e6, where);
    gemma.local_theta = read_theta(object, sliding, "rope_local_base_freq", 1e4, where);
    if (read_factor(sliding, "rope_parameters", where) != 1)
        fail(Exit::checkpoint, where, ": \"rope_parameters\" scales positions of \"sliding_attention\"; only those of \"full_attention\" can be");
    gemma.rope_factor = read_factor(full, "rope_parameters", where);
    if (has_field(object, "rope_scaling")) {
        const json& scaling = object["rope_scaling"];
        if (!scaling.is_object())
            fail(Exit::checkpoint, where, ": \"rope_scaling\" is ", shown(scaling), ", expected an object or null");
        const double factor = read_factor(scaling, "rope_scaling", where);
        if (has_field(full, "factor") && factor != gemma.rope_factor)
            fail(Exit::checkpoint, where, ": \"rope_scaling\" has the factor ", factor, " but \"rope_parameters\" says ", gemma.rope_factor,
                 "; make them agree");
        gemma.rope_factor = factor;
    }
    constexpr int usual_begin = 2;   // what transformers takes if the key is missing
    if (has_field(object, "bos_token_id")) gemma.begin_of_text = int(integer_field(object, "bos_token_id", 0, config.V - 1, where));
    else if (!object.contains("bos_token_id") && usual_begin < config.V) gemma.begin_of_text = usual_begin;
    config.gemma = gemma;
    config.max_positions = 131072;
}

void write_gemma(const Config& config, ordered_json& object) {
    const Gemma& gemma = *config.gemma;
    const bool scales = gemma.rope_factor != 1;
    ordered_json full = {{"rope_type", scales ? "linear" : "default"}};
    if (scales) full["factor"] = gemma.rope_factor;
    object["hidden_activation"] = "gelu_pytorch_tanh";
    object["query_pre_attn_scalar"] = number(gemma.query_scalar);
    object["attn_logit_softcapping"] = object["final_logit_softcapping"] = nullptr;
    object["rope_theta"] = config.rope_theta;   // read by transformers 4 ...
    object["rope_local_base_freq"] = gemma.local_theta;
    object["rope_scaling"] = scales ? full : ordered_json(nullptr);
    full["rope_theta"] = config.rope_theta;   // ... and by transformers 5
    object["rope_parameters"] = {{"full_attention", full},
                                 {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", gemma.local_theta}}}};
}

std::string gemma_in_words(const Config& config) {
    const Gemma& gemma = *config.gemma;
    const std::string factor = gemma.rope_factor != 1 ? text(" and positions / %g", gemma.rope_factor) : "";
    return text("logits q.k / sqrt(%g), RoPE's base %g in layers that slide and %g%s in the others", gemma.query_scalar,
                gemma.local_theta, config.rope_theta, factor.c_str());
}

void check_gemma(const Config& config, const std::string& where, int exit_code) {
    const Gemma& gemma = *config.gemma;
    const Exit code = Exit(exit_code);
    if (!config.qk_norm || config.qkv_bias)
        fail(code, where, ": a model of Gemma 3's form has QK-norm and no biases, unlike this one");
    if (!(gemma.query_scalar >= 1 && gemma.query_scalar <= LARGEST_FACTOR))
        fail(code, where, ": query_pre_attn_scalar is ", gemma.query_scalar, ", expected 1 to ", LARGEST_FACTOR);
    if (!(gemma.local_theta >= 1 && gemma.local_theta <= 1e12))
        fail(code, where, ": rope_local_base_freq is ", gemma.local_theta, ", expected 1 to 1e12");
    if (!(gemma.rope_factor >= 1 && gemma.rope_factor <= LARGEST_FACTOR))
        fail(code, where, ": rope_scaling has the factor ", gemma.rope_factor, ", expected 1 to ", LARGEST_FACTOR);
}

int read_pattern(const json& object, const std::string& where) {
    for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"})   // transformers 4 writes one or the other
        if (has_field(object, key)) return int(integer_field(object, key, 1, 1 << 30, where));
    return 6;
}

int pattern_of_layers(const std::vector<bool>& slides) {
    size_t every = 1;
    while (every <= slides.size() && slides[every - 1]) every++;   // up to the first layer of full attention
    for (size_t l = 0; l < slides.size(); l++)
        if (slides[l] != ((l + 1) % every != 0)) return 0;
    return int(every);
}

Rope Config::rope(int l) const {
    if (!gemma) return {rope_theta};
    const bool slides = of_layer(l).variant == "sliding_window";
    const double scaling = std::pow(HS / gemma->query_scalar, 0.25);
    return slides ? Rope{gemma->local_theta, true, 1, scaling} : Rope{rope_theta, true, gemma->rope_factor, scaling};
}

double Config::embedding_scale() const { return gemma ? double(float(std::sqrt(double(C)))) : 1; }
