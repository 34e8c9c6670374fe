// Models of Gemma 3's form: what transformers computes (tests/fixtures/gemma3), gradients, and what every model has to do.
// tests/variant has the fixture in float32, among those of sliding_window.
#include "catch.h"

#include "tests/fixture_curve.h"
#include "tests/gemma.h"
#include "tests/temporary_folder.h"
#include "tests/whole_text.h"

namespace {

namespace fs = std::filesystem;

fs::path gemma_folder() { return fs::path(program_folder()) / "../../tests/fixtures/gemma3"; }

Config small() { return gemma_of(config_of({})); }

template <class X>
Trial<X> trial_of(int B, int T, Recompute recompute = Recompute::nothing) {
    return {gemma_variants(), small(), B, T, B, T, recompute};
}

template <class X>
std::vector<X> tensors_of(const TensorList& list, const X* flat) {
    std::vector<X> numbers;
    for (const Tensor& t : list) numbers.insert(numbers.end(), flat + t.slot.offset, flat + t.slot.offset + t.slot.size);
    return numbers;
}

/// A checkpoint of the trial's weights; the moments are as long, and of no interest.
fs::path save(const TemporaryFolder& folder, const Qwen& net, const std::vector<float>& weights) {
    return save_checkpoint(folder.path(), net.config, net.tensors, weights.data(), weights.data(), weights.data(), {}, nullptr);
}

std::string refusal(const Config& config) {
    try {
        const Qwen net(gemma_variants(), config);
    } catch (const Error& error) {
        return error.code == Exit::usage ? error.what() : "another exit code";
    }
    return "";
}

}   // namespace

TEST_CASE("Gemma: in double, logits, loss and every number of every gradient are those of the reference", "[gemma][fixture]") {
    const Threads one(1);
    const Fixture f = load_fixture(gemma_folder());
    GPT<CPU, double> gpt(gemma_variants(), load_config(gemma_folder()), f.B, f.T, Mode::training);
    BatchFeed<CPU> feed(f.B, f.T, gpt.net.config.V);
    gpt.allocate(CPU{}), feed.allocate(CPU{});
    const SafetensorsFile weights(gemma_folder() / "model.safetensors"), expected(gemma_folder() / "fixture.safetensors");
    for (const Tensor& t : gpt.net.tensors) {
        const std::vector<float> numbers = stored<float>(weights, t.name, "F32");
        for (size_t n = 0; n < t.slot.size; n++) gpt.weights[t.slot.offset + n] = numbers[n] + double(t.less_one);
        CHECK(t.less_one == t.name.ends_with("norm.weight"));
    }
    const Batch batch = feed.put(CPU{}, f.input_ids.data(), f.targets.data(), f.B, f.T);
    gpt_forward(CPU{}, gpt, batch);
    const double* logits = gpt_logits(CPU{}, gpt, 0, f.B * f.T);
    CHECK(difference(std::vector<double>(logits, logits + f.logits.size()), f.logits, {1e-7}) == "");
    gpt_loss(CPU{}, gpt, batch, Write::overwrite, 1.0 / (f.B * f.T));
    CHECK(std::abs(gpt.totals->loss / (f.B * f.T) - f.expected["loss"].get<double>()) < 1e-9);
    gpt_backward(CPU{}, gpt, batch, Write::overwrite);
    for (const Tensor& t : gpt.net.tensors) {
        INFO(t.name);
        const double* const own = gpt.gradients + t.slot.offset;
        CHECK(difference(std::vector<double>(own, own + t.slot.size), stored<float>(expected, "gradient." + t.name, "F32"), {1e-7}) == "");
    }
}

TEST_CASE("Gemma: with recomputed activations the fixture's numbers are the same", "[gemma][fixture]") {
    for (Recompute recompute : {Recompute::cheap, Recompute::layers}) check_fixture(named("sliding_window"), gemma_folder(), recompute);
}

TEST_CASE("Gemma: gradients of every tensor", "[gemma]") {
    for (int T : {1, 13}) {
        Trial<double> trial = trial_of<double>(2, T);
        CHECK(model_gradient_difference(trial) == "");
    }
    Config untied = small();
    untied.tied = false;
    Trial<double> trial(gemma_variants(), untied, 1, 9, 1, 9);
    CHECK(model_gradient_difference(trial, "e") == "");
}

TEST_CASE("Gemma: recomputing activations changes no bit", "[gemma]") {
    Trial<float> keeping = trial_of<float>(2, 67), cheap = trial_of<float>(2, 67, Recompute::cheap),
                 layers = trial_of<float>(2, 67, Recompute::layers);
    for (Trial<float>* recomputing : {&cheap, &layers}) {
        CHECK(keeping.loss_and_gradients() == recomputing->loss_and_gradients());
        CHECK(bit_difference(tensors_of(recomputing->gpt.net.tensors, recomputing->gpt.gradients),
                             tensors_of(keeping.gpt.net.tensors, keeping.gpt.gradients)) == "");
    }
}

TEST_CASE("Gemma: every row of a text that is written is that of a whole pass", "[gemma][decode]") {
    check_whole_text<double>(gemma_variants(), small(), 3, 100, 1e-10);
    check_whole_text<float>(gemma_variants(), small(), 70, 90, 1e-5);
}

