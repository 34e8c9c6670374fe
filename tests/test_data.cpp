// Tokenizer, shards and streams: round trips, and every way in which a shard can be wrong.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "data/stream.h"
#include "data/tokenizers/tokenizer.h"
#include "tests/file_size_limit.h"
#include "tests/shards.h"

namespace {

// The bytes of a shard with a freely chosen header.
std::string shard_bytes(int32_t magic, int32_t version, int32_t tokens, const std::string& payload) {
    int32_t header[256] = {magic, version, tokens};
    return std::string(reinterpret_cast<const char*>(header), sizeof header) + payload;
}

std::vector<int32_t> read_all(const Shard& shard) {
    std::vector<int32_t> tokens(shard.size());
    shard.copy(0, tokens.size(), tokens.data());
    return tokens;
}

std::vector<int32_t> as_int32(const std::vector<uint32_t>& ids) { return {ids.begin(), ids.end()}; }

}  // namespace

TEST_CASE("bytes tokenizer: every byte round-trips, specials stand for no text") {
    const auto tokenizer = open_tokenizer("bytes");
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
    std::vector<uint32_t> ids = {256};
    tokenizer->encode(text, ids);
    REQUIRE(ids.size() == 257);
    for (uint32_t byte = 0; byte < 256; ++byte) CHECK(ids[byte + 1] == byte);
    const std::vector<int32_t> with_specials(ids.begin(), ids.end());
    CHECK(tokenizer->decode(with_specials) == text);
    CHECK(tokenizer->vocabulary() == 512);
    CHECK(tokenizer->end_of_text() == 256);
    CHECK(tokenizer->bytes(255) == 1);
    CHECK(tokenizer->bytes(256) == 0);
    CHECK(tokenizer->bytes(511) == 0);
    CHECK(tokenizer->name() == "bytes");
}

TEST_CASE("bytes tokenizer: ids outside the vocabulary stand for U+FFFD, unknown tokenizers are refused") {
    const std::vector<int32_t> ids = {65, -1, 512, 66};
    CHECK(open_tokenizer("bytes")->decode(ids) == "A\xEF\xBF\xBD\xEF\xBF\xBD" "B");
    CHECK(says(error_of([] { open_tokenizer("gpt3"); }), Exit::usage, {"gpt3", "bytes"}));
}

TEST_CASE("bytes tokenizer: the Hugging Face file holds the same ids") {
    const auto file = nlohmann::json::parse(open_tokenizer("bytes")->json());
    const auto& vocabulary = file["model"]["vocab"];
    CHECK(vocabulary.size() == 256);
    CHECK(vocabulary["A"] == 65);
    CHECK(vocabulary["Ġ"] == 32);    // the space and the newline as every GPT-2 vocabulary writes them
    CHECK(vocabulary["Ċ"] == 10);
    CHECK(vocabulary["ÿ"] == 255);
    CHECK(file["added_tokens"].size() == 256);
    CHECK(file["added_tokens"][0]["content"] == "<|endoftext|>");
    CHECK(file["added_tokens"][255]["id"] == 511);
    CHECK(nlohmann::json::parse(open_tokenizer("bytes")->config_json())["eos_token"] == "<|endoftext|>");
}

TEST_CASE("replace_invalid_utf8 keeps valid text and replaces what is none") {
    const std::string replacement = "\xEF\xBF\xBD";
    const std::string valid = "a é 漢 👍 \xF4\x8F\xBF\xBF";
    CHECK(replace_invalid_utf8(valid) == valid);
    CHECK(replace_invalid_utf8("a\xFFz") == "a" + replacement + "z");
    CHECK(replace_invalid_utf8("\xE6\xBC") == replacement);                                        // cut short
    CHECK(replace_invalid_utf8("\xE6\xBCz") == replacement + "z");
    CHECK(replace_invalid_utf8("\xC0\xAF") == replacement + replacement);                          // overlong
    CHECK(replace_invalid_utf8("\xED\xA0\x80") == replacement + replacement + replacement);        // a surrogate
    CHECK(replace_invalid_utf8("\xF4\x90\x80\x80") == replacement + replacement + replacement + replacement);
}

