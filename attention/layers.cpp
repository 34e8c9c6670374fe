#include "attention/layers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>

#include "model/base/error.h"
#include "model/base/text.h"

namespace {

/// The parts between separators; "a,,b" has an empty one.
std::vector<std::string> split(const std::string& list, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(list + separator);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

/// The whole of `word` as a number; false if it is none.
template <class Number>
bool parse_number(const std::string& word, Number& number) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    return error == std::errc() && end == word.data() + word.size();
}

/// Reads OPTION=VALUE into the layer's settings.
void read_option(const std::string& word, const std::string& part, const Variant& variant, LayerAttention& layer) {
    const size_t equals = word.find('=');
    const std::string option = "--" + word.substr(0, equals);
    std::string known;
    for (const Setting& s : variant.settings()) {
        known += std::string(" ") + (s.option + 2);
        if (option != s.option) continue;
        double value = 0;
        if (!parse_number(word.substr(equals + 1), value) || !std::isfinite(value))
            fail(Exit::usage, "--layers ", part, ": ", word, " must give a number");
        if (!layer.settings.emplace(s.key, value).second)
            fail(Exit::usage, "--layers ", part, ": ", option.substr(2), " is given twice");
        return;
    }
    fail(Exit::usage, "--layers ", part, ": ", variant.name, " has no option ", option, "; its options are:",
         known.empty() ? " none" : known);
}

/// Appends what one NAME[:COUNT][:OPTION=VALUE]... stands for.
void read_part(const std::string& part, int L, const Variants& variants, std::vector<LayerAttention>& layers) {
    const std::vector<std::string> words = split(part, ':');
    const Variant* const variant = variants.find(words[0]);
    if (!variant)
        fail(Exit::usage, "--layers ", part, ": unknown attention variant '", words[0], "'; this program has: ", variants.names());
    LayerAttention layer{variant->name};
    int count = 1;
    for (size_t n = 1; n < words.size(); n++) {
        if (words[n].find('=') != std::string::npos) read_option(words[n], part, *variant, layer);
        else if (n > 1 || !parse_number(words[n], count) || count < 1 || count > L)
            fail(Exit::usage, "--layers ", part, ": \"", words[n], "\" must be OPTION=VALUE or, directly after the name, a number of "
                 "layers from 1 to ", L);
    }
    layers.insert(layers.end(), size_t(count), layer);
}

void require_own(const std::vector<LayerAttention>& layers, const char* option, const std::string& value, const Variant& own) {
    if (std::any_of(layers.begin(), layers.end(), [&](const LayerAttention& layer) { return layer.variant == own.name; })) return;
    fail(Exit::usage, option, " ", value, " leaves no layer to ", own.name, "; train such a model with ./train_causal");
}

/// What all layers of the model's own variant have in common becomes a setting of the model.
void share_settings(Config& config, const Variant& own) {
    std::vector<LayerAttention*> alike;
    for (LayerAttention& layer : config.layers)
        if (layer.variant == own.name) alike.push_back(&layer);
    for (const Setting& s : own.settings()) {
        std::vector<double> values;
        for (const LayerAttention* layer : alike)
            if (const auto held = layer->settings.find(s.key); held != layer->settings.end()) values.push_back(held->second);
        const bool all_have_it = !values.empty() && values.size() == alike.size();
        if (!all_have_it || size_t(std::count(values.begin(), values.end(), values[0])) < values.size()) continue;
        config.settings[s.key] = values[0];
        for (LayerAttention* layer : alike) layer->settings.erase(s.key);
    }
}

}   // namespace

void require_known_settings(const Config& config, const Variants& variants, const std::string& where) {
    if (config.names_variant && !variants.find(config.variant)) return;   // whose settings this program cannot tell
    std::set<std::string> known;
    for (const Setting& s : settings_of(variants.own)) known.insert(s.key);
    for (const Variant* other : variants.others)
        for (const Setting& s : other->settings()) known.insert(s.key);
    for (const auto& [key, value] : config.settings)
        if (!known.count(key))
            fail(Exit::checkpoint, where, ": the key \"", key, "\", which is ", value, ", is not known and not a setting of ",
                 variants.own.name, "; if it changes nothing that the model computes, remove it");
}

void complete_layers(Config& config, const Variants& variants) {
    config.variant = variants.own.name;
    complete_settings(config, settings_of(variants.own));
    for (int l = 0; l < int(config.layers.size()); l++) {
        LayerAttention& layer = config.layers[size_t(l)];
        const Variant* const variant = variants.find(layer.variant);
        if (!variant)
            fail(Exit::checkpoint, "layer ", l, ": unknown attention variant '", layer.variant, "'; this program has: ", variants.names());
        Config whole = config.of_layer(l);
        try {
            complete_settings(whole, settings_of(*variant));
        } catch (const Error& error) {
            fail(error.code, "layer ", l, ": ", error.what());
        }
        layer.settings.clear();
        for (const Setting& s : variant->settings())
            if (variant != &variants.own || whole.setting(s.key) != config.setting(s.key))
                layer.settings[s.key] = whole.setting(s.key);
    }
    share_settings(config, variants.own);
    const auto is_plain = [&](const LayerAttention& layer) { return layer == LayerAttention{config.variant}; };
    if (std::all_of(config.layers.begin(), config.layers.end(), is_plain)) config.layers.clear();
}

std::vector<LayerAttention> layers_of_pattern(const std::string& pattern, int L, const Variants& variants) {
    std::vector<LayerAttention> layers;
    for (const std::string& part : split(pattern, ',')) read_part(part, L, variants, layers);
    const size_t count = layers.size();
    if (count > size_t(L)) fail(Exit::usage, "--layers ", pattern, " has ", count, " layers, but the model has ", L, "; shorten the list");
    while (layers.size() < size_t(L)) layers.push_back(layers[layers.size() - count]);
    require_own(layers, "--layers", pattern, variants.own);
    return layers;
}

std::vector<LayerAttention> layers_beside_dense(const std::string& list, int L, const Variants& variants) {
    std::vector<LayerAttention> layers(size_t(L), LayerAttention{variants.own.name});
    std::vector<bool> is_dense(size_t(L), false);
    for (const std::string& word : split(list, ',')) {
        int l = -1;
        if (!parse_number(word, l) || l < 0 || l >= L)
            fail(Exit::usage, "--dense-layers ", list, ": \"", word, "\" is not a layer of the model; its layers are 0 to ", L - 1);
        if (is_dense[size_t(l)]) fail(Exit::usage, "--dense-layers ", list, ": layer ", l, " is given twice");
        is_dense[size_t(l)] = true;
        layers[size_t(l)].variant = "causal";
    }
    require_own(layers, "--dense-layers", list, variants.own);
    return layers;
}

std::string pattern_of(const LayerAttention& layer, const Variant& variant) {
    std::string all = layer.variant;
    for (const Setting& s : variant.settings())
        if (const auto given = layer.settings.find(s.key); given != layer.settings.end())
            all += text(":%s=%.9g", s.option + 2, given->second);
    return all;
}

std::string pattern_of(const Config& config, const Variants& variants) {
    if (config.layers.empty()) return config.variant;
    const std::vector<LayerAttention>& layers = config.layers;
    std::string all;
    for (size_t l = 0; l < layers.size();) {
        const size_t begin = l;
        while (l < layers.size() && layers[l] == layers[begin]) l++;
        std::string one = pattern_of(layers[begin], *variants.find(layers[begin].variant));
        if (l - begin > 1) one.insert(layers[begin].variant.size(), text(":%zu", l - begin));
        all += (all.empty() ? "" : ",") + one;
    }
    return all;
}
