// Text from a model that is being trained.
#pragma once
#include <cstdint>
#include <vector>

#include "model/generate/sampler.h"
#include "model/gpt.h"

/// Appends `count` tokens to `ids`, which is not empty, each from a pass over the token before it (decode.cuh), in memory of its own:
/// sample_bytes(). Documents are not kept apart: text behind an end-of-text sees what is before it.
template <class Device, class X>
void sample_text(Device device, GPT<Device, X>& gpt, std::vector<int32_t>& ids, int count, const Sampling& how);

/// On the device, for a text of gpt.T tokens.
template <class Device, class X>
size_t sample_bytes(Device device, GPT<Device, X>& gpt);
