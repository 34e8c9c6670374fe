// Each attention variant against its reference fixtures (tests/fixtures/README.md): Hugging Face folders with logits, gradient norms
// and twenty training steps that transformers or torch computed in float64, and the same from this engine in float32 as train_gpt.cu
// computes them. A statistic's "gradient" is what it moves by; a policy's own loss is a number beside the loss, and part of what
// gradients are of.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "model/base/disk.h"
#include "model/base/process.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "tests/whole_model.h"

namespace {

/// What float32 may differ from float64 by: of a logit (absolute), and of losses, norms and learning rates (relative). A few times
/// what rounding was seen to do over twenty steps.
constexpr double LOGIT_TOLERANCE = 5e-5, RELATIVE_TOLERANCE = 3e-5;
/// Of a mechanism's own loss over twenty steps: seer's has been off by 3.2e-5, and in float64 it is the reference's to 2e-15.
constexpr double AUXILIARY_TOLERANCE = 1e-4;

struct Fixture {
    std::filesystem::path folder;
    nlohmann::json expected;                           // fixture.json
    int B = 0, T = 0;
    std::vector<int32_t> input_ids, targets, batches;  // (B, T), (B, T), (steps, B, T + 1)
    std::vector<float> logits;                         // (B, T, V)
};

template <class X>
std::vector<X> stored(const SafetensorsFile& file, const std::string& name, const std::string& dtype) {
    const StoredTensor* tensor = file.find(name);
    if (!tensor || tensor->dtype != dtype) fail(Exit::data, file.where(), ": has no ", dtype, " tensor ", name);
    std::vector<X> numbers(tensor->count);
    std::memcpy(numbers.data(), tensor->bytes.data(), tensor->bytes.size());
    return numbers;
}

Fixture load_fixture(const std::filesystem::path& folder) {
    const SafetensorsFile file(folder / "fixture.safetensors");
    Fixture f{folder, nlohmann::json::parse(std::ifstream(folder / "fixture.json")), 0, 0, stored<int32_t>(file, "input_ids", "I32"),
              stored<int32_t>(file, "targets", "I32"), stored<int32_t>(file, "batches", "I32"), stored<float>(file, "logits", "F32")};
    f.B = int(file.find("input_ids")->shape.at(0)), f.T = int(file.find("input_ids")->shape.at(1));
    return f;
}

/// The folders in tests/fixtures whose config.json names the variant, found from where the test program lies (build/tests).
std::vector<std::filesystem::path> fixture_folders(const std::string& variant) {
    std::vector<std::filesystem::path> folders;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(program_folder()) / "../../tests/fixtures"))
        if (exists(entry.path() / "config.json") && load_config(entry.path()).variant == variant) folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
    return folders;
}

/// One row per step: loss before the update, gradient norm before clipping, learning rate, the policy's own loss if it has one.
using Curve = std::vector<std::vector<double>>;
const std::vector<std::string> CURVE_COLUMNS{"loss", "grad_norm", "lr", "auxiliary_loss"};

Curve train_as_the_program_does(Trial<float>& trial, const Fixture& f) {
    const nlohmann::json& training = f.expected["training"];
    const int64_t steps = training["steps"], warmup = training["warmup_steps"];
    const Schedule schedule{Schedule::Form::cosine, training["lr"], training["min_lr_frac"], warmup, 0, steps};
    AdamW adamw{training["lr"], training["beta1"], training["beta2"], training["adam_eps"], training["weight_decay"], training["grad_clip"]};
    const StepTotals& totals = *trial.gpt.totals;
    Curve curve;
    for (int64_t step = 1; step <= steps; step++) {
        const int32_t* row = &f.batches[size_t(step - 1) * f.B * (f.T + 1)];
        for (int b = 0; b < f.B; b++, row += f.T + 1) {
            std::copy_n(row, f.T, &trial.tokens[size_t(b) * f.T]);
            std::copy_n(row + 1, f.T, &trial.targets[size_t(b) * f.T]);
        }
        trial.loss_and_gradients();
        adamw.lr = schedule.rate(step - 1);
        trial.update(adamw, step);
        curve.push_back({totals.loss / (f.B * f.T), std::sqrt(totals.squares), adamw.lr});
        if (trial.gpt.auxiliary) curve.back().push_back(totals.auxiliary / (f.B * f.T));
    }
    return curve;
}

