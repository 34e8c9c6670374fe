// Models whose linear layers are reparametrised, and a policy made for the tests: causal attention beside layers that may be frozen.
#pragma once
#include "attention/kernel/layer.h"

inline Config reparametrised(Config config) {
    config.settings["sigma_reparam"] = 1;
    return config;
}

struct FreezesMlp : Policy {
    static constexpr const char* name = "freezes mlp";
    bool frozen;   // the feed-forward layers

    FreezesMlp(const Config& config, int layer) : Policy(config, layer), frozen(config.setting("frozen_mlp") != 0) {}
    template <class X>
    void naive(const LayerInputs<X>&, const X*, X*) const {}

    static std::vector<Setting> settings() {
        return {{"--frozen-mlp", "frozen_mlp", 0, 0, 1, WHOLE, "feed-forward layers stay"}};
    }
    bool trains(const std::string& tensor) const { return !frozen || tensor.find(".mlp.") == std::string::npos; }
};
