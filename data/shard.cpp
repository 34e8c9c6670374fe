#include "data/shard.h"

#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "model/base/error.h"
#include "model/base/hash.h"

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

// The scan for bad tokens releases this much of a file at a time, so that checking a large shard does not inflate the process's resident
// memory.
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

// ---- large shards that were checked before

std::string cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache && *cache) return std::string(cache) + "/train_gpt/shards";
    return home && *home ? std::string(home) + "/.cache/train_gpt/shards" : "";
}

// A record of the check of a large shard, so that runs need not read it again: one small file in $XDG_CACHE_HOME/train_gpt/shards, or
// ~/.cache/train_gpt/shards. Deleting it only costs another check. It identifies the state of the shard by path, size, inode, mtime and
// ctime (which programs cannot set), and by a hash of the first and last 64 KiB.
class CheckedShard {
public:
    // Of the file `path`, mapped at `bytes`.
    CheckedShard(const std::string& path, std::span<const std::byte> bytes) {
        std::error_code unknown;
        const std::string absolute = fs::canonical(path, unknown).string(), folder = cache_folder();
        struct stat status;
        if (bytes.size() < smallest_remembered_shard || unknown || folder.empty() || ::stat(absolute.c_str(), &status) != 0) return;
        const size_t end = std::min<size_t>(bytes.size(), 65536);
        const uint64_t both_ends = xxh3(bytes.last(end).data(), end, xxh3(bytes.first(end)));
        std::ostringstream identity;
        identity << absolute << ' ' << status.st_size << ' ' << status.st_ino << ' ' << status.st_mtim.tv_sec << '.'
                 << status.st_mtim.tv_nsec << ' ' << status.st_ctim.tv_sec << '.' << status.st_ctim.tv_nsec << ' '
                 << hexadecimal(both_ends);
        identity_ = identity.str();
        file_ = folder + "/" + hexadecimal(xxh3(absolute));
    }

    // The file's hash, if an earlier check of this exact file took it and found all tokens below `vocabulary`; else "".
    std::string passed_hash(uint32_t vocabulary) const {
        std::ifstream record(file_);
        std::string identity, hash;
        uint32_t largest;
        const bool is_this = std::getline(record, identity) && identity == identity_;
        return is_this && record >> largest >> hash && largest < vocabulary ? hash : "";   // older records may lack the hash
    }

    void remember(uint32_t largest_token, const std::string& xxh64) const {
        if (file_.empty()) return;
        std::error_code ignored;
        fs::create_directories(fs::path(file_).parent_path(), ignored);
        replace_file(file_, identity_ + "\n" + std::to_string(largest_token) + " " + xxh64 + "\n");   // without it: another check
    }

private:
    std::string file_;        // path of the record; "" for a small shard, or if there is no place for it
    std::string identity_;    // first line of the record
};

}  // namespace

Shard::Shard(const std::string& path) : path_(path), map_(as_data([&] { return MappedFile(path); })) {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) fail(Exit::data, path, ": cannot be examined: ", last_os_error());
    inode_ = status.st_ino;
    if (file_bytes() < shard_header_bytes)
        fail(Exit::data, path, ": has ", file_bytes(), " bytes, the header of a token shard alone has ", shard_header_bytes);
    Header header;
    std::memcpy(header.data(), bytes(), sizeof header);
    const Format& format = check_header(path, header, file_bytes());
    tokens_ = static_cast<uint64_t>(header[2]);
    bytes_per_token_ = format.bytes_per_token;
    masked_ = header[1] == format.version_of(true);
}

void Shard::require_whole() const {
    // A different file under this name, or none, is harmless: the mapping keeps the original alive.
    struct stat status;
    const bool same_file = ::stat(path_.c_str(), &status) == 0 && status.st_ino == inode_;
    if (same_file && static_cast<uint64_t>(status.st_size) < file_bytes())
        fail(Exit::data, path_, ": was cut short while it was in use: from ", file_bytes(), " to ", status.st_size, " bytes");
}

// Releases the pages of bytes [begin, end) of the file, and those that the kernel maps with them on a page fault (at most 2 MiB,
// aligned). They stay in the page cache, but resident memory does not grow with the data read.
void Shard::release(uint64_t begin, uint64_t end) const {
    constexpr uint64_t around = uint64_t{2} << 20;
    const uint64_t first = begin / around * around;
    map_.release(map_.bytes().subspan(first, std::min((end + around - 1) / around * around, file_bytes()) - first));
}

void Shard::copy(uint64_t start, size_t count, int32_t* out) const {
    require_whole();
    const char* const payload = bytes() + shard_header_bytes;
    if (bytes_per_token_ == narrow_format.bytes_per_token) std::copy_n(reinterpret_cast<const uint16_t*>(payload) + start, count, out);
    else std::copy_n(reinterpret_cast<const uint32_t*>(payload) + start, count, out);
    const uint64_t begin = shard_header_bytes + start * static_cast<uint64_t>(bytes_per_token_);
    release(begin, begin + count * static_cast<uint64_t>(bytes_per_token_));
}

void Shard::hide_targets(uint64_t start, size_t count, int32_t* targets) const {
    if (!masked_) return;
    require_whole();
    for (size_t i = 0; i < count; ++i)
        if (!mask()[start + i]) targets[i] = -1;
    release(mask_begin() + start, mask_begin() + start + count);
}

uint64_t Shard::count_targets(uint64_t start, uint64_t count) const {
    if (!masked_) return count;
    require_whole();
    const uint8_t* const first = mask() + start;
    const auto counted = static_cast<uint64_t>(std::count(first, first + count, uint8_t{1}));
    release(mask_begin() + start, mask_begin() + start + count);
    return counted;
}

