#include "model/run/inference_options.h"

#include "model/base/command_line.h"
#include "model/base/error.h"

void add_inference_options(CLI::App& app, InferenceOptions& o) {
    Inference& how = o.how;
    app.add_option("--attention", o.attention,
                   "attention mechanism: trained, the checkpoint's own; for causal checkpoints also psa, in which each new token reads "
                   "cached keys block by block until it has --psa-eps of the attention mass, and adaspa, in which the prompt reads only "
                   "the blocks with most of the mass (NOT CAUSAL: earlier rows depend on later ones)")
        ->check(CLI::IsMember({"trained", "psa", "adaspa"}));
    auto* eps = app.add_option("--psa-eps", how.psa.eps, "share of the attention mass to retain (psa)")->check(number_from(0, 1));
    auto* keys = app.add_option("--psa-block", how.psa.block, "keys per block (psa)")->transform(whole_number_from(1, 65536));
    auto* bound = app.add_option("--psa-bound", o.psa_bound,
                                 "estimate of a block's mass (psa): mean, from its mean key, may stop early; upper, an upper bound, is "
                                 "certified")
                      ->check(CLI::IsMember({"mean", "upper"}));
    auto* sparsity = app.add_option("--adaspa-sparsity", how.adaspa.sparsity, "share of the prompt's blocks to leave out (adaspa)")
                         ->check(number_from(0, 0.999));
    auto* block = app.add_option("--adaspa-block", how.adaspa.block, "tokens per block, a multiple of 64 (adaspa)")
                      ->transform(whole_number_from(64, 65536));
    app.callback([=, &o] {
        o.how.attention = o.attention == "psa"      ? InferenceAttention::psa
                          : o.attention == "adaspa" ? InferenceAttention::adaspa
                                                    : InferenceAttention::trained;
        o.how.psa.bound = o.psa_bound == "upper" ? PsaBound::upper : PsaBound::mean;
        auto only_for = [&](const char* name, const CLI::Option* option) {
            if (option->count() && option->as<std::string>() != option->get_default_str() && o.attention != name)
                fail(Exit::usage, option->get_name(), " requires --attention ", name);
        };
        for (const CLI::Option* option : {eps, keys, bound}) only_for("psa", option);
        for (const CLI::Option* option : {sparsity, block}) only_for("adaspa", option);
        if (o.how.adaspa.block % 64)
            fail(Exit::usage, "--adaspa-block must be a multiple of 64 from 64 to 65536, not ", o.how.adaspa.block);
    });
}
