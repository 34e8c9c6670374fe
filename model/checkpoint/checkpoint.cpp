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
#include "model/generation_config.h"

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

struct FoundTensor {
    const SafetensorsFile* file;
    const StoredTensor* stored;
};
using Stock = std::map<std::string, FoundTensor>;   // what a folder's files hold, by name

Stock take_stock(const std::deque<SafetensorsFile>& files) {
    Stock stock;
    for (const SafetensorsFile& file : files)
        for (const StoredTensor& stored : file.tensors())
            if (!stock.emplace(stored.name, FoundTensor{&file, &stored}).second)
                fail(Exit::checkpoint, file.where(), ": tensor \"", stored.name, "\" is in another part too");
    return stock;
}

std::vector<float> numbers_of(const FoundTensor& found) {
    std::vector<float> numbers(found.stored->count);
    convert_to_float(*found.stored, numbers.data(), found.file->where());
    return numbers;
}

bool same_numbers(const FoundTensor& a, const FoundTensor& b) {
    return a.stored->shape == b.stored->shape && numbers_of(a) == numbers_of(b);
}

/// Settles the head of a tied model, which has no tensor of its own here: stored alone it is the embedding, beside the embedding a copy.
/// If the two differ, the model is untied, as in transformers 5 for any config.json.
void settle_tied_head(Stock& stock, const TensorList& list) {
    const char *const head_name = "lm_head.weight", *const embedding_name = "model.embed_tokens.weight";
    const auto head = stock.find(head_name);
    if (head == stock.end() || list.find(head_name)) return;
    const FoundTensor found = head->second;
    stock.erase(head);
    const auto [embedding, alone] = stock.emplace(embedding_name, found);
    if (!alone && !same_numbers(embedding->second, found))
        fail(Exit::checkpoint, found.file->where(), ": \"", head_name, "\" holds other numbers than \"", embedding_name, "\", but \"",
             "tie_word_embeddings\" of config.json is true; set it to false there if both count, or remove the one that does not");
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
            fail(Exit::checkpoint, path.string(), ": tensor \"", tensor, "\" is assigned to ", shown(file),
                 ", expected the name of a .safetensors file in the same folder");
        parts[name].push_back(tensor);
    }
    return parts;
}

/// Whether a file or folder of this name holds no weights: hidden, text, code, a picture, a tokenizer. An index names files of weights.
bool holds_no_weights(const std::string& name) {
    if (name.ends_with(".index.json")) return false;
    for (const char* start : {".", "LICENSE", "LICENCE", "NOTICE", "README", "merges.", "vocab."})
        if (name.starts_with(start)) return !name.ends_with(".bin") && !name.ends_with(".safetensors");
    for (const char* ending : {".json", ".jsonl", ".md", ".txt", ".py", ".pyc", ".jinja", ".yaml", ".yml", ".toml", ".sh", ".log",
                               ".png", ".jpg", ".jpeg", ".svg", ".gif", ".pdf", ".html", ".csv", ".tiktoken", ".lock", ".metadata"})
        if (name.ends_with(ending)) return true;
    static const std::set<std::string> whole = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "CACHEDIR.TAG", "lock",
                                                "__pycache__"};
    return whole.count(name) > 0;
}

/// The first file or folder in a folder that may hold weights; "" if there is none.
fs::path possible_weights(const fs::path& folder) {
    std::vector<fs::path> entries = entries_of(folder);
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries)
        if (path_exists(entry) && !holds_no_weights(entry.filename().string())) return entry.filename();   // refuses a broken link
    return {};
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
    } else {
        verify_file(folder, "model.safetensors");   // of our own, it has to be there
        const fs::path other = possible_weights(folder);
        if (other.empty()) return files;
        fail(Exit::checkpoint, folder.string(), ": has no model.safetensors, but ", other.string(),
             ", which may hold weights; convert them to it (transformers: model.save_pretrained(folder)), or give a folder with "
             "config.json alone to start from scratch");
    }
    return files;
}

double number_or_nan(const json& object, const char* key, const std::string& where) {
    if (!has_field(object, key)) return std::numeric_limits<double>::quiet_NaN();
    return number_field(object, key, std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max(), where);
}

/// Loads one moment ("exp_avg."); every tensor of the list that has it must be present.
void load_moment(const SafetensorsFile& file, const char* prefix, const TensorList& list, float* flat) {
    std::fill(flat, flat + list.size(), 0.0f);
    for (const Tensor& tensor : list) {
        const std::string name = name_of_moment(prefix, tensor);
        if (name.empty()) continue;
        const StoredTensor* stored = file.find(name);
        if (!stored) fail(Exit::checkpoint, file.where(), ": tensor \"", name, "\" is missing");
        load_tensor(*stored, tensor, file.where(), flat);
        file.release(*stored);
    }
}

}   // namespace

bool has_weights(const fs::path& folder) { return !open_weights(folder).empty(); }