/// "" when a number is the one that `expected` has under `key`, up to the tolerance of norms and losses.
std::string number_difference(double number, const nlohmann::json& expected, const std::string& key) {
    const std::vector<double> actual{number}, wanted{expected.value(key, double(NAN))};
    return difference(actual, wanted, Tolerance{key == "auxiliary_loss" ? AUXILIARY_TOLERANCE : RELATIVE_TOLERANCE, 0});
}

/// "" when the L2 norm of every tensor of a flat buffer is the one that `expected` names, which must name them all.
std::string norm_difference(const TensorList& list, const float* flat, const nlohmann::json& expected) {
    if (expected.size() != list.count()) return "norms of " + std::to_string(expected.size()) + " tensors for " + std::to_string(list.count());
    std::string wrong;
    for (const Tensor& t : list) {
        std::vector<double> norm(1);
        sum_of_squares(CPU{}, norm.data(), flat + t.slot.offset, t.slot.size);
        const std::string text = number_difference(std::sqrt(norm[0]), expected, t.name);
        if (!text.empty()) wrong += t.name + ": " + text + "\n";
    }
    return wrong;
}

/// Everything in the fixture.
void check_fixture(const Variant& variant, const std::filesystem::path& folder) {
    const Threads one(1);   // steps too small for several threads
    const Fixture f = load_fixture(folder);
    Trial<float> trial(Variants(variant, {&on_cpu::causal}), load_config(folder), f.B, f.T, f.B, f.T);
    GPT<CPU, float>& gpt = trial.gpt;
    const TensorList& list = gpt.net.tensors;
    CHECK(load_weights(folder, list, 1, gpt.weights).empty());
    trial.weights_set();
    trial.tokens = f.input_ids, trial.targets = f.targets;

    const int rows = f.B * f.T;
    trial.loss();
    const float* logits = gpt.logits(CPU{}, 0, rows);
    const std::vector<float> all_logits(logits, logits + size_t(rows) * gpt.net.config.V);
    CHECK(difference(all_logits, f.logits, Tolerance{0, LOGIT_TOLERANCE}) == "");

    trial.loss_and_gradients();
    CHECK(number_difference(gpt.totals->loss / rows, f.expected, "loss") == "");
    if (gpt.auxiliary) CHECK(number_difference(gpt.totals->auxiliary / rows, f.expected, "auxiliary_loss") == "");
    gpt.norm(CPU{});   // which completes the gradients
    CHECK(norm_difference(list, gpt.gradients, f.expected["gradient_norms"]) == "");

    const Curve curve = train_as_the_program_does(trial, f);
    const nlohmann::json& expected = f.expected["curve"];
    REQUIRE(curve.size() == expected.size());
    for (size_t k = 0; k < curve.size(); k++) {
        for (size_t column = 0; column < curve[k].size(); column++) {
            INFO("step " << k + 1 << ": " << CURVE_COLUMNS[column]);
            CHECK(number_difference(curve[k][column], expected[k], CURVE_COLUMNS[column]) == "");
        }
    }
    CHECK(norm_difference(list, gpt.master, f.expected["final_weight_norms"]) == "");
}

}   // namespace

VARIANT_CASE(" model: the reference's logits, gradient norms and training curve", "[fixture][variant]") {
    const std::vector<std::filesystem::path> folders = fixture_folders(variant.name);
    const std::string computed = read_text(program_folder() + "/../../scripts/attention_torch/variants.py");   // by PyTorch
    if (computed.find("    '" + std::string(variant.name) + "': ") != std::string::npos) CHECK_FALSE(folders.empty());
    for (const auto& folder : folders) DYNAMIC_SECTION(folder.filename().string()) { check_fixture(variant, folder); }
}