// The largest of the numbers in bytes [begin, end) of the file, which are added to the hasher block by block. Calls refuse(byte, number)
// for the first that is not below `limit`.
template <class Number, class Refuse>
uint32_t Shard::scan(uint64_t begin, uint64_t end, uint32_t limit, FileHasher& hasher, Refuse refuse) const {
    Number largest = 0;
    for (uint64_t at = begin; at < end; at += block_bytes) {
        if ((at - begin) % scan_bytes == 0) {
            release(begin, at);
            const uint64_t page = at / 65536 * 65536;   // where an advised range has to begin: a multiple of every page size
            ::madvise(const_cast<char*>(bytes()) + page, std::min(at + scan_bytes, end) - page, MADV_WILLNEED);
        }
        const uint64_t block_end = std::min(at + block_bytes, end);
        const auto* numbers = reinterpret_cast<const Number*>(bytes() + at);
        const size_t count = (block_end - at) / sizeof(Number);
        hasher.add(numbers, block_end - at);
        largest = std::max(largest, static_cast<Number>(largest_of(numbers, count)));
        if (largest >= limit) {
            const size_t bad = first_outside(numbers, count, limit);
            refuse(at + bad * sizeof(Number), uint64_t{numbers[bad]});
        }
    }
    release(begin, end);
    return largest;
}

// The largest token; all bytes of the file are added to the hasher.
uint32_t Shard::scan_all(uint32_t vocabulary, FileHasher& hasher) const {
    const auto refuse_token = [&](uint64_t byte, uint64_t id) {
        fail(Exit::data, path_, ": token ", (byte - shard_header_bytes) / static_cast<uint64_t>(bytes_per_token_), " at byte ", byte,
             " is ", id, ", but the vocabulary has ", vocabulary, " ids (0 to ", vocabulary - 1,
             "); was it written with the tokenizer of this model?");
    };
    const auto refuse_mask = [&](uint64_t byte, uint64_t value) {
        fail(Exit::data, path_, ": the loss mask has ", value, " at byte ", byte, ", for token ", byte - mask_begin(),
             "; 1 is a token that counts as a target, 0 one that does not");
    };
    hasher.add(bytes(), shard_header_bytes);
    const uint32_t largest = bytes_per_token_ == narrow_format.bytes_per_token
                                 ? scan<uint16_t>(shard_header_bytes, mask_begin(), vocabulary, hasher, refuse_token)
                                 : scan<uint32_t>(shard_header_bytes, mask_begin(), vocabulary, hasher, refuse_token);
    scan<uint8_t>(mask_begin(), file_bytes(), 2, hasher, refuse_mask);
    return largest;
}

std::string Shard::check_content(int vocabulary, const std::string& xxh64, bool again) const {
    const auto limit = static_cast<uint32_t>(vocabulary);
    const CheckedShard known(path_, map_.bytes());
    const std::string passed = again ? "" : known.passed_hash(limit);
    if (!passed.empty() && (xxh64.empty() || passed == xxh64)) return passed;
    FileHasher hasher;
    const uint32_t largest = scan_all(limit, hasher);
    const std::string hash = hexadecimal(hasher.digest());
    if (!xxh64.empty() && hash != xxh64)
        fail(Exit::data, path_, ": is damaged or was changed: the hash of its bytes is ", hash, ", its manifest says ", xxh64,
             "; copy it again from where it was made, or run ./tokenize again");
    known.remember(largest, hash);
    return hash;
}

ShardWriter::ShardWriter(const std::string& path, int vocabulary) : file_(path), vocabulary_(vocabulary) {
    const Header zeros = {};
    file_.write(zeros.data(), sizeof zeros);   // publish() fills it in
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

ShardInfo ShardWriter::publish() {
    const Format& format = vocabulary_ > 65536 ? wide_format : narrow_format;
    const int32_t start[3] = {format.magic, format.version_of(!mask_.empty()), static_cast<int32_t>(tokens_)};
    file_.write(mask_.data(), mask_.size());
    file_.overwrite_start(start, sizeof start);
    file_.publish();
    const uint64_t bytes = shard_header_bytes + tokens_ * static_cast<uint64_t>(format.bytes_per_token) + mask_.size();
    return {fs::path(file_.path()).filename().string(), tokens_, bytes, file_hash(file_.path())};
}

// Adds to `found` the paths in `folder` that match the parts of a pattern, from `part` on. Exit::checkpoint if a folder
// cannot be listed to its end, where glob() would return what it has read.
static void add_matches(const fs::path& folder, fs::path::iterator part, fs::path::iterator end, std::vector<std::string>& found) {
    if (part == end) return found.push_back(folder.string());
    if (part->string().find_first_of("*?[\\") == std::string::npos) {
        if (path_exists(folder / *part)) add_matches(folder / *part, std::next(part), end, found);
        return;
    }
    for (const fs::path& entry : entries_of(folder.empty() ? "." : folder))
        if (::fnmatch(part->c_str(), entry.filename().c_str(), FNM_PERIOD) == 0)
            add_matches(folder / entry.filename(), std::next(part), end, found);
}

std::vector<std::string> expand_glob(const std::string& pattern, const std::string& expected) {
    std::error_code ignored;
    if (fs::exists(pattern, ignored)) return {pattern};   // a name may contain brackets
    const fs::path parts(pattern);
    std::vector<std::string> paths;
    as_data([&] { add_matches("", parts.begin(), parts.end(), paths); });
    if (paths.empty()) fail(Exit::data, "no file matches '", pattern, "'; expected there: ", expected);
    std::sort(paths.begin(), paths.end());   // not by the locale, in which ranks may differ
    return paths;
}