/// Keeps generation_config.json if it is not the one that a checkpoint with this config.json has anyway. Exit::checkpoint if it is broken.
static void read_generation_config(const fs::path& folder, const json& model, Config& config) {
    const fs::path path = folder / "generation_config.json";
    verify_file(folder, path.filename());
    if (!path_exists(path)) return;
    const std::string text = read_text(path);
    if (text.empty()) fail(Exit::checkpoint, path.string(), ": is empty; copy it again, or remove it");
    generation_config_from_json(text, config.V, path.string());
    if (text != default_generation_config(model)) config.generation_config = text;
}

Config load_config(const fs::path& folder) {
    const fs::path path = folder / "config.json", tokenizer = folder / "tokenizer.json";
    require_no_run(folder);
    verify_file(folder, path.filename());
    const std::string text = read_text(path);
    Config config = config_from_json(text, path.string());
    read_generation_config(folder, parse_json(text), config);
    if (config.tokenizer == "bytes") return config;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) verify_file(folder, name);
    config.tokenizer = path_exists(tokenizer) ? tokenizer.string() : "";
    return config;
}

std::vector<std::string> load_weights(const fs::path& folder, const TensorList& list, uint64_t seed, float* weights, StoredBf16* matrices) {
    const std::deque<SafetensorsFile> files = open_weights(folder);
    for (const SafetensorsFile& file : files) verify_file(folder, fs::path(file.where()).filename());
    Stock stock = take_stock(files);
    settle_tied_head(stock, list);
    std::fill(weights, weights + list.size(), 0.0f);   // padding included
    for (const auto& [name, found] : stock) {
        const auto [file, stored] = found;
        const Tensor* tensor = list.find(name);
        if (!tensor)
            fail(Exit::checkpoint, file->where(), ": the model has no tensor \"", name, "\"; correct config.json, or remove the tensor");
        if (tensor->stored == Stored::as_bf16) load_tensor(*stored, *tensor, file->where(), matrices);
        else load_tensor(*stored, *tensor, file->where(), weights);
        file->release(*stored);
    }
    std::vector<std::string> initialised;
    for (const Tensor& tensor : list) {
        if (stock.count(tensor.name)) continue;
        if (!files.empty() && !tensor.of_mechanism)
            fail(Exit::checkpoint, folder.string(), ": its weights lack the tensor \"", tensor.name, "\" of the model; save the folder "
                 "again with it, or give a folder with config.json alone to start from scratch");
        if (tensor.stored == Stored::as_bf16) initialise(tensor, seed, matrices);
        else initialise(tensor, seed, weights);
        initialised.push_back(tensor.name);
    }
    return initialised;
}

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
    if (const size_t at = state.train_data.find(", bytes "); at != std::string::npos)
        state.train_data.erase(0, at + 2);   // a hash that earlier versions saved before
    state.options_json = string_field(object, "options", where);
    state.last_loss = number_or_nan(object, "last_loss", where);
    state.last_val_loss = number_or_nan(object, "last_val_loss", where);
    return state;
}

fs::path moments_file(const fs::path& folder) {
    const fs::path file = folder / "optimizer.state", earlier = folder / "optimizer.safetensors";
    return !path_exists(file) && path_exists(earlier) ? earlier : file;
}

std::string name_of_moment(const std::string& prefix, const Tensor& tensor) {
    if (tensor.role != Role::muon) return prefix + tensor.name;
    return prefix == "exp_avg." ? MOMENTUM_PREFIX + tensor.name : "";
}

/// Exit::checkpoint if the file has the moments of another optimiser than the list's.
static void require_same_optimizer(const SafetensorsFile& file, const TensorList& list) {
    const auto& stored = file.tensors();
    const bool saved_by_muon =
        std::any_of(stored.begin(), stored.end(), [](const StoredTensor& t) { return t.name.starts_with(MOMENTUM_PREFIX); });
    if (saved_by_muon != list.has(Role::muon))
        fail(Exit::checkpoint, file.where(), ": has the moments of --optimizer ", saved_by_muon ? "muon" : "adamw",
             "; resume with that, or start from the folder's weights with --model and another --out");
}

TrainerState load_state(const fs::path& folder, const TensorList& list, float* exp_avg, float* exp_avg_sq) {
    const SafetensorsFile file(moments_file(folder));
    if (exp_avg || exp_avg_sq) require_same_optimizer(file, list);
    for (const StoredTensor& stored : file.tensors()) {
        const std::string name = stored.name.substr(stored.name.find('.') + 1);
        const bool known = list.find(name) && (stored.name == "exp_avg." + name || stored.name == "exp_avg_sq." + name ||
                                               stored.name == MOMENTUM_PREFIX + name);
        if (!known) fail(Exit::checkpoint, file.where(), ": the model's optimiser has no tensor \"", stored.name, "\"");
    }
    if (exp_avg) load_moment(file, "exp_avg.", list, exp_avg);
    if (exp_avg_sq) load_moment(file, "exp_avg_sq.", list, exp_avg_sq);
    return load_trainer_state(folder);
}
