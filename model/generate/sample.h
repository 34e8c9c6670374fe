// Text from a model that is being trained.
#pragma once
#include <cstdint>
#include <vector>

#include "model/generate/sampler.h"
#include "model/gpt.h"

/// Appends `count` tokens to `ids`, which is not empty, by decode (decode.cuh) in memory of its own (sample_bytes()). Documents are not
/// kept apart: text after an end-of-text token sees the text before it.
template <class Device, class X>
void sample_text(Device device, GPT<Device, X>& gpt, std::vector<int32_t>& ids, int count, const Sampling& how);

/// Bytes on the device for a text of gpt.T tokens.
template <class Device, class X>
size_t sample_bytes(Device device, GPT<Device, X>& gpt);
