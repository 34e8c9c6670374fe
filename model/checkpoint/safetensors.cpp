#include "model/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "model/base/error.h"
#include "model/base/json.h"

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

constexpr uint64_t header_limit = 100'000'000;   // the limit of the format's own library

/// Bytes per element; 0 for an unknown dtype.
size_t dtype_size(const std::string& dtype) {
    static const std::unordered_map<std::string, size_t> known = {
        {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4}, {"U32", 4}, {"F16", 2}, {"BF16", 2},
        {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    const auto entry = known.find(dtype);
    return entry == known.end() ? 0 : entry->second;
}

uint64_t header_length(std::span<const std::byte> file, const std::string& where) {
    if (file.size() < 8) fail(Exit::checkpoint, where, ": holds ", file.size(), " bytes, a safetensors file has at least 8");
    uint64_t length;
    std::memcpy(&length, file.data(), 8);
    if (length > header_limit)
        fail(Exit::checkpoint, where, ": the header would be ", length, " bytes long, expected at most ", header_limit);
    if (length > file.size() - 8)
        fail(Exit::checkpoint, where, ": the header should be ", length, " bytes long but only ", file.size() - 8,
             " follow; the file is cut off");
    return length;
}

std::vector<int64_t> whole_numbers(const json& fields, const char* key, const std::string& where) {
    const json& list = required_field(fields, key, where);
    if (!list.is_array()) fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(list), ", expected a list");
    std::vector<int64_t> numbers;
    for (const json& number : list) {
        if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t(INT64_MAX))
            fail(Exit::checkpoint, where, ": \"", key, "\" holds ", shown(number), ", expected whole numbers from 0");
        numbers.push_back(number.get<int64_t>());
    }
    return numbers;
}

/// A tensor from its fields {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}; others are passed over. Exit::checkpoint unless
/// they fit each other and the data.
StoredTensor tensor_of(const std::string& name, const json& fields, std::span<const std::byte> data, const std::string& where) {
    StoredTensor tensor{name, string_field(fields, "dtype", where), whole_numbers(fields, "shape", where), 1, {}};
    const std::vector<int64_t> offsets = whole_numbers(fields, "data_offsets", where);
    size_t bytes = dtype_size(tensor.dtype);
    if (bytes == 0)
        fail(Exit::checkpoint, where, ": the dtype ", shown(tensor.dtype), " is unknown; expected F32, BF16, F16, F64 or an integer type");
    bool overflow = false;
    for (int64_t dimension : tensor.shape) {
        overflow |= __builtin_mul_overflow(tensor.count, size_t(dimension), &tensor.count);
        overflow |= __builtin_mul_overflow(bytes, size_t(dimension), &bytes);
    }
    if (overflow) fail(Exit::checkpoint, where, ": the shape ", shape_text(tensor.shape), " has more numbers than 64 bits can count");
    if (offsets.size() != 2)
        fail(Exit::checkpoint, where, ": \"data_offsets\" must be [begin, end], two whole numbers from 0");
    const uint64_t begin = uint64_t(offsets[0]), end = uint64_t(offsets[1]);
    if (begin > end || end > data.size())
        fail(Exit::checkpoint, where, ": \"data_offsets\" are [", begin, ", ", end, "], expected a range within the ", data.size(),
             " bytes of data in the file");
    if (end - begin != bytes)
        fail(Exit::checkpoint, where, ": \"data_offsets\" span ", end - begin, " bytes, the shape ", shape_text(tensor.shape), " in ",
             tensor.dtype, " needs ", bytes);
    tensor.bytes = data.subspan(begin, bytes);
    return tensor;
}

/// Reads {"name": {fields}, ..., "__metadata__": {...}} in one pass, keeping the JSON of one tensor at a time, and stops at the first part
/// that is not of the format.
std::vector<StoredTensor> parse_header(std::string_view header, std::span<const std::byte> data, const std::string& file) {
    using Event = json::parse_event_t;
    constexpr int most_parts = 300;   // names, values, beginnings and ends of a tensor's fields
    std::vector<StoredTensor> tensors;
    std::string name;
    int parts = 0;
    const auto where = [&] { return file + ": tensor " + shown(name); };
    const auto keep = [&](int depth, Event event, const json& part) {
        if (depth == 1 && event == Event::key) name = part.get<std::string>(), parts = 0;
        else if (depth > 0 && name == "__metadata__") return false;
        else if (depth == 1 && (event == Event::value || event == Event::array_start))
            fail(Exit::checkpoint, where(), " is ", event == Event::value ? shown(part) : "a list", " in the header, expected an object");
        if (++parts > most_parts) fail(Exit::checkpoint, where(), ": has more than ", most_parts, " parts in the header");
        if (depth != 1 || event != Event::object_end) return true;
        tensors.push_back(tensor_of(name, part, data, where()));
        return false;
    };
    try {
        parse_json(header, true, keep);
    } catch (const json::exception& error) {
        fail(Exit::checkpoint, file, ": the header is not valid JSON (", error.what(), ")");
    }
    return tensors;
}

