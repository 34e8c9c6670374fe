// ./generate works for every variant: model/generate_variant.cu is compiled once per file of attention/, and each copy enters
// its generator here before main() starts.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attention/inference/options.h"
#include "model/config.h"
#include "model/sampler.h"

struct Generator {
    std::vector<Setting> (*settings)();   // of the variant

    /// Appends `count` tokens to `ids` with the weights of the checkpoint `folder`.
    void (*generate)(const std::string& folder, const Config& config, std::vector<int32_t>& ids, int count,
                     const Sampling& sampling, const Inference& inference);
};

/// By the variant's name.
inline std::map<std::string, Generator>& generators() {
    static std::map<std::string, Generator> all;
    return all;
}