TEST_CASE("Gemma: parts of the optimiser's work make the whole update, bit for bit", "[gemma]") {
    const Threads one(1);
    Trial<float> whole = trial_of<float>(2, 13), first(gemma_variants(), small(), 2, 13, 2, 13, Recompute::nothing, 0, 2, Mode::training, 500),
                 second(gemma_variants(), small(), 2, 13, 2, 13, Recompute::nothing, 1, 2, Mode::training, 500);
    for (int step = 1; step <= 2; step++) {
        whole.loss_and_gradients(), whole.update({}, step);
        for (Trial<float>* shard : {&first, &second}) shard->loss_and_gradients();
        update_shards<float>({&first, &second}, {}, step);
        CHECK(bit_difference(second.all(second.gpt.weights), whole.all(whole.gpt.weights)) == "");
    }
}

TEST_CASE("Gemma: a checkpoint has norms less 1, and comes back to the bit", "[gemma][checkpoint]") {
    TemporaryFolder folder;
    Trial<float> trial = trial_of<float>(1, 5);
    const Qwen& net = trial.gpt.net;
    std::vector<float> weights = trial.all(trial.gpt.weights), back(weights.size());
    const Tensor& norm = *net.tensors.find("model.layers.1.pre_feedforward_layernorm.weight");
    const float near_zero = 0.3f * 0.3f * 0.3f;   // less 1 it has fewer bits
    weights[norm.slot.offset] = near_zero;
    REQUIRE(float(less_one(near_zero)) + 1 != near_zero);
    const fs::path path = save(folder, net, weights);
    const SafetensorsFile file(path / "model.safetensors");
    CHECK(stored<float>(file, norm.name, "F32")[0] == near_zero - 1);
    CHECK(stored<float>(file, "model.embed_tokens.weight", "F32") == trial.of(weights.data(), *net.tensors.find("model.embed_tokens.weight")));
    CHECK(load_weights(path, net.tensors, 1, back.data()).initialised.empty());
    CHECK(bit_difference(back, weights) == "");
    std::vector<float> moment(weights.size());
    load_state(path, net.tensors, moment.data(), nullptr);
    CHECK(bit_difference(moment, weights) == "");
    CHECK(config_to_json(load_config(path)) == config_to_json(net.config));
    const auto generation = [](const fs::path& path) {
        std::ifstream file(path / "generation_config.json");
        return nlohmann::json::parse(file);
    };
    CHECK_FALSE((generation(path).contains("eos_token_id") || generation(path).contains("bos_token_id")));
    Qwen ending(gemma_variants(), net.config);
    ending.config.listed_ends = {1, 6}, ending.config.gemma->begin_of_text = 2;
    const nlohmann::json written = generation(save(folder, ending, weights));
    CHECK((written["eos_token_id"] == nlohmann::json{1, 6} && written["bos_token_id"] == 2));

    fs::remove(path / "manifest.json"), fs::remove(path / "optimizer.safetensors");   // somebody else's folder
    load_weights(path, net.tensors, 1, back.data());
    CHECK((back[norm.slot.offset] != near_zero && std::abs(back[norm.slot.offset] - near_zero) < 1e-7));
}

TEST_CASE("Gemma: numbers that model.safetensors has no more are not taken from beside it", "[gemma][checkpoint]") {
    TemporaryFolder folder, other;
    Trial<float> trial = trial_of<float>(1, 5);
    const Qwen& net = trial.gpt.net;
    std::vector<float> weights = trial.all(trial.gpt.weights), back(weights.size());
    const fs::path path = save(folder, net, weights);
    weights[net.final_norm.offset] += 0.5f;
    fs::copy_file(save(other, net, weights) / "model.safetensors", path / "model.safetensors", fs::copy_options::overwrite_existing);
    fs::remove(path / "manifest.json");
    load_weights(path, net.tensors, 1, back.data());
    CHECK(back[net.final_norm.offset] == weights[net.final_norm.offset]);
    CHECK(bit_difference(back, weights) == "");
}

TEST_CASE("Gemma: a tokenizer of its own kind is no reason to refuse the model", "[gemma][checkpoint]") {
    TemporaryFolder folder;
    fs::copy(gemma_folder(), folder.path(), fs::copy_options::recursive);
    std::ofstream(folder / "tokenizer.json") << R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
        "pre_tokenizer": null, "model": {"type": "BPE", "byte_fallback": true, "vocab": {}, "merges": []}, "added_tokens": []})";
    const Config config = load_config(folder.path());
    CHECK(config.tokenizer.empty());
    CHECK(config.why_no_tokenizer.find("tokenizer.json") != std::string::npos);
    CHECK(load_config(gemma_folder()).why_no_tokenizer.empty());
}

TEST_CASE("Gemma: other attention and reparametrised layers are refused", "[gemma]") {
    CHECK(refusal(small()).empty());
    Config config = small();
    config.layers[0].settings = {{"attention_window", 4}};
    CHECK(refusal(config).find("sliding_window:window=4,causal,sliding_window") != std::string::npos);
    config = small();
    config.settings["sigma_reparam"] = 1;
    CHECK(refusal(config).find("no sigma_reparam") != std::string::npos);
}
