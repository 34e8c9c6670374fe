// The safetensors reader and writer, the list of tensors, and their initialisation.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

#include "model/checkpoint/safetensors.h"
#include "model/tensors.h"
#include "tests/errors.h"
#include "tests/temporary_folder.h"

namespace {

std::vector<std::byte> file_of(const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    std::vector<std::byte> file(8 + header.size() + data_bytes);
    std::memcpy(file.data(), &length, 8);
    std::memcpy(file.data() + 8, header.data(), header.size());
    return file;
}

std::string refusal(const std::vector<std::byte>& file) {
    return refusal(Exit::checkpoint, [&] { parse_safetensors(file, "some.safetensors"); });
}

void refused(const std::string& header, size_t data_bytes, const std::string& expected) {
    const std::string sentence = refusal(file_of(header, data_bytes));
    INFO(header << " -> " << sentence);
    CHECK(sentence.find("some.safetensors") != std::string::npos);
    CHECK(sentence.find(expected) != std::string::npos);
}

long most_kilobytes() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool counts_memory = false;   // AddressSanitizer keeps freed memory
#else
constexpr bool counts_memory = true;
#endif

/// MiB that refusing a header takes besides the file itself, in a process of its own; 255 if it is not refused.
int memory_to_refuse(const std::string& header) {
    const auto file = file_of(header, 0);
    const pid_t child = fork();
    if (child == 0) {
        const long before = most_kilobytes();
        try {
            parse_safetensors(file, "x");
        } catch (const Error&) {
            _exit(counts_memory ? int(std::min(254l, (most_kilobytes() - before) / 1024)) : 0);
        }
        _exit(255);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

/// One tensor, its numbers given as raw 16-bit patterns.
std::vector<float> converted(const std::string& dtype, const std::vector<uint16_t>& bits) {
    StoredTensor tensor{"x", dtype, {int64_t(bits.size())}, bits.size(), std::as_bytes(std::span(bits))};
    std::vector<float> out(bits.size());
    convert_to_float(tensor, out.data(), "file");
    return out;
}

}   // namespace

TEST_CASE("what is written is read back to the bit", "[safetensors]") {
    TemporaryFolder folder;
    const std::vector<float> a = {1, -2.5f, 3e-40f, 4, 5, 6}, b = {7};
    const std::vector<TensorToWrite> tensors = {{"z.first", {2, 3}, a.data()}, {"a.\"quoted\" \u00e9", {1}, b.data()}, {"scalar", {}, b.data()}};
    const auto path = folder / "file.safetensors";
    const WrittenFile written = write_safetensors(path, tensors);
    CHECK(written.bytes == std::filesystem::file_size(path));

    const SafetensorsFile file(path);
    REQUIRE(file.tensors().size() == 3);
    CHECK(file.tensors()[0].name == "z.first");
    CHECK(file.find("z.first")->shape == std::vector<int64_t>{2, 3});
    CHECK(file.find("nowhere") == nullptr);
    std::vector<float> back(6);
    convert_to_float(*file.find("z.first"), back.data(), "file");
    CHECK(std::memcmp(back.data(), a.data(), 6 * sizeof(float)) == 0);
    CHECK(file.find("scalar")->count == 1);
    CHECK(reinterpret_cast<uintptr_t>(file.tensors()[0].bytes.data()) % 8 == 0);
}

TEST_CASE("no tensors and empty tensors are valid", "[safetensors]") {
    CHECK(parse_safetensors(file_of("{}", 0), "x").empty());
    CHECK(parse_safetensors(file_of(R"({"__metadata__":{"a":"b"}}   )", 0), "x").empty());
    const auto file = file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},)"
                              R"("c":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}})", 4);
    const auto tensors = parse_safetensors(file, "x");
    REQUIRE(tensors.size() == 3);
    CHECK(tensors[1].name == "b");
}