TEST_CASE("shard: 16 and 32 bits round-trip, the vocabulary chooses") {
    const TemporaryFolder folder;
    const std::vector<uint32_t> ids = {0, 1, 256, 511, 65535, 7};
    const Shard narrow(write_shard(file_in(folder, "narrow.bin"), ids, 65536));
    CHECK(narrow.bytes_per_token() == 2);
    CHECK(read_all(narrow) == as_int32(ids));
    const Shard wide(write_shard(file_in(folder, "wide.bin"), ids, 65537));
    CHECK(wide.bytes_per_token() == 4);
    CHECK(read_all(wide) == as_int32(ids));
    CHECK(std::filesystem::file_size(file_in(folder, "narrow.bin")) == 1024 + 2 * ids.size());
    CHECK(names_in(folder.path()) == std::vector<std::string>{"narrow.bin", "wide.bin"});
}

TEST_CASE("shard: every wrong file is refused with the reason") {
    const TemporaryFolder folder;
    const std::string path = file_in(folder, "bad.bin");
    const std::string payload(20, '\1');   // 10 tokens of 16 bits, 5 of 32
    struct Case {
        const char* what;
        std::string bytes;
        std::vector<std::string> expected;
    };
    const std::vector<Case> cases = {
        {"empty", "", {"0 bytes", "1024"}},
        {"shorter than a header", std::string(1023, '\0'), {"1023 bytes", "1024"}},
        {"foreign", shard_bytes(0x46445025, 1, 10, payload), {"20240520", "20240801", "1178882085"}},
        {"big-endian", shard_bytes(__builtin_bswap32(20240520), 1, 10, payload), {"big-endian"}},
        {"evaluation file", shard_bytes(20240522, 1, 10, payload), {"evaluation"}},
        {"narrow with the version of wide", shard_bytes(20240520, 7, 10, payload), {"version 7", "expected 1"}},
        {"wide with the version of narrow", shard_bytes(20240801, 1, 5, payload), {"version 1", "expected 7"}},
        {"no tokens", shard_bytes(20240520, 1, 0, ""), {"0 tokens"}},
        {"negative count", shard_bytes(20240520, 1, -10, payload), {"-10 tokens"}},
        {"absurd count", shard_bytes(20240520, 1, 2147483647, payload), {"1044 bytes", "4294968318"}},
        {"truncated by a token", shard_bytes(20240520, 1, 11, payload), {"cut short", "1044", "1046"}},
        {"truncated inside a token", shard_bytes(20240520, 1, 10, payload.substr(1)), {"cut short", "1043", "1044"}},
        {"extended by a byte", shard_bytes(20240520, 1, 10, payload + "x"), {"too long", "1045", "1044"}},
        {"16 bits read as 32", shard_bytes(20240801, 7, 10, payload), {"cut short", "1044", "1064"}},
    };
    for (const Case& bad : cases) {
        INFO(bad.what);
        write_text(path, bad.bytes);
        const Error error = error_of([&] { Shard shard(path); });
        CHECK(says(error, Exit::data, {path}));
        CHECK(says(error, bad.expected));
    }
    write_text(path, shard_bytes(20240520, 1, 10, payload));
    CHECK(Shard(path).size() == 10);   // the cases differ from a good one only in what they name
}

TEST_CASE("shard: what is missing or no regular file is refused and never waited for") {
    const TemporaryFolder folder;
    CHECK(says(error_of([&] { Shard shard(file_in(folder, "none.bin")); }), {"none.bin", "No such file"}));
    CHECK(says(error_of([&] { Shard shard(folder.path().string()); }), {folder.path().string(), "regular file"}));
    REQUIRE(mkfifo(file_in(folder, "pipe").c_str(), 0600) == 0);
    CHECK(says(error_of([&] { Shard shard(file_in(folder, "pipe")); }), {"pipe", "regular file"}));
}

