// The attention of each layer of a hybrid model: the lists of --layers and --dense-layers, and the settings of every layer.
#pragma once
#include <string>
#include <vector>

#include "attention/variant.h"
#include "model/config.h"

/// Precondition: `config` as read by config_from_json() from `where`. Exit::checkpoint, naming the key, for a number that is not a setting
/// of these variants. Skips a checkpoint of an unknown variant, whose settings are unknown too.
void require_known_settings(const Config& config, const Variants& variants, const std::string& where);

/// Fills in the defaults of the model's settings and of every layer's. A setting that all layers of the own variant share becomes the
/// model's; if all layers are alike, config.layers is empty.
/// Exit::usage if a setting is out of range, Exit::checkpoint if a layer's variant is not in `variants`.
void complete_layers(Config& config, const Variants& variants);

/// --layers NAME[:COUNT][:OPTION=VALUE]...,...: the layers from the first on; the list is repeated up to L layers.
/// Exit::usage for a list that is longer than the model, for unknown names and options, and for a list without the own variant.
std::vector<LayerAttention> layers_of_pattern(const std::string& pattern, int L, const Variants& variants);

/// --dense-layers 0,4,8: the listed layers are causal, all others of the own variant.
std::vector<LayerAttention> layers_beside_dense(const std::string& list, int L, const Variants& variants);

/// The layers in the form of --layers, "sinks:2:window=64,causal", without the model's settings; for a uniform model, its variant.
/// Precondition: complete_layers().
std::string pattern_of(const Config& config, const Variants& variants);

/// "sinks:window=64": one layer of pattern_of(), without a count.
std::string pattern_of(const LayerAttention& layer, const Variant& variant);
