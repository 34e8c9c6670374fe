#include "model/base/error.h"
#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace {

std::string kind_of_number(const Setting& s) {
    if (s.step == REAL) return "a number";
    return s.step == WHOLE ? "a whole number" : "a multiple of " + std::to_string(s.step);
}

void keep_only(std::map<std::string, double>& held, const std::vector<Setting>& settings) {
    std::erase_if(held, [&](const auto& entry) {
        return std::none_of(settings.begin(), settings.end(), [&](const Setting& s) { return s.key == entry.first; });
    });
}

bool is_step(const Setting& s, double value) { return s.step == REAL || std::fmod(value, s.step) == 0; }

}   // namespace

const std::vector<Setting>& model_settings() {
    static const std::vector<Setting> settings = {
        {"--sigma-reparam", "sigma_reparam", 0, 0, 1, WHOLE,
         "sigma reparametrisation, linear layers divided by their spectral norms: 1 on, 0 off"},
    };
    return settings;
}

Config Config::of_layer(int l) const {
    Config view = *this;
    view.layers.clear();
    if (layers.empty()) return view;
    const LayerAttention& layer = layers[size_t(l)];
    if (layer.variant != variant) keep_only(view.settings, model_settings());
    view.variant = layer.variant;
    for (const auto& [key, value] : layer.settings) view.settings[key] = value;
    return view;
}

void complete_settings(Config& config, const std::vector<Setting>& settings) {
    keep_only(config.settings, settings);
    for (const Setting& s : settings) {
        const double value = config.settings.emplace(s.key, s.value).first->second;
        if (!(value >= s.lowest && value <= s.highest && is_step(s, value)))
            fail(Exit::usage, s.option, " (", s.key, ") is ", value, ", but must be ", kind_of_number(s), " from ", s.lowest,
                 " to ", s.highest);
    }
}

void require_within_sequence(const std::vector<Setting>& settings, const std::map<std::string, double>& given, const Config& config,
                             int T) {
    for (const Setting& s : settings) {
        const auto value = given.find(s.key);
        if (!s.of_sequence || value == given.end()) continue;
        const int part = s.part_key ? int(config.setting(s.part_key)) : s.part, parts = (T + part - 1) / part;
        const int64_t most = int64_t(s.sides) * parts / std::max(s.step, 1) * std::max(s.step, 1);
        if (value->second <= most) continue;
        const std::string blocks = part > 1 ? " (blocks of " + std::to_string(part) + ": " + std::to_string(parts) + ")" : "";
        if (s.lowest > most)
            fail(Exit::usage, s.option, " must be at least ", s.lowest, ", which is more than --seq-len ", T, " allows", blocks,
                 "; raise --seq-len");
        fail(Exit::usage, s.option, " is ", value->second, ", but with --seq-len ", T, blocks, " must be ",
             kind_of_number(s), " from ", s.lowest, " to ", most);
    }
}
