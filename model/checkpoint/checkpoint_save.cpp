// Saving and verifying checkpoints.
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include <fcntl.h>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/hash.h"
#include "model/base/json.h"
#include "model/base/text.h"
#include "model/checkpoint/carried_texts.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "model/generation_config.h"

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// --------------------------------------------------------------------------------------------------------------- manifest.json
// Size and XXH3 hash of every file, and of every tensor in safetensors files, so that errors can name the damaged one. Written
// last; contains its own hash.

struct ManifestFile {
    WrittenFile file;
    std::map<std::string, uint64_t> tensors;   // name -> hash of its bytes; empty for other files
};

using FileManifest = std::map<std::string, ManifestFile>;   // by file name within the folder

uint64_t hash_field(const json& value, const std::string& where) {
    const std::string digits = value.is_string() ? value.get<std::string>() : "";
    uint64_t hash = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
    if (digits.size() != 16 || end != digits.data() + 16)
        fail(Exit::checkpoint, where, ": ", shown(value), " is not a hash of 16 hexadecimal digits");
    return hash;
}

std::string file_manifest_to_json(const FileManifest& manifest) {
    json files = json::object();
    for (const auto& [name, entry] : manifest) {
        json& file = files[name];
        file["bytes"] = entry.file.bytes;
        file["xxh3"] = hexadecimal(entry.file.hash);
        for (const auto& [tensor, hash] : entry.tensors) file["tensors"][tensor] = hexadecimal(hash);
    }
    json object;
    object["format"] = 1;
    object["files_xxh3"] = hexadecimal(xxh3(written(files)));
    object["files"] = std::move(files);
    return written(object, 1) + "\n";
}

/// Refused with Exit::checkpoint unless its own hash matches.
FileManifest file_manifest_from_json(const std::string& text, const std::string& where) {
    const json object = parse_json_object(text, where);
    for (const char* key : {"format", "files", "files_xxh3"})
        if (!has_field(object, key))
            fail(Exit::checkpoint, where, ": is damaged, as it has no \"", key, "\"; copy the folder again, or remove the "
                 "manifest if it is another program's or the files were changed on purpose");
    integer_field(object, "format", 1, 1, where);
    const json& files = required_field(object, "files", where);
    if (!files.is_object()) fail(Exit::checkpoint, where, ": \"files\" is ", shown(files), ", expected an object");
    FileManifest manifest;
    for (const auto& [name, entry] : files.items()) {
        const std::string here = where + ": " + name;
        const bool sound = entry.is_object() && (!entry.contains("tensors") || entry["tensors"].is_object());
        if (!sound) fail(Exit::checkpoint, here, ": the entry is damaged");
        if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
            fail(Exit::checkpoint, here, ": is not the name of a file in the manifest's folder; copy the checkpoint again");
        ManifestFile& file = manifest[name];
        file.file.bytes = uint64_t(integer_field(entry, "bytes", 0, INT64_MAX, here));
        file.file.hash = hash_field(required_field(entry, "xxh3", here), here);
        if (!entry.contains("tensors")) continue;
        for (const auto& [tensor, hash] : entry["tensors"].items())
            file.tensors[tensor] = hash_field(hash, here + ": tensor " + tensor);
    }
    // Writing what was parsed must reproduce the text, its own hash included, which leaves no room for damage.
    if (file_manifest_to_json(manifest) != text) fail(Exit::checkpoint, where, ": is damaged (its own hash does not match)");
    return manifest;
}

/// Whether a folder's manifest.json is one of ours, damaged or not, and not another program's.
bool is_ours(const json& manifest, const fs::path& folder) {
    for (const auto& [key, value] : manifest.items())
        if (key == "format" || key.starts_with("files")) return true;
    return path_exists(folder / "trainer_state.json");
}

// ----------------------------------------------------------------------------------------------------------- what is written

struct TextFile {
    std::string name;
    std::string text;
    bool listed = true;   // in the manifest
};

struct TensorFile {
    std::string name;
    std::vector<TensorToWrite> tensors;
};

std::string trainer_state_to_json(const TrainerState& state) {
    ordered_json object;
    object["step"] = state.step;
    object["tokens"] = state.tokens;
    object["seed"] = state.seed;
    object["data_rows"] = state.data_rows;
    object["train_data"] = state.train_data;
    object["last_loss"] = state.last_loss;   // NaN becomes null
    object["last_val_loss"] = state.last_val_loss;
    object["options"] = state.options_json;
    return written(object, 2, NotUtf8::replace) + "\n";   // replace: paths need not be UTF-8
}