TEST_CASE("broken files are refused by file and tensor", "[safetensors]") {
    CHECK(refusal({}).find("at least 8") != std::string::npos);
    std::vector<std::byte> length_only(8, std::byte{0xff});
    CHECK(refusal(length_only).find("header would be") != std::string::npos);
    auto cut = file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
    cut.resize(30);
    CHECK(refusal(cut).find("cut off") != std::string::npos);
    refused("", 0, "does not start with {");
    refused(" {}", 0, "does not start with {");
    refused("{", 0, "not valid JSON");
    refused("{} x", 0, "not valid JSON");
    refused(R"({"a":7})", 0, "tensor \"a\"");
    refused(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "F33");
    refused(R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype");
    refused(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape");
    refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape");
    refused(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "shape");
    refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "64 bits");
    refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, "64 bits");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "data_offsets");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "tensor \"a\"");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "data_offsets");
    refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "tensor \"a\"");
    refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "goes on to byte 8");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "tensor \"a\" begins at byte 4");
    refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "tensor \"b\"");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "\"a\" is in the header twice");
}

TEST_CASE("headers of 100,000 tensors take a second or two, read and written", "[safetensors]") {
    const int count = 100'000;
    std::string header = "{";
    for (int i = 0; i < count; i++)
        header += (i ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]})";
    const std::clock_t before = std::clock();
    CHECK(parse_safetensors(file_of(header + "}", 0), "x").size() == count);
    std::vector<TensorToWrite> tensors;
    for (int i = 0; i < count; i++) tensors.push_back({std::to_string(i), {0, 4}, nullptr});
    const TemporaryFolder folder;
    CHECK(write_safetensors(folder / "empty.safetensors", tensors).bytes > count);
    CHECK(double(std::clock() - before) / CLOCKS_PER_SEC < 5);   // also of a slow machine, with sanitizers
}

TEST_CASE("a header that is not one is refused at its first wrong part, without memory for the rest", "[safetensors]") {
    const size_t size = 30'000'000;
    auto repeated = [](const std::string& start, const std::string& part) {
        std::string header = start;
        while (header.size() < size) header += part;
        return header;
    };
    CHECK(memory_to_refuse(repeated("{\"a\":", "[")) < 20);
    CHECK(memory_to_refuse(repeated("", "{\"a\":")) < 20);
    CHECK(memory_to_refuse(repeated("{\"a\":{\"shape\":[1", ",1")) < 20);
    CHECK(memory_to_refuse(repeated("{", "\"abcdefgh\":1,")) < 20);
    CHECK(memory_to_refuse(repeated("{\"__metadata__\":{\"a\":\"b\"", ",\"a\":\"b\"")) < 20);
    CHECK(memory_to_refuse("{\"" + std::string(size, 'x')) < 20);
    CHECK(memory_to_refuse("{\"" + std::string(size, 'x') + "\":{}}") < 20);
    const std::string longest = "{\"" + std::string(16'777'000, 'x');
    CHECK(memory_to_refuse(longest + "\":{}}") < 250);
    CHECK(memory_to_refuse(longest + "\\x\":{}}") < 250);
    CHECK(refusal(file_of(longest + "\\x\":{}}", 0)).size() < 1000);
    CHECK(refusal(file_of(longest + "\":{}}", 0)).size() < 1000);
    refused("{\"a\":" + std::string(1000, '['), 0, "100 levels");
    refused("{\"" + std::string(17'000'000, 'x') + "\":1}", 0, "a string is longer than");
    refused(R"({"a":[]})", 0, "tensor \"a\" is a list");
    refused(R"({"a":null})", 0, "tensor \"a\" is null");
    refused(R"({"a":{}})", 0, "\"dtype\" is missing");
    refused(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "\"shape\" is missing");
    refused(R"({"a":{"dtype":"F32","shape":[1]}})", 4, "\"data_offsets\" is missing");
    refused(R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4, "\"dtype\" is an array");
    refused(R"({"a":{"dtype":"F32","shape":{"n":1},"data_offsets":[0,4]}})", 4, "\"shape\" is an object");
    refused(R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "\"shape\" holds an array");
    refused(R"({"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4, "\"shape\" holds true");
    refused(R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4, "\"shape\" holds 9223372036854775808");
    refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2,4]}})", 4, "[begin, end]");
    CHECK(parse_safetensors(file_of(R"({"__metadata__":{"x":{"shape":[7]}},"a":{"y":[{"shape":"z"}],"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
                            "x").front().shape == std::vector<int64_t>{4});
}