TEST_CASE("shard: the first token outside the vocabulary is named, over several pieces of the scan") {
    const TemporaryFolder folder;
    const size_t beyond_one_piece = (size_t{64} << 20) / sizeof(uint32_t) + 1000;
    std::vector<uint32_t> ids(beyond_one_piece, 3);
    ids[beyond_one_piece - 10] = 80000;
    ids[beyond_one_piece - 5] = 90000;
    const Shard shard(write_shard(file_in(folder, "wide.bin"), ids, 151936));
    CHECK_NOTHROW(shard.check_content(151936));
    CHECK_NOTHROW(shard.check_content(90001));
    const Error error = error_of([&] { shard.check_content(80000); });
    CHECK(says(error, Exit::data, {"wide.bin", "token 16778206 ", "byte 67113848 ", " 80000,", "80000 ids"}));

    const Shard narrow(write_shard(file_in(folder, "narrow.bin"), {1, 2, 600}, 65536));
    CHECK(says(error_of([&] { narrow.check_content(512); }), {"token 2 ", "byte 1028 ", " 600,", "512 ids"}));
    CHECK_NOTHROW(narrow.check_content(65536));
}

TEST_CASE("shard: ids above 2^31 do not pass as negative tokens") {
    const TemporaryFolder folder;
    write_text(file_in(folder, "a.bin"), shard_bytes(20240801, 7, 1, "\xFF\xFF\xFF\xFF"));
    CHECK(says(error_of([&] { Shard(file_in(folder, "a.bin")).check_content(151936); }), {"4294967295"}));
}

TEST_CASE("shard: offsets beyond 4 GiB") {
    const TemporaryFolder folder;
    const std::string path = file_in(folder, "large.bin");
    const int32_t tokens = 1500000000;   // 6 GB, a hole but for the header and the last token
    write_text(path, shard_bytes(20240801, 7, tokens, ""));
    const uint64_t bytes = 1024 + 4 * uint64_t{1500000000};
    std::error_code error;
    std::filesystem::resize_file(path, bytes, error);
    if (error) {
        WARN("no file of 6 GB can be made here: " << error.message());
        return;
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(bytes - 4)).write("\x2A\0\0\0", 4);
    file.close();
    const Shard shard(path);
    int32_t last[2] = {-1, -1};
    shard.copy(shard.size() - 2, 2, last);
    CHECK(last[0] == 0);
    CHECK(last[1] == 42);
}

TEST_CASE("shard: a file that is cut short while it is in use is an error, not a crash") {
    const TemporaryFolder folder;
    const Shard shard(write_shard(file_in(folder, "a.bin"), ramp(100000), 100000));
    std::filesystem::resize_file(file_in(folder, "a.bin"), 2000);
    int32_t token;
    CHECK(says(error_of([&] { shard.copy(99999, 1, &token); }), Exit::data, {"a.bin", "cut short", "2000"}));
}

TEST_CASE("shard: removing or replacing a file does not disturb who has it open") {
    const TemporaryFolder folder;
    const Shard shard(write_shard(file_in(folder, "a.bin"), ramp(1000), 1000));
    write_shard(file_in(folder, "a.bin"), {1}, 1000);
    CHECK(read_all(shard) == as_int32(ramp(1000)));
    std::filesystem::remove(file_in(folder, "a.bin"));
    CHECK(read_all(shard) == as_int32(ramp(1000)));
}

TEST_CASE("shard writer: nothing appears before publish(), and nothing is left of a failure") {
    const TemporaryFolder folder;
    {
        ShardWriter writer(file_in(folder, "a.bin"), 512);
        writer.write(ramp(10));
        CHECK(names_in(folder.path()) == std::vector<std::string>{"a.bin.tmp"});
        CHECK(error_of([&] { writer.write(ramp(1, 512)); }).code == Exit::data);
    }
    CHECK(names_in(folder.path()).empty());
    CHECK(says(error_of([&] { ShardWriter writer(file_in(folder, "none/a.bin"), 512); }), Exit::data, {"none/a.bin", "No such file"}));
}

