#include "model/operations/matmul_table.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/process.h"

namespace {

constexpr const char* WAY_OUT = "; make it again with dev/tune_matmul, or leave the choice to the library: --matmul-table none";

MatmulChoice choice_of(const nlohmann::json& line, const std::string& where) {
    MatmulChoice choice;
    for (size_t n = 0; n < choice.algorithm.size(); n++)   // the last two have 16 bits
        choice.algorithm[n] = uint32_t(integer_field(line, MATMUL_ATTRIBUTES[n], 0, n < 7 ? UINT32_MAX : UINT16_MAX, where));
    if (!adds_in_float32(choice.algorithm))
        fail(Exit::usage, where, ": \"reduction\" is ", choice.algorithm[3], ", which rounds parts of a sum; expected 0 or 2");
    choice.microseconds = number_field(line, "microseconds", 0, 1e12, where);
    choice.first = number_field(line, "first", 0, 1e12, where);
    return choice;
}

MatmulTable table_of(const std::string& path) {
    MatmulTable table;
    const nlohmann::json all = parse_json_object(read_text(path), path);
    table.path = path;
    table.gpu = string_field(all, "gpu", path);
    table.cublaslt = integer_field(all, "cublaslt", 0, INT32_MAX, path);
    const nlohmann::json& lines = required_field(all, "products", path);
    if (!lines.is_array()) fail(Exit::usage, path, ": \"products\" is ", shown(lines), ", expected a list");
    for (const nlohmann::json& line : lines) {
        if (!line.is_object()) fail(Exit::usage, path, ": a product is ", shown(line), ", expected an object {...}");
        const std::string product = string_field(line, "product", path), where = path + ", product " + product;
        if (!table.choices.emplace(product, choice_of(line, where)).second) fail(Exit::usage, where, ": is listed twice");
    }
    return table;
}

/// A file in `folder` whose name has this prefix; "" if there is none.
std::string file_beginning_with(const std::string& folder, const std::string& beginning) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder, none))
        if (entry.path().filename().string().starts_with(beginning)) return entry.path().string();
    return "";
}

constexpr const char* LIBRARY_CHOOSES = ": the library chooses the algorithms of matrix products";

}   // namespace

std::string matmul_table_name(const std::string& gpu, int64_t cublaslt) {
    std::string name = gpu + "_cublasLt_" + std::to_string(cublaslt) + ".json";
    for (char& letter : name)
        if (letter == ' ' || letter == '/') letter = '_';
    return name;
}

MatmulTable read_matmul_table(const std::string& path) {
    try {
        return table_of(path);
    } catch (const Error& error) {
        fail(Exit::usage, error.what(), WAY_OUT);
    }
}

void write_matmul_table(const MatmulTable& table) {
    nlohmann::ordered_json gpu = table.gpu;
    std::ostringstream file;
    file << "{\"gpu\": " << written(gpu) << ", \"cublaslt\": " << table.cublaslt << ", \"products\": [";
    const char* between = "\n";
    for (const auto& [product, choice] : table.choices) {
        nlohmann::ordered_json line;
        line["product"] = product;
        for (size_t n = 0; n < choice.algorithm.size(); n++) line[MATMUL_ATTRIBUTES[n]] = choice.algorithm[n];
        line["microseconds"] = std::round(10 * choice.microseconds) / 10;
        line["first"] = std::round(10 * choice.first) / 10;
        file << between << written(line);
        between = ",\n";
    }
    file << "]}\n";
    if (const std::string why = replace_file(table.path, file.str()); !why.empty())
        fail(Exit::usage, table.path, ": cannot be written (", why, "); choose another --out");
}

MatmulTable find_matmul_table(const std::string& wanted, const std::string& gpu, int64_t cublaslt, std::string& note) {
    if (wanted == "none") return {};
    const std::string folder = program_folder() + "/model/matmul_tables/", name = matmul_table_name(gpu, cublaslt);
    if (wanted == "auto" && !path_exists(folder + name)) {
        const std::string other = file_beginning_with(folder, name.substr(0, name.rfind('_') + 1));
        if (!other.empty()) note = other + " is for another version of cuBLASLt than " + std::to_string(cublaslt) + LIBRARY_CHOOSES;
        return {};
    }
    MatmulTable table = read_matmul_table(wanted == "auto" ? folder + name : wanted);
    if (table.gpu == gpu && table.cublaslt == cublaslt) return table;
    note = table.path + " is for " + table.gpu + " with cuBLASLt " + std::to_string(table.cublaslt) + ", and this is " + gpu +
           " with " + std::to_string(cublaslt) + LIBRARY_CHOOSES;
    return {};
}
