// Each attention variant against its reference fixtures (tests/fixtures/README.md): Hugging Face folders with logits, gradient norms
// and twenty training steps that transformers or torch computed in float64, and the same from this engine in float32 as train_gpt.cu
// computes them. A statistic's "gradient" is what it moves by; a policy's own loss is a number beside the loss, and part of what
// gradients are of.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/base/disk.h"
#include "model/base/process.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"
#include "tests/check.h"
#include "tests/threads.h"
#include "tests/variants.h"

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

Curve train_as_the_program_does(GPT<CPU, float>& gpt, BatchFeed<CPU>& feed, const Fixture& f) {
    const nlohmann::json& training = f.expected["training"];
    const int64_t steps = training["steps"], warmup = training["warmup_steps"];
    const Schedule schedule{Schedule::Form::cosine, training["lr"], training["min_lr_frac"], warmup, 0, steps};
    AdamW adamw{training["lr"], training["beta1"], training["beta2"], training["adam_eps"], training["weight_decay"], training["grad_clip"]};
    std::vector<int32_t> inputs(f.input_ids.size()), targets(inputs.size());
    Curve curve;
    for (int64_t step = 1; step <= steps; step++) {
        const int32_t* row = &f.batches[size_t(step - 1) * f.B * (f.T + 1)];
        for (int b = 0; b < f.B; b++, row += f.T + 1) {
            std::copy_n(row, f.T, &inputs[size_t(b) * f.T]);
            std::copy_n(row + 1, f.T, &targets[size_t(b) * f.T]);
        }
        const Batch batch = feed.put(CPU{}, inputs.data(), targets.data(), f.B, f.T);
        gpt_forward(CPU{}, gpt, batch);
        gpt_loss(CPU{}, gpt, batch, Write::overwrite, float(1.0 / (f.B * f.T)));
        gpt_backward(CPU{}, gpt, batch, Write::overwrite);
        gpt_norm(CPU{}, gpt);
        adamw.lr = schedule.rate(step - 1);
        gpt_update(CPU{}, gpt, adamw, step);
        curve.push_back({gpt.totals->loss / (f.B * f.T), std::sqrt(gpt.totals->squares), adamw.lr});
        if (gpt.auxiliary) curve.back().push_back(gpt.totals->auxiliary / (f.B * f.T));
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

/// Everything that the fixture knows.
void check_fixture(const Variant& variant, const std::filesystem::path& folder) {
    const Threads one(1);   // steps too small for several threads
    const Fixture f = load_fixture(folder);
    GPT<CPU, float> gpt({variant, {&on_cpu::causal}}, load_config(folder), f.B, f.T, Mode::training);
    gpt.allocate(CPU{});
    BatchFeed<CPU> feed(f.B, f.T, gpt.net.config.V);
    feed.allocate(CPU{});
    const TensorList& list = gpt.net.tensors;
    CHECK(load_weights(folder, list, 1, gpt.weights).empty());
    if (gpt.keeps_master()) std::copy_n(gpt.weights, list.size(), gpt.master);   // otherwise they are the same memory
    gpt_weights_loaded(CPU{}, gpt);

    const int rows = f.B * f.T;
    const Batch batch = feed.put(CPU{}, f.input_ids.data(), f.targets.data(), f.B, f.T);
    gpt_forward(CPU{}, gpt, batch);
    const float* logits = gpt_logits(CPU{}, gpt, 0, rows);
    const std::vector<float> all_logits(logits, logits + size_t(rows) * gpt.net.config.V);
    CHECK(difference(all_logits, f.logits, Tolerance{0, LOGIT_TOLERANCE}) == "");

    gpt_loss(CPU{}, gpt, batch, Write::overwrite, 1.0f / float(rows));
    CHECK(number_difference(gpt.totals->loss / rows, f.expected, "loss") == "");
    if (gpt.auxiliary) CHECK(number_difference(gpt.totals->auxiliary / rows, f.expected, "auxiliary_loss") == "");
    gpt_backward(CPU{}, gpt, batch, Write::overwrite);
    gpt_norm(CPU{}, gpt);   // which completes the gradients
    CHECK(norm_difference(list, gpt.gradients, f.expected["gradient_norms"]) == "");

    const Curve curve = train_as_the_program_does(gpt, feed, f);
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