TEST_CASE("shard writer: a full disk is reported and the old file survives") {
    const TemporaryFolder folder;
    write_shard(file_in(folder, "a.bin"), ramp(5), 512);
    const Error error = [&] {
        const FileSizeLimit limit(1 << 20);
        return error_of([&] { write_shard(file_in(folder, "a.bin"), std::vector<uint32_t>(2 << 20, 1), 512); });
    }();
    CHECK(says(error, Exit::data, {"a.bin", "cannot be written"}));
    CHECK(names_in(folder.path()) == std::vector<std::string>{"a.bin"});
    CHECK(Shard(file_in(folder, "a.bin")).size() == 5);
}

TEST_CASE("output files: what stands under the temporary name is replaced, and no link is followed") {
    const TemporaryFolder folder;
    write_text(file_in(folder, "precious"), "kept");
    std::filesystem::create_symlink("precious", folder / "a.bin.tmp");
    write_shard(file_in(folder, "a.bin"), ramp(5), 512);
    CHECK(read_small_file(file_in(folder, "precious")) == "kept");
    CHECK(names_in(folder.path()) == std::vector<std::string>{"a.bin", "precious"});
    write_text(file_in(folder, "a.bin.tmp"), "of a stopped run");
    write_shard(file_in(folder, "a.bin"), ramp(6), 512);
    CHECK(Shard(file_in(folder, "a.bin")).size() == 6);
    std::filesystem::create_directories(folder / "a.bin.tmp/in the way");
    CHECK(says(error_of([&] { write_shard(file_in(folder, "a.bin"), ramp(7), 512); }), {"a.bin", "a.bin.tmp", "exists"}));
    CHECK(Shard(file_in(folder, "a.bin")).size() == 6);
}

TEST_CASE("expand_glob sorts, takes plain names and refuses a pattern without files") {
    const TemporaryFolder folder;
    for (const char* name : {"b_2.bin", "b_10.bin", "B_1.bin", "[x].bin", "c.txt"}) write_text(file_in(folder, name), "");
    const std::vector<std::string> sorted = {file_in(folder, "B_1.bin"), file_in(folder, "b_10.bin"), file_in(folder, "b_2.bin")};
    CHECK(expand_glob(file_in(folder, "[bB]_*.bin")) == sorted);
    CHECK(expand_glob(file_in(folder, "[x].bin")) == std::vector<std::string>{file_in(folder, "[x].bin")});
    std::filesystem::create_directory(folder / "a");
    write_text(file_in(folder, "a/b_1.bin"), "");
    CHECK(expand_glob(file_in(folder, "*/b_?.bin")) == std::vector<std::string>{file_in(folder, "a/b_1.bin")});
    CHECK(expand_glob(file_in(folder, "?/b_1.bin")) == std::vector<std::string>{file_in(folder, "a/b_1.bin")});
    std::filesystem::create_directory(folder / "a\\b");
    write_text(file_in(folder, "a\\b/b_1.bin"), "");
    CHECK(expand_glob(file_in(folder, "a\\\\b/b_?.bin")) == std::vector<std::string>{file_in(folder, "a\\b/b_1.bin")});
    CHECK(says(error_of([&] { expand_glob(file_in(folder, "*.none")); }), Exit::data, {"*.none"}));
}

TEST_CASE("stream: shards of both widths read as one sequence, over every boundary") {
    const TemporaryFolder folder;
    write_shard(file_in(folder, "s_1.bin"), ramp(7), 512);
    write_shard(file_in(folder, "s_2.bin"), ramp(1, 7), 151936);
    write_shard(file_in(folder, "s_3.bin"), ramp(12, 8), 512);
    const TokenStream stream(file_in(folder, "s_*.bin"), 512);
    CHECK(stream.shards() == 3);
    REQUIRE(stream.size() == 20);
    for (size_t start = 0; start <= 20; ++start)
        for (size_t count = 0; start + count <= 20; ++count) {
            std::vector<int32_t> tokens(count);
            stream.copy(start, count, tokens.data());
            REQUIRE(tokens == as_int32(ramp(count, static_cast<uint32_t>(start))));
        }
    int32_t token;
    CHECK(says(error_of([&] { stream.copy(20, 1, &token); }), Exit::data, {"s_*.bin", "20"}));
    CHECK(stream.tokenizer().empty());
}
