// The options of the inference-only mechanisms (psa, adaspa), shared by ./generate and the trainers' --evaluate.
#pragma once
#include <string>

#include "attention/inference/options.h"

namespace CLI {
class App;
}

struct InferenceOptions {
    std::string attention = "trained", psa_bound = "mean";   // as given
    Inference how;
};

/// Adds --attention and the options of psa and adaspa, in the default group of `app`; `o` is complete after parsing. Takes the app's
/// callback: Exit::usage for an option of a mechanism that is not selected, unless it has its default value, as in a file for --config.
void add_inference_options(CLI::App& app, InferenceOptions& o);