void append_tokenizer_files(std::vector<TextFile>& files, const Tokenizer* tokenizer, const fs::path& from) {
    const fs::path source = from / "tokenizer.json";
    const bool same = tokenizer && !from.empty() && path_exists(source) && read_text(source) == tokenizer->json();
    if (tokenizer) {
        files.push_back({"tokenizer.json", tokenizer->json()});
        files.push_back({"tokenizer_config.json", tokenizer->config_json()});
        if (!same) return;
    }
    if (from.empty()) return;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
                             "added_tokens.json", "chat_template.jinja", "tokenizer.model"})
        if (std::error_code none; fs::exists(from / name, none) && !(same && std::string(name).starts_with("tokenizer")))
            files.push_back({name, read_text(from / name)});
}

std::vector<TextFile> text_files(Config config, const TrainerState& state, const Tokenizer* tokenizer,
                                 const fs::path& tokenizer_from) {
    if (tokenizer && tokenizer->name() != "bytes") config.tokenizer = "tokenizer.json";   // the folder may be moved
    const std::string model = config_to_json(config);
    std::vector<TextFile> files = {{"config.json", model},
                                   {"generation_config.json", config.generation_config.empty() ? default_generation_config(parse_json(model))
                                                                                               : config.generation_config},
                                   {"trainer_state.json", trainer_state_to_json(state)}};
    if (!transformers_computes(config))
        for (const CarriedText& file : modeling_files()) files.push_back({file.name, file.text});
    append_tokenizer_files(files, tokenizer, tokenizer_from);
    return files;
}

void append_weights(TensorFile& file, const TensorList& list, const float* flat) {
    for (const Tensor& tensor : list) file.tensors.push_back({tensor.name, tensor.shape, flat + tensor.slot.offset});
}

void append_moments(TensorFile& file, const std::string& prefix, const TensorList& list, const float* flat) {
    for (const Tensor& tensor : list)
        if (const std::string name = name_of_moment(prefix, tensor); !name.empty())
            file.tensors.push_back({name, tensor.shape, flat + tensor.slot.offset});
}

void write_files(const fs::path& folder, const std::vector<TextFile>& texts, const std::vector<TensorFile>& tensor_files,
                 const OnPiece& on_piece) {
    FileManifest manifest;
    const auto write_text = [&](const TextFile& file) {
        FileWriter writer(folder / file.name);
        writer.write(file.text.data(), file.text.size());
        writer.close();
        if (file.listed) manifest[file.name].file = {writer.size(), writer.hash()};
    };
    for (const TextFile& file : texts) write_text(file);
    for (const TensorFile& file : tensor_files) {
        ManifestFile& entry = manifest[file.name];
        entry.file = write_safetensors(folder / file.name, file.tensors, on_piece);
        for (const TensorToWrite& tensor : file.tensors) entry.tensors[tensor.name] = xxh3(tensor.data, tensor_bytes(tensor));
    }
    write_text({"manifest.json", file_manifest_to_json(manifest)});
    sync_directory(folder);
}

/// Gives the verified folder its final name. If a checkpoint of that name exists, the two are exchanged atomically, or, on file
/// systems that cannot, by two renames, between which only that one step has no checkpoint.
void take_final_name(const fs::path& temporary, const fs::path& final_path) {
    if (!path_exists(final_path)) return rename_file(temporary, final_path);
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) return;
    rename_file(final_path, final_path.string() + ".old.tmp");
    rename_file(temporary, final_path);
}

// ---------------------------------------------------------------------------------------------------------------- verifying

/// Precondition: the file's size or hash is wrong. Reports where, as precisely as possible.
[[noreturn]] void report_damage(const fs::path& path, const ManifestFile& expected, std::span<const std::byte> bytes) {
    const std::string where = path.string();
    if (!expected.tensors.empty())
        for (const StoredTensor& tensor : parse_safetensors(bytes, where)) {   // a damaged header is refused here, naming the tensor
            const auto entry = expected.tensors.find(tensor.name);
            if (entry == expected.tensors.end() || entry->second != xxh3(tensor.bytes))
                fail(Exit::checkpoint, where, ": tensor \"", tensor.name, "\" is damaged (its hash is ", hexadecimal(xxh3(tensor.bytes)),
                     ", the manifest has another)");
        }
    if (bytes.size() != expected.file.bytes)
        fail(Exit::checkpoint, where, ": holds ", bytes.size(), " bytes, the manifest says ", expected.file.bytes);
    fail(Exit::checkpoint, where, ": is damaged (its hash is ", hexadecimal(xxh3(bytes)), ", the manifest says ",
         hexadecimal(expected.file.hash), ")");
}

