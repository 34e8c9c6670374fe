// README.md of a checkpoint: a model card in Hugging Face's form.
#pragma once
#include <cstdint>
#include <string>

#include "model/checkpoint/checkpoint.h"

std::string model_card(const Config& config, const TensorList& list, const float* weights, const TrainerState& state,
                       const RunFacts& facts);
