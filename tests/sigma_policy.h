// A policy made for the tests: causal attention in a model whose linear layers are reparametrised.
#pragma once
#include "attention/kernel/layer.h"

struct Reparametrised : Policy {
    static constexpr const char* name = "reparametrised";
    bool frozen;   // the feed-forward layers

    Reparametrised(const Config& config, int layer) : Policy(config, layer), frozen(config.setting("frozen_mlp") != 0) {}

    static std::vector<Setting> settings() {
        return {{"--sigma-reparam", "sigma_reparam", 1, 0, 1, WHOLE, "linear layers by their spectral norm"},
                {"--frozen-mlp", "frozen_mlp", 0, 0, 1, WHOLE, "feed-forward layers stay"}};
    }
    bool trains(const std::string& tensor) const { return !frozen || tensor.find(".mlp.") == std::string::npos; }
};
