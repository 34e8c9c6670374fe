#include "data/shard.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "data/checked_shard.h"
#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/hash.h"
#include "model/base/retry.h"

static_assert(std::endian::native == std::endian::little, "shards are little-endian and mapped without conversion");

namespace fs = std::filesystem;

namespace {

struct Format {
    int32_t magic;
    int32_t version;          // without a mask; with one it is the next number
    int bytes_per_token;

    int32_t version_of(bool masked) const { return version + masked; }
};
constexpr Format narrow_format = {20240520, 1, 2};
constexpr Format wide_format = {20240801, 7, 4};
constexpr int32_t evaluation_magic = 20240522;

using Header = std::array<int32_t, shard_header_bytes / sizeof(int32_t)>;   // [0] magic, [1] version, [2] tokens

// The scan for bad tokens maps and releases this much of a file at a time, so that checking a large shard does not inflate the
// process's resident memory. A multiple of every page size.
constexpr uint64_t scan_bytes = uint64_t{64} << 20;
constexpr uint64_t block_bytes = uint64_t{1} << 18;   // is in the processor's cache for both the largest token and the hash

const Format& format_of(const std::string& path, int32_t magic) {
    if (magic == narrow_format.magic) return narrow_format;
    if (magic == wide_format.magic) return wide_format;
    if (magic == evaluation_magic)
        fail(Exit::data, path, ": is an evaluation file (magic ", magic, "), not a token shard");
    const auto swapped = static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(magic)));
    const bool big_endian = swapped == narrow_format.magic || swapped == wide_format.magic;
    fail(Exit::data, path, ": is not a token shard: it starts with magic ", magic, " at byte 0, expected ",
         narrow_format.magic, " (16-bit tokens) or ", wide_format.magic, " (32-bit tokens)",
         big_endian ? "; its bytes are in big-endian order" : "; ./tokenize writes shards from text");
}

Header read_header(const std::string& path, int file) {
    Header header;
    for (size_t done = 0; done < sizeof header;) {
        char* const rest = reinterpret_cast<char*>(header.data()) + done;
        const ssize_t got = retried([&] { return ::pread(file, rest, sizeof header - done, static_cast<off_t>(done)); });
        if (got <= 0) fail(Exit::data, path, ": its header cannot be read: ", got == 0 ? "the file ends before" : last_os_error());
        done += static_cast<size_t>(got);
    }
    return header;
}

// The shard's format. Exit::data unless header and file size agree.
const Format& check_header(const std::string& path, const Header& header, uint64_t file_bytes) {
    const Format& format = format_of(path, header[0]);
    const bool masked = header[1] == format.version_of(true);
    if (!masked && header[1] != format.version)
        fail(Exit::data, path, ": has version ", header[1], " at byte 4, expected ", format.version, " with magic ", format.magic,
             ", or ", format.version_of(true), " with a loss mask");
    if (header[2] <= 0)
        fail(Exit::data, path, ": header says ", header[2], " tokens at byte 8, expected at least 1");
    const uint64_t expected = shard_header_bytes + static_cast<uint64_t>(header[2]) * (format.bytes_per_token + masked);
    if (file_bytes != expected)
        fail(Exit::data, path, ": is ", file_bytes < expected ? "cut short" : "too long", ": it has ", file_bytes, " bytes, but ",
             header[2], " tokens of ", format.bytes_per_token, " bytes", masked ? " and their mask" : "",
             ", as its header says, make ", expected);
    return format;
}

// Releases the pages of bytes [begin, end) of the mapping, and those that the kernel maps with them on a page fault (at most 2 MiB,
// aligned). They stay in the page cache, but resident memory does not grow with the data read.
void release(void* map, uint64_t begin, uint64_t end, uint64_t file_bytes) {
    constexpr uint64_t around = uint64_t{2} << 20;
    const uint64_t first = begin / around * around;
    const uint64_t last = std::min((end + around - 1) / around * around, file_bytes);
    madvise(static_cast<char*>(map) + first, last - first, MADV_DONTNEED);
}

template <class Token>
void widen(const void* payload, uint64_t start, size_t count, int32_t* out) {
    const Token* tokens = static_cast<const Token*>(payload) + start;
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(tokens[i]);
}

