// Loading weights for inference.
#pragma once
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/gpt.h"

/// Loads all of gpt's weights from a checkpoint or another folder. Exit::checkpoint if a tensor is missing: a random one would look like a
/// bad model in scores and text.
template <class Device, class X>
void load_for_inference(Device device, GPT<Device, X>& gpt, const std::string& folder) {
    constexpr bool in_place = std::is_same_v<Device, CPU> && std::is_same_v<X, float>;
    std::vector<float> whole(in_place ? 0 : gpt.net.tensors.size());
    float* const loaded = in_place ? reinterpret_cast<float*>(gpt.weights) : whole.data();
    const std::vector<std::string> absent = load_weights(folder, gpt.net.tensors, 1, loaded, gpt.bf16_matrices);
    if (!absent.empty())
        fail(Exit::checkpoint, folder, ": lacks ", absent.size(), " tensors of ", gpt.net.variant.name, ", the first is ", absent.front());
    if constexpr (!in_place) {
        std::vector<X> rounded(whole.size());
        std::transform(whole.begin(), whole.end(), rounded.begin(), [](float w) { return narrowed<X>(w); });
        to_device(device, gpt.weights, rounded.data(), rounded.size());
    }
    gpt.weights_loaded(device);
}