void check_names(const std::vector<StoredTensor>& tensors, const std::string& where) {
    std::vector<std::string_view> names;
    for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) fail(Exit::checkpoint, where, ": the tensor ", shown(std::string(*twice)), " is in the header twice");
}

/// Exit::checkpoint unless the tensors are contiguous from the first byte of data to the last.
void check_no_hole_no_overlap(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data, const std::string& where) {
    size_t expected = 0;
    for (const StoredTensor& tensor : tensors) {
        const size_t begin = size_t(tensor.bytes.data() - data.data());
        if (begin != expected)
            fail(Exit::checkpoint, where, ": tensor \"", tensor.name, "\" begins at byte ", begin, " of the data, the one before it ends at ",
                 expected, "; tensors must neither overlap nor leave a hole");
        expected += tensor.bytes.size();
    }
    if (expected != data.size())
        fail(Exit::checkpoint, where, ": the tensors end at byte ", expected, " of the data, but the file goes on to byte ", data.size());
}

template <class X>
X load(const std::byte* from) {
    X value;
    std::memcpy(&value, from, sizeof(X));
    return value;
}

float from_float16(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 0) {   // zero or subnormal: fraction * 2^-24
        const float magnitude = float(fraction) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 112;   // 31: infinity and NaN; the biases are 15 and 127
    return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

template <class X, class Out, class Convert>
void convert_all(const StoredTensor& tensor, Out* out, Convert convert) {
    #pragma omp parallel for schedule(static)
    for (size_t i = 0; i < tensor.count; i++) out[i] = Out(convert(load<X>(tensor.bytes.data() + i * sizeof(X))));
}

template <class Out>
void convert(const StoredTensor& tensor, Out* out, const std::string& where) {
    if (tensor.dtype == "F32") return convert_all<float>(tensor, out, [](float x) { return x; });
    if (tensor.dtype == "BF16") return convert_all<StoredBf16>(tensor, out, [](StoredBf16 x) { return float(x); });
    if (tensor.dtype == "F16") return convert_all<uint16_t>(tensor, out, from_float16);
    if (tensor.dtype == "F64") return convert_all<double>(tensor, out, [](double x) { return float(x); });
    fail(Exit::checkpoint, where, ": tensor \"", tensor.name, "\" is stored as ", tensor.dtype, "; F32, BF16, F16 and F64 can be read");
}

std::string header_text(const std::vector<TensorToWrite>& tensors) {
    std::string text = R"({"__metadata__":{"format":"pt"})";   // transformers refuses files without it
    uint64_t offset = 0;
    for (const TensorToWrite& tensor : tensors) {
        const uint64_t end = offset + tensor_bytes(tensor);
        text += ',';
        text += written(json(tensor.name)) + R"(:{"dtype":"F32","shape":)" + written(json(tensor.shape)) + R"(,"data_offsets":[)" +
                std::to_string(offset) + ',' + std::to_string(end) + "]}";
        offset = end;
    }
    text += "}";
    text.resize((text.size() + 7) / 8 * 8, ' ');   // aligns the data to 8 bytes
    return text;
}

}   // namespace

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> file, const std::string& where) {
    const uint64_t length = header_length(file, where);
    const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, length);
    if (!header.starts_with('{')) fail(Exit::checkpoint, where, ": the header does not start with {");
    const auto data = file.subspan(8 + length);
    std::vector<StoredTensor> tensors = parse_header(header, data, where);
    check_names(tensors, where);
    // By byte range: an empty tensor comes before the one that begins at the same byte.
    std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
    });
    check_no_hole_no_overlap(tensors, data, where);
    return tensors;
}

void convert_to_float(const StoredTensor& tensor, float* out, const std::string& where) { convert(tensor, out, where); }
void convert_to_bf16(const StoredTensor& tensor, StoredBf16* out, const std::string& where) { convert(tensor, out, where); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : where_(path.string()), file_(path), tensors_(parse_safetensors(file_.bytes(), where_)) {
    for (size_t i = 0; i < tensors_.size(); i++) by_name_[tensors_[i].name] = i;
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
    const auto entry = by_name_.find(name);
    return entry == by_name_.end() ? nullptr : &tensors_[entry->second];
}

uint64_t tensor_bytes(const TensorToWrite& tensor) {
    uint64_t bytes = sizeof(float);
    for (int64_t dimension : tensor.shape) bytes *= uint64_t(dimension);
    return bytes;
}

WrittenFile write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors, const OnPiece& on_piece) {
    const std::string header = header_text(tensors);
    const uint64_t length = header.size();
    FileWriter file(path, on_piece);
    file.write(&length, sizeof(length));
    file.write(header.data(), header.size());
    for (const TensorToWrite& tensor : tensors) file.write(tensor.data, tensor_bytes(tensor));
    file.close();
    return {file.size(), file.hash()};
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (int64_t dimension : shape) text += (text.empty() ? "" : ", ") + std::to_string(dimension);
    return "[" + text + "]";
}
