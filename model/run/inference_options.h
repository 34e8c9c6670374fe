// The options of the mechanisms for inference only, the same in ./generate and in the trainers' --evaluate.
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

/// Adds --attention and what belongs to it; `o` is complete when `app` has parsed. Takes the app's callback, which reports an
/// option of a mechanism that is not selected (Exit::usage), unless it has its default value, as in a file for --config.
void add_inference_options(CLI::App& app, InferenceOptions& o);