TEST_CASE("missing files and folders are refused by path", "[safetensors]") {
    TemporaryFolder folder;
    CHECK_THROWS_AS(SafetensorsFile(folder / "absent.safetensors"), Error);
    CHECK_THROWS_AS(SafetensorsFile(folder.path()), Error);
    std::ofstream(folder / "empty.safetensors");
    CHECK_THROWS_AS(SafetensorsFile(folder / "empty.safetensors"), Error);
}

TEST_CASE("BF16, F16 and F64 become floats, integers are refused", "[safetensors]") {
    CHECK(converted("BF16", {0x3f80, 0xc000, 0x0000, 0x7f7f}) == std::vector<float>{1, -2, 0, std::bit_cast<float>(0x7f7f0000u)});
    CHECK(converted("F16", {0x3c00, 0xc000, 0x7bff, 0x0001, 0x03ff, 0x0400, 0x8001}) ==
          std::vector<float>{1, -2, 65504, 0x1p-24f, 1023 * 0x1p-24f, 0x1p-14f, -0x1p-24f});
    const std::vector<float> special = converted("F16", {0x7c00, 0xfc00, 0x7e00, 0x8000});
    CHECK(special[0] == INFINITY);
    CHECK(special[1] == -INFINITY);
    CHECK(std::isnan(special[2]));
    CHECK(std::signbit(special[3]));
    const std::vector<double> doubles = {0.1, -3};
    std::vector<float> out(2);
    convert_to_float({"x", "F64", {2}, 2, std::as_bytes(std::span(doubles))}, out.data(), "file");
    CHECK(out == std::vector<float>{0.1f, -3});
    CHECK_THROWS_AS(converted("I16", {1}), Error);
}

TEST_CASE("the list of tensors lays them out one behind the other", "[tensors]") {
    TensorList list;
    const Slot a = list.add("a", {3, 5}, zeros(), Decay::yes), b = list.add("b", {2}, ones(), Decay::no);
    list.align();
    const Slot c = list.add("c", {1}, constant(3), Decay::no);
    CHECK(a.offset == 0);
    CHECK(b.offset == 15);
    CHECK(c.offset == 32);
    CHECK(list.size() == 33);
    CHECK(list.parameters() == 18);
    CHECK(list.find("b")->slot.offset == 15);
    CHECK(list.find("d") == nullptr);
    CHECK_THROWS_AS(list.add("a", {1}, zeros(), Decay::no), Error);
    CHECK_THROWS_AS(list.add("e", {3, 0}, zeros(), Decay::no), Error);
}

TEST_CASE("initialisation is normal, and the same in both precisions and with other tensors around", "[tensors]") {
    TensorList small, large;
    small.add("x", {101, 997}, normal(0.5), Decay::yes);
    large.add("before", {7}, ones(), Decay::no);
    large.align();
    large.add("x", {101, 997}, normal(0.5), Decay::yes);
    const size_t n = 101 * 997;
    std::vector<float> alone(small.size(), -1), among(large.size(), -1);
    std::vector<double> exact(small.size());
    initialise(small, 1, alone.data());
    initialise(large, 1, among.data());
    initialise(small, 1, exact.data());
    CHECK(among[6] == 1);
    CHECK(among[7] == 0);   // padding
    CHECK(std::memcmp(alone.data(), among.data() + 16, n * sizeof(float)) == 0);
    double sum = 0, square = 0, fourth = 0;
    bool rounded = true;
    for (size_t i = 0; i < n; i++) {
        rounded = rounded && alone[i] == float(exact[i]);
        sum += exact[i], square += exact[i] * exact[i], fourth += std::pow(exact[i], 4);
    }
    CHECK(rounded);
    CHECK(std::fabs(sum / n) < 5 * 0.5 / std::sqrt(n));
    CHECK(std::fabs(square / n - 0.25) < 5 * 0.25 * std::sqrt(2.0 / n));
    CHECK(std::fabs(fourth / n - 3 * 0.0625) < 5 * 0.0625 * std::sqrt(96.0 / n));   // a normal's kurtosis is 3

    std::vector<float> other(small.size());
    initialise(small, 2, other.data());
    CHECK(weights_hash(small, other.data()) != weights_hash(small, alone.data()));
    other = alone;
    CHECK(weights_hash(small, other.data()) == weights_hash(small, alone.data()));
    other[n - 1] = std::nextafter(other[n - 1], 1.0f);
    CHECK(weights_hash(small, other.data()) != weights_hash(small, alone.data()));
}
