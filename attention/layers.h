// Which layer of a hybrid has which attention: the lists of --layers and --dense-layers, and the settings of every layer.
#pragma once
#include <string>
#include <vector>

#include "attention/variant.h"
#include "model/config.h"

/// Precondition: `config` as config_from_json() has read it from `where`. Exit::checkpoint, naming the key, for a number in it that is no
/// setting of these variants; a checkpoint of another variant has that one's.
void require_known_settings(const Config& config, const Variants& variants, const std::string& where);

/// Fills in the defaults of the model's settings and of every layer's. What all layers of the own variant have in common becomes the
/// model's, and where all layers turn out to be alike, config.layers is empty.
/// Exit::usage if a setting is out of range, Exit::checkpoint if a layer's variant is none of these.
void complete_layers(Config& config, const Variants& variants);

/// --layers NAME[:COUNT][:OPTION=VALUE]...,...: the layers from the first on, begun again after the last until there are L.
/// Exit::usage for a list that is longer than the model, names and options that are not there, and one without the own variant.
std::vector<LayerAttention> layers_of_pattern(const std::string& pattern, int L, const Variants& variants);

/// --dense-layers 0,4,8: these are causal, the others of the own variant.
std::vector<LayerAttention> layers_beside_dense(const std::string& list, int L, const Variants& variants);

/// The layers in the form of --layers, "sinks:2:window=64,causal", without settings that are the model's; of a uniform model its
/// variant. Precondition: complete_layers().
std::string pattern_of(const Config& config, const Variants& variants);

/// "sinks:window=64": one layer of pattern_of(), without a number of layers.
std::string pattern_of(const LayerAttention& layer, const Variant& variant);
