// manifest.json of a checkpoint: size and XXH3 hash of every file, and the hash of every tensor in safetensors files, so that
// damage can be named. It is written last and carries a hash of itself.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "model/safetensors.h"

struct ManifestFile {
    WrittenFile file;
    std::map<std::string, uint64_t> tensors;   // name -> hash of its bytes; empty for other files
};

using FileManifest = std::map<std::string, ManifestFile>;   // by file name within the folder

std::string file_manifest_to_json(const FileManifest& manifest);

/// Refused with Exit::checkpoint unless its own hash matches.
FileManifest file_manifest_from_json(const std::string& text, const std::string& where);
