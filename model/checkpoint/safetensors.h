// The safetensors format: 8 bytes of header length (little-endian), a JSON header {"name": {"dtype", "shape", "data_offsets"}},
// then the tensors' bytes, contiguous. Everything is validated before any tensor is read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/base/bf16.h"
#include "model/base/disk.h"

/// A tensor inside a safetensors file. `bytes` points into the file and need not be aligned.
struct StoredTensor {
    std::string name;
    std::string dtype;            // "F32", "BF16", ...
    std::vector<int64_t> shape;
    size_t count = 1;             // elements: the product of shape
    std::span<const std::byte> bytes;
};

/// Parses a whole file; returns the tensors in the order of their bytes. Exit::checkpoint, naming `where` and the tensor, for a
/// header that does not fit, is not a JSON object or lists a tensor twice, an unknown dtype, a shape whose size overflows or
/// disagrees with data_offsets, and offsets that overlap, leave a gap or do not end at the end of the file.
std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// out (tensor.count) from F32, BF16, F16 or F64; Exit::checkpoint for other dtypes.
void convert_to_float(const StoredTensor& tensor, float* out, const std::string& where);
/// The same, rounded to bf16.
void convert_to_bf16(const StoredTensor& tensor, StoredBf16* out, const std::string& where);

/// A safetensors file, memory-mapped and validated.
class SafetensorsFile {
public:
    explicit SafetensorsFile(const std::filesystem::path& path);

    const std::string& where() const { return where_; }
    const std::vector<StoredTensor>& tensors() const { return tensors_; }
    const StoredTensor* find(const std::string& name) const;

    /// Releases a tensor's pages once it has been read: they no longer count as memory of the process.
    void release(const StoredTensor& tensor) const { file_.release(tensor.bytes); }

private:
    std::string where_;
    MappedFile file_;
    std::vector<StoredTensor> tensors_;
    std::unordered_map<std::string, size_t> by_name_;
};

struct TensorToWrite {
    std::string name;
    std::vector<int64_t> shape;
    const float* data;
};

uint64_t tensor_bytes(const TensorToWrite& tensor);

struct WrittenFile {
    uint64_t bytes = 0;
    uint64_t hash = 0;   // XXH3 of the whole file
};

/// Writes a new file and syncs it to disk.
WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors, const OnPiece& on_piece = {});

std::string shape_text(const std::vector<int64_t>& shape);
