// Large shards are read whole once; a file that changed, or another one under its name, is read again.
#include <fcntl.h>
#include <sys/stat.h>

#include "data/manifest.h"
#include "data/stream.h"
#include "data/tokenizers/tokenizer.h"
#include "tests/shards.h"

namespace {

const size_t large = smallest_remembered_shard / 2;   // tokens of 16 bits

// A folder for shards, and the place of the records of their checks.
struct CheckCache {
    const TemporaryFolder folder;
    const std::filesystem::path records = folder / "cache/train_gpt/shards";

    CheckCache() { setenv("XDG_CACHE_HOME", file_in(folder, "cache").c_str(), 1); }
    ~CheckCache() { unsetenv("XDG_CACHE_HOME"); }
};

// Writes a token into the middle of the file, and gives the file back the times that it had, as far as a program can.
void change_secretly(const std::string& path, uint16_t token) {
    struct stat before;
    stat(path.c_str(), &before);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(shard_header_bytes + large);
    file.write(reinterpret_cast<const char*>(&token), 2);
    file.close();
    const timespec times[2] = {before.st_atim, before.st_mtim};
    utimensat(AT_FDCWD, path.c_str(), times, 0);
}

// Makes the only record say that the greatest token is another one, and of the hash nothing or what it said before.
void falsify_record(const std::filesystem::path& records, uint32_t largest, bool with_hash) {
    const auto record = records / names_in(records).front();
    std::string identity, before, hash;
    std::ifstream held(record);
    std::getline(held, identity);
    held >> before >> hash;
    std::ofstream(record) << identity << '\n' << largest << ' ' << (with_hash ? hash : "") << '\n';
}

// A shard of these tokens with a manifest beside it.
std::string write_listed(const TemporaryFolder& folder, const std::vector<uint32_t>& ids) {
    const std::string name = "x_train_000001.bin", path = write_shard(file_in(folder, name), ids, 500);
    const Manifest manifest = {"bytes", 512, 1, ids.size(), {{name, ids.size(), std::filesystem::file_size(path), file_hash(path)}}};
    write_text(file_in(folder, "x_manifest.json"), manifest_to_json(manifest));
    return path;
}

bool passes(const std::string& path, int vocabulary) {
    return error_of([&] { Shard(path).check_content(vocabulary); }).code == Exit::done;
}

}   // namespace

TEST_CASE_METHOD(CheckCache, "a large shard is checked once, and again when it has changed") {
    const std::string path = write_shard(file_in(folder, "x_train_000001.bin"), std::vector<uint32_t>(large, 99), 500);
    CHECK_FALSE(passes(path, 99));
    CHECK(names_in(records).empty());   // a failed check leaves no record
    CHECK(passes(path, 100));
    CHECK(names_in(records).size() == 1);

    falsify_record(records, 50, true);   // a bound of 60 passes by this record alone: the tokens are 99
    CHECK(passes(path, 60));
    CHECK_FALSE(passes(path, 50));
    change_secretly(path, 300);
    CHECK_FALSE(passes(path, 100));
    CHECK(passes(path, 301));
    CHECK_FALSE(passes(path, 300));

    std::filesystem::rename(path, path + ".other");   // its inode is in use, so the new file has another
    write_shard(path, std::vector<uint32_t>(large, 400), 500);
    CHECK_FALSE(passes(path, 301));
}

TEST_CASE_METHOD(CheckCache, "a shard whose tokens are not those of its manifest is refused, large or small") {
    const std::string path = write_listed(folder, std::vector<uint32_t>(large, 99));
    const auto error = [&](bool again) { return error_of([&] { TokenStream(path, 70000, again); }); };   // no token is out of range
    CHECK(error(false).code == Exit::done);
    const std::string record = (records / names_in(records).front()).string();
    const std::string passed = read_small_file(record);
    CHECK(passed.ends_with("\n99 " + file_hash(path) + "\n"));

    change_secretly(path, 98);   // its ends, size and greatest token are as before
    CHECK(says(error(false), {"x_train_000001.bin", file_hash(path), "its manifest says"}));
    CHECK(error(false).code == Exit::data);
    write_text(record, "a record of before\n99\n");
    CHECK(error(false).code == Exit::data);

    write_listed(folder, std::vector<uint32_t>(large, 97));
    CHECK(error(true).code == Exit::done);
    std::string manifest = read_small_file(file_in(folder, "x_manifest.json"));
    manifest.replace(manifest.find(file_hash(path)), 16, "0123456789abcdef");
    write_text(file_in(folder, "x_manifest.json"), manifest);   // the shard has passed with another hash
    CHECK(error(false).code == Exit::data);
    std::filesystem::remove(file_in(folder, "x_manifest.json"));
    CHECK(error(false).code == Exit::done);

    const std::string small = write_listed(folder, ramp(400));
    CHECK(error(false).code == Exit::done);
    write_shard(small, ramp(400, 1), 500);
    CHECK(error(false).code == Exit::data);
}