template <class Token>
uint32_t largest_of(const Token* tokens, size_t count) {
    Token largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, tokens[i]);
    return largest;
}

// Precondition: some token is not below `vocabulary`. The index of the first.
template <class Token>
size_t first_outside(const Token* tokens, size_t count, uint32_t vocabulary) {
    return std::find_if(tokens, tokens + count, [&](Token token) { return token >= vocabulary; }) - tokens;
}

// Calls use(begin, end) for blocks of bytes [begin, end) of the mapping, in order, and releases their pages.
template <class Use>
void for_blocks(char* map, uint64_t begin, uint64_t end, uint64_t file_bytes, Use use) {
    for (uint64_t piece = begin; piece < end; piece += scan_bytes) {
        const uint64_t piece_end = std::min(piece + scan_bytes, end);
        const uint64_t page = piece / 65536 * 65536;   // where an advised range has to begin: a multiple of every page size
        madvise(map + page, piece_end - page, MADV_WILLNEED);
        for (uint64_t at = piece; at < piece_end; at += block_bytes) use(at, std::min(at + block_bytes, piece_end));
        release(map, piece, piece_end, file_bytes);
    }
}

// The largest token of a shard, whose tokens end at byte tokens_end of the file. Exit::data if any is not below `vocabulary`.
template <class Token>
uint32_t scan(const std::string& path, char* map, uint64_t tokens_end, uint64_t file_bytes, uint32_t vocabulary,
              FileHasher& hasher) {
    uint32_t largest = 0;
    hasher.add(map, shard_header_bytes);
    for_blocks(map, shard_header_bytes, tokens_end, file_bytes, [&](uint64_t begin, uint64_t end) {
        const Token* tokens = reinterpret_cast<const Token*>(map + begin);
        const size_t count = (end - begin) / sizeof(Token);
        hasher.add(tokens, end - begin);
        largest = std::max(largest, largest_of(tokens, count));
        if (largest < vocabulary) return;
        const size_t bad = first_outside(tokens, count, vocabulary);
        fail(Exit::data, path, ": token ", (begin - shard_header_bytes) / sizeof(Token) + bad, " at byte ", begin + bad * sizeof(Token),
             " is ", uint64_t{tokens[bad]}, ", but the vocabulary has ", vocabulary, " ids (0 to ", vocabulary - 1,
             "); was it written with the tokenizer of this model?");
    });
    return largest;
}

// Exit::data unless every byte of a mask, from byte mask_begin to the end of the file, is 0 or 1.
void scan_mask(const std::string& path, char* map, uint64_t mask_begin, uint64_t file_bytes, FileHasher& hasher) {
    for_blocks(map, mask_begin, file_bytes, file_bytes, [&](uint64_t begin, uint64_t end) {
        const auto* first = reinterpret_cast<const uint8_t*>(map + begin);
        hasher.add(first, end - begin);
        if (largest_of(first, end - begin) <= 1) return;
        const uint64_t bad = begin + first_outside(first, end - begin, 2);
        fail(Exit::data, path, ": the loss mask has ", int{static_cast<uint8_t>(map[bad])}, " at byte ", bad, ", for token ",
             bad - mask_begin, "; 1 is a token that counts as a target, 0 one that does not");
    });
}

}  // namespace

