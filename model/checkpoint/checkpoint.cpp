// Loading: config.json, weights of any Hugging Face Qwen folder, and our own trainer state.
#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <set>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/checkpoint/safetensors.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Index of the first NaN or infinity, or n.
template <class X>
size_t first_not_finite(const X* x, size_t n) {
    size_t first = n;
    #pragma omp parallel for schedule(static) reduction(min : first)
    for (size_t i = 0; i < n; i++)
        if (!std::isfinite(float(x[i]))) first = std::min(first, i);
    return first;
}

/// Copies one stored tensor into its slot of the flat buffer.
template <class X>
void load_tensor(const StoredTensor& stored, const Tensor& tensor, const std::string& where, X* flat) {
    if (stored.shape != tensor.shape)
        fail(Exit::checkpoint, where, ": tensor \"", stored.name, "\" has the shape ", shape_text(stored.shape), ", the model needs ",
             shape_text(tensor.shape));
    X* out = flat + tensor.slot.offset;
    if constexpr (std::is_same_v<X, float>) convert_to_float(stored, out, where);
    else convert_to_bf16(stored, out, where);
    const size_t bad = first_not_finite(out, tensor.slot.size);
    if (bad < tensor.slot.size)
        fail(Exit::checkpoint, where, ": tensor \"", stored.name, "\" holds ", float(out[bad]), " at index ", bad,
             std::is_same_v<X, float> ? "" : " when rounded to bf16", ", expected finite numbers");
}

/// Redundant tensors that some folders contain: a copy of the tied embedding, and RoPE's table.
bool is_redundant(const std::string& name, const TensorList& list) {
    const bool tied_head = name == "lm_head.weight" && !list.find("lm_head.weight");
    return tied_head || name.ends_with(".rotary_emb.inv_freq");
}

/// The files that model.safetensors.index.json names, and the tensors it lists in each.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
    const json object = parse_json_object(read_text(path), path.string());
    const std::string where = path.string();
    const json& map = required_field(object, "weight_map", where);
    if (!map.is_object()) fail(Exit::checkpoint, path.string(), ": \"weight_map\" is ", shown(map), ", expected an object");
    std::map<std::string, std::vector<std::string>> parts;
    for (const auto& [tensor, file] : map.items()) {
        const std::string name = file.is_string() ? file.get<std::string>() : "";
        const bool plain = name.ends_with(".safetensors") && name.find('/') == std::string::npos;
        if (!plain)
            fail(Exit::checkpoint, path.string(), ": tensor \"", tensor, "\" is said to be in ", shown(file),
                 ", expected the name of a .safetensors file in the same folder");
        parts[name].push_back(tensor);
    }
    return parts;
}

/// Whether a file's name is one of weights in another form or under another name, and not of what a trainer keeps beside them.
bool may_be_weights(const std::string& name) {
    for (const char* start : {"optimizer", "scheduler", "scaler", "rng_state"})
        if (name.starts_with(start)) return false;
    for (const char* ending : {".safetensors", ".pt", ".pth", ".gguf"})
        if (name.ends_with(ending)) return true;
    return name.starts_with("pytorch_model");
}

/// The name of such a file; "" if there is none.
std::string other_weights(const fs::path& folder) {
    std::set<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
        if (const std::string name = entry->path().filename().string(); may_be_weights(name)) names.insert(name);
    return names.empty() ? "" : *names.begin();
}

std::deque<SafetensorsFile> open_weights(const fs::path& folder) {
    std::deque<SafetensorsFile> files;
    const fs::path whole = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
    if (path_exists(whole)) {
        files.emplace_back(whole);
    } else if (path_exists(index)) {
        for (const auto& [name, promised] : read_index(index)) {
            const SafetensorsFile& part = files.emplace_back(folder / name);
            for (const std::string& tensor : promised)
                if (!part.find(tensor))
                    fail(Exit::checkpoint, index.string(), ": tensor \"", tensor, "\" should be in ", name, ", which lacks it");
        }
    } else if (const std::string other = other_weights(folder); !other.empty()) {
        fail(Exit::checkpoint, folder.string(), ": has no model.safetensors, but ", other, "; convert that to it "
             "(transformers: model.save_pretrained(folder)), or give a folder with config.json alone to start from scratch");
    }
    return files;
}

double number_or_nan(const json& object, const char* key, const std::string& where) {
    if (!has_field(object, key)) return std::numeric_limits<double>::quiet_NaN();
    return number_field(object, key, std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max(), where);
}