/// Exit::checkpoint if a link leads out of the folder that the file is said to be in: what was verified could change there.
void require_in_folder(const fs::path& path) {
    const fs::path target = resolved(path);   // opening a file that is not there reports it
    if (target.parent_path() != resolved(path.parent_path()))
        fail(Exit::checkpoint, path.string(), ": is a link to ", target.string(), ", outside the manifest's folder; copy the file itself "
             "there (cp -L)");
}

void verify(const fs::path& path, const ManifestFile& expected, const OnPiece& on_piece = {}) {
    require_in_folder(path);
    const MappedFile file(path);
    const size_t size = file.bytes().size();
    Hasher hasher;
    for (size_t at = 0; at < size; at += PIECE_BYTES) {
        const auto part = file.bytes().subspan(at, std::min(PIECE_BYTES, size - at));
        hasher.add(part.data(), part.size());
        file.release(part);
        if (on_piece) on_piece();
    }
    if (size != expected.file.bytes || hasher.digest() != expected.file.hash) report_damage(path, expected, file.bytes());
}

}   // namespace

fs::path save_checkpoint(const fs::path& out_dir, const Config& config, const TensorList& list, const float* weights, const float* exp_avg,
                         const float* exp_avg_sq, const TrainerState& state, const Tokenizer* tokenizer, const fs::path& tokenizer_from,
                         const RunFacts& facts, const OnPiece& on_piece, const std::function<void()>& on_written) {
    std::vector<TextFile> texts = text_files(config, state, tokenizer, tokenizer_from);
    texts.push_back({"README.md", model_card(config, list, weights, state, facts), false});
    std::vector<TensorFile> tensor_files = {{"model.safetensors", {}}, {"optimizer.state", {}}};
    append_weights(tensor_files[0], list, weights);
    append_moments(tensor_files[1], "exp_avg.", list, exp_avg);
    append_moments(tensor_files[1], "exp_avg_sq.", list, exp_avg_sq);

    make_folders(out_dir);
    remove_leftovers(out_dir);

    const fs::path final_path = out_dir / text("step_%08lld", static_cast<long long>(state.step)), temporary = final_path.string() + ".tmp";
    std::error_code error;
    try {
        if (!fs::create_directory(temporary, error))
            fail(Exit::checkpoint, temporary.string(), ": cannot be created (", error.message(), ")");
        write_files(temporary, texts, tensor_files, on_piece);
        verify_checkpoint(temporary, on_piece);
        if (on_written) on_written();
        set_later_ones_aside(out_dir, state.step);
        take_final_name(temporary, final_path);
    } catch (...) {
        fs::remove_all(temporary, error);
        throw;
    }
    sync_directory(out_dir);
    remove_leftovers(out_dir);   // the replaced checkpoint
    return final_path;
}

void verify_checkpoint(const fs::path& folder, const OnPiece& on_piece) {
    const fs::path path = folder / "manifest.json";
    const FileManifest manifest = file_manifest_from_json(read_text(path), path.string());
    const std::string moments = moments_file(folder).filename().string();
    for (const std::string& name : {std::string("config.json"), std::string("model.safetensors"), moments,
                                    std::string("trainer_state.json")})
        if (!manifest.count(name)) fail(Exit::checkpoint, path.string(), ": does not list ", name);
    for (const auto& [name, expected] : manifest) verify(folder / name, expected, on_piece);
}

void verify_file(const fs::path& folder, const fs::path& name) {
    const fs::path path = folder / "manifest.json";
    if (!path_exists(path)) return;
    const std::string text = read_text(path);
    if (!is_ours(parse_json_object(text, path.string()), folder)) return;
    const FileManifest manifest = file_manifest_from_json(text, path.string());
    const auto entry = manifest.find(name.string());
    const bool needed = name == "config.json" || name == "model.safetensors" || name == moments_file(folder).filename();
    if (entry == manifest.end() && needed)
        fail(Exit::checkpoint, path.string(), ": does not list ", name.string(), "; remove the manifest if that is on purpose");
    if (entry == manifest.end()) return;
    try {
        verify(folder / name, entry->second);
    } catch (const Error& error) {
        fail(error.code, error.what(), "; if it was changed on purpose, remove the folder's manifest.json");
    }
}

void require_outside(const char* option, const fs::path& file, const fs::path& checkpoint) {
    if (file.empty()) return;
    const fs::path folder = resolved(file).parent_path(), own = resolved(checkpoint), name = file.filename();
    const bool of_run = folder == own.parent_path() && (name == "log.jsonl" || name == "options.toml");
    if (folder == own || of_run)
        fail(Exit::usage, option, " ", file.string(), " belongs to ", checkpoint.string(), " or its run; choose another path");
}
