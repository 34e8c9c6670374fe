// The cuBLASLt algorithms that dev/tune_matmul found fastest for the matrix products of one GPU model: a JSON file with one line
// per product. An algorithm is stored as its attributes, from which the library recreates it.
//     {"gpu": "NVIDIA H200", "cublaslt": 130002, "products": [
//     {"product": "(64, 768) x (2304, 768)^T, bf16 to bf16", "id": 66, "tile": 20, ..., "microseconds": 8.5, "first": 9.5}]}
// A table is valid only for that GPU and that exact library version: in another, the attributes may mean something else.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// The attributes of an algorithm, indexed by cublasLtMatmulAlgoConfigAttributes_t.
using MatmulAlgorithm = std::array<uint32_t, 9>;
inline constexpr std::array<const char*, 9> MATMUL_ATTRIBUTES = {"id",     "tile",        "split_k",      "reduction", "swizzle",
                                                                 "custom", "stages", "inner_shape", "cluster_shape"};

/// Whether a table may have this algorithm: no sum is split (reduction 0), or its parts are added up in float32 (2).
constexpr bool adds_in_float32(const MatmulAlgorithm& algorithm) { return algorithm[3] == 0 || algorithm[3] == 2; }

struct MatmulChoice {
    MatmulAlgorithm algorithm{};
    double microseconds = 0, first = 0;   // measured time of this algorithm, and of the library's first proposal
};

struct MatmulTable {
    std::string path;   // "" for no table
    std::string gpu;    // as CUDA names it
    int64_t cublaslt = 0;   // cublasLtGetVersion()
    std::map<std::string, MatmulChoice> choices;   // by describe(Product)
};

/// Where the algorithms of a process's products come from, by describe(Product): the table, the library, or the library because it
/// refused the table's.
struct MatmulOrigins {
    std::string table;   // its path
    std::vector<std::string> tuned, proposed, refused;
};

/// "NVIDIA_H200_cublasLt_130002.json": the file name for a GPU and a version.
std::string matmul_table_name(const std::string& gpu, int64_t cublaslt);

/// Exit::usage if the file cannot be read, is not a table, lists a product twice, or has an algorithm that reduces split sums in
/// less than float32.
MatmulTable read_matmul_table(const std::string& path);

/// Creates or replaces table.path atomically. Exit::usage if it cannot be written.
void write_matmul_table(const MatmulTable& table);

/// The table that --matmul-table `wanted` selects for this GPU and library: "none", "auto" (from model/matmul_tables next to the
/// program, if any), or a file. Empty, with the reason in `note`, if the file is for another GPU or version.
MatmulTable find_matmul_table(const std::string& wanted, const std::string& gpu, int64_t cublaslt, std::string& note);