TEST_CASE("a manifest has a hash of every shard") {
    const TemporaryFolder folder;
    const std::string shard = write_listed(folder, ramp(400)), path = file_in(folder, "x_manifest.json");
    const std::string sound = read_small_file(path), hash = file_hash(shard);
    for (const std::string& wrong : {std::string(), std::string("0"), hash.substr(1) + "x"}) {
        std::string changed = sound;
        write_text(path, changed.replace(changed.find(hash), 16, wrong));
        const Error error = error_of([&] { TokenStream(shard, 512); });
        CHECK(says(error, Exit::data, {"x_manifest.json", "x_train_000001.bin", "\"" + wrong + "\"", "16 hexadecimal digits"}));
    }
}

TEST_CASE("a named pipe in place of a manifest or a tokenizer is refused at once") {
    const TemporaryFolder folder;
    const std::string path = write_listed(folder, ramp(400)), manifest = file_in(folder, "x_manifest.json");
    std::filesystem::remove(manifest);
    for (const std::string& pipe : {manifest, file_in(folder, "tokenizer.json"), file_in(folder, "y_tokenizer_config.json")})
        REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    write_text(file_in(folder, "y_tokenizer.json"), "{}");
    CHECK(says(error_of([&] { TokenStream(path, 512); }), {manifest, "is not a regular file"}));
    CHECK(says(error_of([&] { open_tokenizer(folder.path().string()); }), {"/tokenizer.json", "is not a regular file"}));
    CHECK(says(error_of([&] { open_tokenizer(file_in(folder, "y_tokenizer.json")); }), {"tokenizer_config.json", "regular file"}));
}

TEST_CASE_METHOD(CheckCache, "what has passed is read again where that is wanted") {
    const std::string path = write_listed(folder, std::vector<uint32_t>(large, 99)), hash = file_hash(path);
    CHECK_NOTHROW(Shard(path).check_content(512, hash));
    falsify_record(records, 600, true);
    CHECK_NOTHROW(Shard(path).check_content(512, hash, true));
    falsify_record(records, 50, true);
    CHECK(error_of([&] { Shard(path).check_content(60, hash, true); }).code == Exit::data);
    CHECK(Shard(path).check_content(60, hash) == hash);
    falsify_record(records, 50, false);   // a record of before, which has no hash to give
    CHECK(error_of([&] { Shard(path).check_content(60); }).code == Exit::data);
}

TEST_CASE_METHOD(CheckCache,
                 "shards without a manifest that differ between their ends have other fingerprints, whatever was checked before") {
    for (const int vocabulary : {512, 70000})   // of which 16 bits hold every token
        for (const size_t count : {size_t(100000), large}) {
            const std::string path = write_shard(file_in(folder, "a.bin"), std::vector<uint32_t>(count, 99), 500);
            const std::string listed = write_listed(folder, std::vector<uint32_t>(count, 99));
            const auto fingerprint = [&](const std::string& of) { return TokenStream(of, vocabulary).fingerprint(); };
            const std::string before = fingerprint(path);
            CHECK(fingerprint(path) == before);
            CHECK(fingerprint(listed) == before);
            std::vector<uint32_t> changed(count, 99);
            changed[count / 2] = 98;
            write_shard(path, changed, 500);
            CHECK(fingerprint(path) != before);
        }
}

TEST_CASE_METHOD(CheckCache, "small shards leave no trace, and without a place for records large ones are checked every time") {
    const std::string small = write_shard(file_in(folder, "small.bin"), ramp(100), 500);
    const std::string path = write_shard(file_in(folder, "large.bin"), std::vector<uint32_t>(large, 99), 500);
    CHECK(passes(small, 100));
    CHECK(names_in(folder / "cache").empty());
    setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
    CHECK(passes(path, 100));
    change_secretly(path, 300);
    CHECK_FALSE(passes(path, 100));
}
