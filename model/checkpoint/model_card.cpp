// README.md of a checkpoint.
#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>

#include "model/base/hash.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/checkpoint/carried_texts.h"

namespace {

std::string row(const std::string& what, const std::string& value) { return "| " + what + " | " + value + " |\n"; }

std::string loss_text(double loss) { return std::isnan(loss) ? "not measured" : text("%.4f nats per token", loss); }

std::vector<std::string> variants_of(const Config& config) {
    std::vector<std::string> names = {config.variant};
    for (const LayerAttention& layer : config.layers)
        if (std::find(names.begin(), names.end(), layer.variant) == names.end()) names.push_back(layer.variant);
    return names;
}

std::string facts_table(const Config& c, const TensorList& list, const float* weights, const TrainerState& state, const RunFacts& facts) {
    std::string settings;
    for (const auto& [key, value] : c.settings) settings += (settings.empty() ? "" : ", ") + text("%s %g", key.c_str(), value);
    std::string table = "| | |\n| --- | --- |\n";
    table += row("attention", facts.pattern.empty() ? c.variant : facts.pattern);
    if (!settings.empty()) table += row("settings", settings);
    table += row("form", text("%s; %d layers, %d channels, width %d, %d query heads and %d of keys, head size %d, vocabulary %d, %s head",
                              form_in_words(c).c_str(), c.L, c.C, c.F, c.NH, c.NKV, c.HS, c.V, c.tied ? "tied" : "untied"));
    table += row("parameters", std::to_string(list.parameters()));
    table += row("trained", text("%lld steps, %lld tokens", static_cast<long long>(state.step), static_cast<long long>(state.tokens)));
    if (!facts.train_data.empty()) table += row("training data", facts.train_data);
    if (!facts.val_data.empty()) table += row("validation data", facts.val_data);
    table += row("loss of the last step", loss_text(state.last_loss));
    table += row("validation loss", loss_text(state.last_val_loss));
    table += row("weights hash", hexadecimal(weights_hash(list, weights)));
    table += row("seed", std::to_string(state.seed));
    table += row("made by commit", std::string(source_commit()) + (source_is_dirty() ? "-dirty" : ""));
    return table + "\nA validation loss is the last one that was measured up to this step. All options are in trainer_state.json.\n";
}

std::string mechanism(const Config& config) {
    std::string all;
    for (const std::string& name : variants_of(config))
        for (const CarriedText& description : descriptions_of_variants())
            if (name == description.name)
                all += "\n`" + name + "`, as attention/" + name + ".cuh describes it:\n\n```\n" + description.text + "```\n";
    return all;
}

std::string how_to_load(const Config& config) {
    const bool plain = transformers_computes(config);
    const std::string trust = plain ? "" : ", trust_remote_code=True";
    std::string all = "FOLDER is the path of this folder.\n\n    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
                      "    model = AutoModelForCausalLM.from_pretrained(FOLDER" + trust + ")\n";
    if (!config.tokenizer.empty())
        all += "    tokenizer = AutoTokenizer.from_pretrained(FOLDER" + trust + ")\n"
               "    text = tokenizer(\"We the people\", return_tensors=\"pt\").input_ids\n"
               "    print(tokenizer.decode(model.generate(text, max_new_tokens=50)[0]))\n";
    all += plain ? "\ntransformers computes this model itself.\n"
                 : "\ntransformers does not know this attention: it is computed by the *.py files in this folder, plain PyTorch with dense "
                   "matrices and\nwithout a cache of keys and values. Without `trust_remote_code` transformers refuses the folder. "
                   "The files need transformers\n4.46 or newer.\n";
    all += "\n    lm_eval --model hf --model_args pretrained=FOLDER,dtype=float32" + std::string(plain ? "" : ",trust_remote_code=True") +
           " --tasks hellaswag\n    ./generate --checkpoint FOLDER --prompt \"...\" --tokens 100\n";
    return all;
}

}   // namespace

std::string model_card(const Config& config, const TensorList& list, const float* weights, const TrainerState& state,
                       const RunFacts& facts) {
    return "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- sparse-attention\n- " + config.variant +
           "\n---\n\n# " + config.variant + ", " + std::to_string(list.parameters()) + " parameters, step " +
           std::to_string(state.step) + "\n\n" +
           facts_table(config, list, weights, state, facts) + "\n## Attention\n" + mechanism(config) + "\n## How to load\n\n" +
           how_to_load(config);
}
