#include "model/checkpoint_manifest.h"

#include "model/error.h"
#include "model/hash.h"
#include "model/json_fields.h"

using nlohmann::json;

namespace {

std::string hash_of_text(const std::string& text) { return hexadecimal(xxh3(text.data(), text.size())); }

uint64_t hash_field(const json& value, const std::string& where) {
    const auto is_digit = [](char x) { return (x >= '0' && x <= '9') || (x >= 'a' && x <= 'f'); };
    const std::string digits = value.is_string() ? value.get<std::string>() : "";
    bool valid = digits.size() == 16;
    for (char digit : digits) valid = valid && is_digit(digit);
    if (!valid) fail(Exit::checkpoint, where, ": ", shown(value), " is no hash of 16 hexadecimal digits");
    return std::stoull(digits, nullptr, 16);
}

}   // namespace

std::string file_manifest_to_json(const FileManifest& manifest) {
    json files = json::object();
    for (const auto& [name, entry] : manifest) {
        json& file = files[name];
        file["bytes"] = entry.file.bytes;
        file["xxh3"] = hexadecimal(entry.file.hash);
        for (const auto& [tensor, hash] : entry.tensors) file["tensors"][tensor] = hexadecimal(hash);
    }
    const std::string own_hash = hash_of_text(files.dump());
    return json{{"format", 1}, {"files", files}, {"files_xxh3", own_hash}}.dump(1) + "\n";
}

FileManifest file_manifest_from_json(const std::string& text, const std::string& where) {
    const json object = parse_json_object(text, where);
    integer_field(object, "format", 1, 1, where);
    const json& files = required_field(object, "files", where);
    if (!files.is_object()) fail(Exit::checkpoint, where, ": \"files\" is ", shown(files), ", expected an object");
    FileManifest manifest;
    for (const auto& [name, entry] : files.items()) {
        const std::string here = where + ": " + name;
        const bool sound = entry.is_object() && (!entry.contains("tensors") || entry["tensors"].is_object());
        if (!sound) fail(Exit::checkpoint, here, ": the entry is damaged");
        ManifestFile& file = manifest[name];
        file.file.bytes = uint64_t(integer_field(entry, "bytes", 0, INT64_MAX, here));
        file.file.hash = hash_field(required_field(entry, "xxh3", here), here);
        if (!entry.contains("tensors")) continue;
        for (const auto& [tensor, hash] : entry["tensors"].items())
            file.tensors[tensor] = hash_field(hash, here + ": tensor " + tensor);
    }
    // Writing what was understood must give the text that was read, its own hash included: that leaves no room for damage.
    if (file_manifest_to_json(manifest) != text) fail(Exit::checkpoint, where, ": is damaged (its own hash does not match)");
    return manifest;
}