Shard::Shard(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer.
    const Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    struct stat status;
    if (::fstat(file.get(), &status) != 0) fail(Exit::data, path, ": cannot be examined: ", last_os_error());
    if (!S_ISREG(status.st_mode)) fail(Exit::data, path, ": is not a regular file, a token shard is expected");
    file_bytes_ = static_cast<uint64_t>(status.st_size);
    inode_ = status.st_ino;
    if (file_bytes_ < shard_header_bytes)
        fail(Exit::data, path, ": has ", file_bytes_, " bytes, the header of a token shard alone has ", shard_header_bytes);

    const Header header = read_header(path, file.get());
    const Format& format = check_header(path, header, file_bytes_);
    tokens_ = static_cast<uint64_t>(header[2]);
    bytes_per_token_ = format.bytes_per_token;
    masked_ = header[1] == format.version_of(true);

    void* map = ::mmap(nullptr, file_bytes_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (map == MAP_FAILED) fail(Exit::data, path, ": cannot be mapped into memory: ", last_os_error());
    map_ = map;
}

Shard::~Shard() { unmap(); }

Shard::Shard(Shard&& other) noexcept { *this = std::move(other); }

Shard& Shard::operator=(Shard&& other) noexcept {
    if (this == &other) return *this;
    unmap();
    path_ = std::move(other.path_);
    map_ = std::exchange(other.map_, nullptr);
    file_bytes_ = std::exchange(other.file_bytes_, 0);
    inode_ = other.inode_;
    tokens_ = std::exchange(other.tokens_, 0);
    bytes_per_token_ = other.bytes_per_token_;
    masked_ = other.masked_;
    return *this;
}

void Shard::unmap() {
    if (map_) ::munmap(map_, file_bytes_);
    map_ = nullptr;
}

uint64_t Shard::fingerprint(uint64_t seed) const {
    require_whole();
    return hash_of_both_ends(map_, file_bytes_, xxh3(&file_bytes_, sizeof file_bytes_, seed));
}

void Shard::require_whole() const {
    // A different file under this name, or none, is harmless: the mapping keeps the original alive.
    struct stat status;
    const bool same_file = ::stat(path_.c_str(), &status) == 0 && status.st_ino == inode_;
    if (same_file && static_cast<uint64_t>(status.st_size) < file_bytes_)
        fail(Exit::data, path_, ": was cut short while it was in use: from ", file_bytes_, " to ", status.st_size, " bytes");
}

void Shard::copy(uint64_t start, size_t count, int32_t* out) const {
    require_whole();
    if (bytes_per_token_ == narrow_format.bytes_per_token) widen<uint16_t>(payload(), start, count, out);
    else widen<uint32_t>(payload(), start, count, out);
    const uint64_t begin = shard_header_bytes + start * static_cast<uint64_t>(bytes_per_token_);
    release(map_, begin, begin + count * static_cast<uint64_t>(bytes_per_token_), file_bytes_);
}

void Shard::hide_targets(uint64_t start, size_t count, int32_t* targets) const {
    if (!masked_) return;
    require_whole();
    for (size_t i = 0; i < count; ++i)
        if (!mask()[start + i]) targets[i] = -1;
    release(map_, mask_begin() + start, mask_begin() + start + count, file_bytes_);
}

uint64_t Shard::count_targets(uint64_t start, uint64_t count) const {
    if (!masked_) return count;
    require_whole();
    const uint8_t* const first = mask() + start;
    const auto counted = static_cast<uint64_t>(std::count(first, first + count, uint8_t{1}));
    release(map_, mask_begin() + start, mask_begin() + start + count, file_bytes_);
    return counted;
}

// The largest token; all bytes of the file are added to the hasher.
uint32_t Shard::scan_all(uint32_t vocabulary, FileHasher& hasher) const {
    char* const map = static_cast<char*>(map_);
    const auto scan_tokens = bytes_per_token_ == narrow_format.bytes_per_token ? scan<uint16_t> : scan<uint32_t>;
    const uint32_t largest = scan_tokens(path_, map, mask_begin(), file_bytes_, vocabulary, hasher);
    if (masked_) scan_mask(path_, map, mask_begin(), file_bytes_, hasher);
    return largest;
}

std::string Shard::check_content(int vocabulary, const std::string& xxh64, bool again) const {
    const auto limit = static_cast<uint32_t>(vocabulary);
    const bool remembered = file_bytes_ >= smallest_remembered_shard;
    const CheckedShard known = remembered ? CheckedShard(path_, map_, file_bytes_) : CheckedShard();
    const std::string passed = remembered && !again ? known.passed_hash(limit) : "";
    if (!passed.empty() && (xxh64.empty() || passed == xxh64)) return passed;
    FileHasher hasher;
    const uint32_t largest = scan_all(limit, hasher);
    const std::string hash = hasher.digest();
    if (!xxh64.empty() && hash != xxh64)
        fail(Exit::data, path_, ": is damaged or was changed: the hash of its bytes is ", hash, ", its manifest says ", xxh64,
             "; copy it again from where it was made, or run ./tokenize again");
    if (remembered) known.remember(largest, hash);
    return hash;
}

ShardWriter::ShardWriter(const std::string& path, int vocabulary) : file_(path), vocabulary_(vocabulary) {
    const Header zeros = {};
    file_.write(zeros.data(), sizeof zeros);   // finish() fills it in
}

void ShardWriter::write(std::span<const uint32_t> ids, std::span<const uint8_t> mask) {
    if (mask_.size() + mask.size() != (mask.empty() && mask_.empty() ? 0 : tokens_ + ids.size()))
        throw std::logic_error("a shard's mask is for all of its tokens");
    mask_.insert(mask_.end(), mask.begin(), mask.end());
    if (const auto limit = static_cast<uint32_t>(vocabulary_); !ids.empty() && largest_of(ids.data(), ids.size()) >= limit)
        fail(Exit::data, file_.path(), ": token id ", ids[first_outside(ids.data(), ids.size(), limit)],
             " is not below the vocabulary of ", vocabulary_);
    tokens_ += ids.size();
    if (tokens_ > std::numeric_limits<int32_t>::max())
        fail(Exit::data, file_.path(), ": a shard holds at most ", std::numeric_limits<int32_t>::max(), " tokens; use more shards");
    if (vocabulary_ > 65536) return file_.write(ids.data(), ids.size_bytes());
    narrow_.assign(ids.begin(), ids.end());
    file_.write(narrow_.data(), narrow_.size() * sizeof(uint16_t));
}

ShardInfo ShardWriter::finish() {
    const Format& format = vocabulary_ > 65536 ? wide_format : narrow_format;
    const int32_t start[3] = {format.magic, format.version_of(!mask_.empty()), static_cast<int32_t>(tokens_)};
    file_.write(mask_.data(), mask_.size());
    file_.overwrite(0, start, sizeof start);
    file_.finish();
    finished_ = true;
    return {fs::path(file_.path()).filename().string(), tokens_,
            shard_header_bytes + tokens_ * static_cast<uint64_t>(format.bytes_per_token) + mask_.size(), file_hash(file_.temporary())};
}

void ShardWriter::publish() {
    if (!finished_) finish();
    file_.publish();
}

/// glob() takes a folder that cannot be read, or not to its end, for one without files. Here folders are read through functions of our
/// own, which keep the error.
static thread_local int folder_error = 0;
static glob_t reports_folder_errors() {
    glob_t search = {};
    search.gl_opendir = [](const char* path) -> void* {
        DIR* folder = nullptr;
        do folder = ::opendir(path);
        while (!folder && errno == EINTR);
        if (!folder && errno != ENOENT && errno != ENOTDIR) folder_error = errno;
        return folder;
    };
    search.gl_readdir = [](void* folder) {
        dirent* entry = nullptr;
        do errno = 0, entry = ::readdir(static_cast<DIR*>(folder));
        while (!entry && errno == EINTR);
        if (!entry && errno != 0) folder_error = errno;
        return entry;
    };
    search.gl_closedir = [](void* folder) { ::closedir(static_cast<DIR*>(folder)); };
    search.gl_stat = [](const char* path, struct stat* info) { return retried([&] { return ::stat(path, info); }); };
    search.gl_lstat = [](const char* path, struct stat* info) { return retried([&] { return ::lstat(path, info); }); };
    return search;
}

std::vector<std::string> expand_glob(const std::string& pattern, const std::string& expected) {
    std::error_code ignored;
    if (fs::exists(pattern, ignored)) return {pattern};   // a name may contain brackets
    glob_t found = reports_folder_errors();
    folder_error = 0;
    const int result = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ALTDIRFUNC, nullptr, &found);
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (result == GLOB_NOSPACE) fail(Exit::out_of_memory, "not enough memory for the files that '", pattern, "' names");
    if (folder_error) fail(Exit::data, "the folder of '", pattern, "' cannot be listed: ", std::strerror(folder_error), "; try again");
    if (paths.empty()) fail(Exit::data, "no file matches '", pattern, "'; expected there: ", expected);
    std::sort(paths.begin(), paths.end());   // glob() would sort by the locale, and ranks may differ in that
    return paths;
}