/// Loads one moment; every tensor of the list must be present.
void load_moment(const SafetensorsFile& file, const char* prefix, const TensorList& list, float* flat) {
    std::fill(flat, flat + list.size(), 0.0f);
    for (const Tensor& tensor : list) {
        const StoredTensor* stored = file.find(prefix + tensor.name);
        if (!stored) fail(Exit::checkpoint, file.where(), ": tensor \"", prefix, tensor.name, "\" is missing");
        load_tensor(*stored, tensor, file.where(), flat);
        file.release(*stored);
    }
}

}   // namespace

bool has_weights(const fs::path& folder) { return !open_weights(folder).empty(); }

Config load_config(const fs::path& folder) {
    const fs::path path = folder / "config.json", tokenizer = folder / "tokenizer.json";
    require_no_run(folder);
    Config config = config_from_json(read_text(path), path.string());
    if (config.tokenizer == "bytes") return config;
    verify_file(folder, tokenizer.filename());
    config.tokenizer = path_exists(tokenizer) ? tokenizer.string() : "";
    return config;
}

LoadReport load_weights(const fs::path& folder, const TensorList& list, uint64_t seed, float* weights, StoredBf16* matrices) {
    const std::deque<SafetensorsFile> files = open_weights(folder);
    for (const SafetensorsFile& file : files) verify_file(folder, fs::path(file.where()).filename());
    if (files.empty()) verify_file(folder, "model.safetensors");   // of our own, it has to be there
    std::fill(weights, weights + list.size(), 0.0f);   // padding included
    std::set<std::string> loaded;
    for (const SafetensorsFile& file : files) {
        for (const StoredTensor& stored : file.tensors()) {
            if (is_redundant(stored.name, list)) continue;
            const Tensor* tensor = list.find(stored.name);
            if (!tensor) fail(Exit::checkpoint, file.where(), ": the model has no tensor \"", stored.name, "\"");
            if (!loaded.insert(stored.name).second)
                fail(Exit::checkpoint, file.where(), ": tensor \"", stored.name, "\" is in another part too");
            if (tensor->stored == Stored::as_bf16) load_tensor(stored, *tensor, file.where(), matrices);
            else load_tensor(stored, *tensor, file.where(), weights);
            file.release(stored);
        }
    }
    LoadReport report;
    for (const Tensor& tensor : list) {
        if (loaded.count(tensor.name)) continue;
        if (tensor.stored == Stored::as_bf16) initialise(tensor, seed, matrices);
        else initialise(tensor, seed, weights);
        report.initialised.push_back(tensor.name);
    }
    return report;
}

/// Loads trainer_state.json only.
static TrainerState load_trainer_state(const fs::path& folder) {
    const fs::path path = folder / "trainer_state.json";
    const std::string where = path.string();
    const json object = parse_json_object(read_text(path), where);
    TrainerState state;
    state.step = integer_field(object, "step", 0, INT64_MAX, where);
    state.tokens = integer_field(object, "tokens", 0, INT64_MAX, where);
    const json& seed = required_field(object, "seed", where);
    if (!seed.is_number_unsigned()) fail(Exit::checkpoint, where, ": \"seed\" is ", shown(seed), ", expected a whole number from 0");
    state.seed = seed.get<uint64_t>();
    state.data_rows = integer_field(object, "data_rows", 0, INT64_MAX, where);
    if (has_field(object, "train_data")) state.train_data = string_field(object, "train_data", where);
    state.options_json = string_field(object, "options", where);
    state.last_loss = number_or_nan(object, "last_loss", where);
    state.last_val_loss = number_or_nan(object, "last_val_loss", where);
    return state;
}

TrainerState load_state(const fs::path& folder, const TensorList& list, float* exp_avg, float* exp_avg_sq) {
    const SafetensorsFile file(folder / "optimizer.safetensors");
    for (const StoredTensor& stored : file.tensors()) {
        const std::string name = stored.name.substr(stored.name.find('.') + 1);
        const bool known = list.find(name) && (stored.name == "exp_avg." + name || stored.name == "exp_avg_sq." + name);
        if (!known) fail(Exit::checkpoint, file.where(), ": the model's optimiser has no tensor \"", stored.name, "\"");
    }
    if (exp_avg) load_moment(file, "exp_avg.", list, exp_avg);
    if (exp_avg_sq) load_moment(file, "exp_avg_sq.", list, exp_avg_sq);
    return load_trainer_state(folder);
}
