#include "data/documents/documents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/retry.h"

namespace {

constexpr size_t read_bytes = size_t{1} << 18;
constexpr size_t part_bytes = size_t{1} << 22;
constexpr size_t most_part_bytes = size_t{1} << 26;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Only before a space: "<think>" can be one added token, and some tokenizers prepend a space to a text without one.
bool is_safe_cut(std::string_view text, size_t cut) { return is_letter(text[cut - 1]) && text[cut] == ' '; }

// `cut`, or the beginning of the UTF-8 character that `cut` would split.
size_t character_boundary(std::string_view text, size_t cut) {
    size_t boundary = cut;
    while (boundary > 0 && cut - boundary < 3 && (static_cast<unsigned char>(text[boundary]) & 0xC0) == 0x80) --boundary;
    return boundary > 0 ? boundary : cut;
}

// An unnamed file in `folder`, deleted when it is closed.
Descriptor temporary_file(const std::string& folder) {
    std::string name = folder + "/stdin_XXXXXX";
    Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
    if (!file.is_open()) fail(Exit::data, folder, ": cannot hold a temporary file: ", last_os_error());
    ::unlink(name.c_str());
    return file;
}

// The position of the first blank line in `text`, npos if there is none. Unless `complete`, more text may follow.
size_t first_blank_line(std::string_view text, bool at_line_start, bool complete) {
    size_t line = at_line_start ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
    while (line < text.size()) {
        const size_t newline = text.find('\n', line);
        if (newline == std::string_view::npos && !complete) return newline;
        const size_t end = std::min(newline, text.size());
        if (is_blank(text.substr(line, end - line))) return line;
        line = end + 1;
    }
    return std::string_view::npos;
}

// "[json.exception.parse_error.101] parse error at line 1, column 5: ..." -> "parse error at column 5: ...": the parser's line is
// always 1 and would be mistaken for the file's.
std::string reason(const nlohmann::json::exception& error) {
    std::string text = error.what();
    const size_t bracket = text.find("] ");
    if (bracket != std::string::npos) text.erase(0, bracket + 2);
    const std::string first_line = "line 1, ";
    const size_t at = text.find(first_line);
    if (at != std::string::npos) text.erase(at, first_line.size());
    return text;
}

// The object in a line of a JSON Lines file.
nlohmann::json object_of_line(std::string_view json, const std::string& file, uint64_t line) {
    if (json.find('\0') != std::string_view::npos)   // the parser would stop there
        fail(Exit::data, file, ":", line, ": has a zero byte");
    try {
        nlohmann::json object = parse_json(json);
        if (!object.is_object()) fail(Exit::data, file, ":", line, ": a JSON object is expected, this is ", object.type_name());
        return object;
    } catch (const nlohmann::json::exception& error) {
        fail(Exit::data, file, ":", line, ": ", reason(error));
    }
}

// The object's string under a key; `hint` ends the error about a missing key.
std::string string_of(nlohmann::json& object, const std::string& key, const std::string& hint, const std::string& file,
                      uint64_t line) {
    const auto found = object.find(key);
    if (found == object.end()) fail(Exit::data, file, ":", line, ": the object has no field \"", key, "\"", hint);
    if (!found->is_string())
        fail(Exit::data, file, ":", line, ": field \"", key, "\" must be a string, it is ", found->type_name());
    return std::move(found->get_ref<std::string&>());
}

[[noreturn]] void fail_at_name(const std::string& path) {
    const std::string hint = path.ends_with(".parquet") ? "; scripts/fineweb.py reads parquet files"
                                                        : "; for other files of text use: ./tokenize ... - < " + path;
    fail(Exit::usage, path, ": ends in neither .txt nor .jsonl (optionally followed by .gz, .xz or .zst)", hint);
}

}  // namespace

size_t part_length(std::string_view text) {
    if (text.size() <= part_bytes) return text.size();
    for (size_t cut = part_bytes; cut > 0; --cut)
        if (is_safe_cut(text, cut)) return cut;
    const size_t end = std::min(text.size(), most_part_bytes + 1);
    for (size_t cut = part_bytes + 1; cut < end; ++cut)
        if (is_safe_cut(text, cut)) return cut;
    return text.size() <= most_part_bytes ? text.size() : character_boundary(text, most_part_bytes);
}

std::string text_of_json_line(std::string_view json, const std::string& field, const std::string& file, uint64_t line) {
    nlohmann::json object = object_of_line(json, file, line);
    const bool has_prompt = object.contains("prompt") && object.contains("completion");
    return string_of(object, field,
                     has_prompt ? "; --mask-prompts reads its prompt and completion" : "; --text-field names the one to take", file,
                     line);
}

PromptAndCompletion prompt_of_json_line(std::string_view json, const std::string& file, uint64_t line) {
    nlohmann::json object = object_of_line(json, file, line);
    const std::string hint = "; with --mask-prompts every line has a \"prompt\" and a \"completion\"";
    PromptAndCompletion found{string_of(object, "prompt", hint, file, line), string_of(object, "completion", hint, file, line)};
    if (found.completion.empty()) fail(Exit::data, file, ":", line, ": the completion is empty, so that it has no targets");
    return found;
}

Input::Input(std::string name, bool json_lines, Descriptor file, std::string encoding)
    : name_(std::move(name)), json_lines_(json_lines), encoding_(std::move(encoding)), file_(std::move(file)) {
    if (file_.is_open()) examine();
}

void Input::examine() {
    struct stat status;
    if (::fstat(file_.get(), &status) != 0) fail(Exit::data, name_, ": cannot be examined: ", last_os_error());
    if (!S_ISREG(status.st_mode)) fail(Exit::data, name_, ": is not a regular file");
    size_ = static_cast<uint64_t>(status.st_size);
    modified_ = int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
}

Input Input::open(const std::string& path, const DocumentRules& rules) {
    if (path == "-") {
        Input input("standard input", rules.json_standard_input, Descriptor(), rules.encoding);
        input.standard_input_ = true;
        return input;
    }
    if (std::filesystem::is_directory(path)) fail(Exit::data, path, ": is a folder; give the files in it (", path, "/*.txt)");
    const Compression compression = compression_of(path);
    const std::string plain = compression == Compression::none ? path : path.substr(0, path.rfind('.'));
    if (!plain.ends_with(".jsonl") && !plain.ends_with(".txt")) fail_at_name(path);
    const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;   // a named pipe must not block
    Descriptor file(retried([&] { return ::open(path.c_str(), flags); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    Input input(path, plain.ends_with(".jsonl"), std::move(file), rules.encoding);
    input.compression_ = compression;
    return input;
}

void Input::copy_standard_input(const std::string& folder, const Tick& tick) {
    Descriptor copy = temporary_file(folder);
    std::vector<char> buffer(read_bytes);
    while (true) {
        tick();
        const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) continue;   // tick() decides whether the signal ends the work
        if (got < 0) fail(Exit::data, "standard input cannot be read: ", last_os_error());
        if (got == 0) break;
        if (!write_all(copy.get(), buffer.data(), static_cast<size_t>(got)))
            fail(Exit::data, folder, ": cannot hold a copy of standard input: ", last_os_error(),
                 "; --val-tokens needs no copy");
    }
    file_ = std::move(copy);
    examine();
    modified_ = 0;   // of the copy
}

std::unique_ptr<ByteStream> Input::stream(const std::atomic<bool>& stop) const {
    const auto bytes = [&] {
        if (!file_.is_open()) return open_pipe(name_, STDIN_FILENO, stop);
        if (compression_ != Compression::none) return open_compressed(name_, compression_);
        return open_plain(name_, file_.get(), size_);
    };
    return as_utf8(name_, bytes(), encoding_);
}

bool ByteWindow::grow() {
    if (buffer_.size() - end_ < read_bytes) {
        std::copy(buffer_.begin() + ptrdiff_t(begin_), buffer_.begin() + ptrdiff_t(end_), buffer_.begin());
        end_ -= begin_;
        begin_ = 0;
        buffer_.resize(std::max(buffer_.size(), 2 * (end_ + read_bytes)));   // doubled, so that moves are rare
    }
    const size_t got = stream_->read(buffer_.data() + end_, buffer_.size() - end_);
    end_ += got;
    return got > 0;
}

std::string_view ByteWindow::peek(size_t bytes) {
    while (end_ - begin_ < bytes && grow()) {}
    return seen().substr(0, bytes);
}

DocumentReader::DocumentReader(const Input& input, const DocumentRules& rules, const std::atomic<bool>& stop, const Place& start)
    : input_(input), rules_(rules), window_(input.stream(stop)) {
    if (input.is_standard_input()) hasher_.emplace();
    advance_to(start);
}

void DocumentReader::advance(size_t bytes) {
    if (bytes == 0) return;
    const std::string_view passed = window_.seen().substr(0, bytes);
    if (hasher_) hasher_->add(passed.data(), passed.size());
    place_.offset += bytes;
    place_.after_newline = passed.back() == '\n';
    window_.drop(bytes);
}

void DocumentReader::advance_to(const Place& start) {
    if (!hasher_) window_.skip(start.offset);
    while (hasher_ && place_.offset < start.offset && !window_.peek(1).empty())
        advance(std::min<uint64_t>(window_.seen().size(), start.offset - place_.offset));
    if (hasher_ && start.offset > 0 && hexadecimal(hasher_->digest()) != start.digest)
        fail(Exit::data, input_.name(), ": the first ", start.offset, " bytes differ from the stopped run's; give it "
             "the same text again, or remove the run's NAME_progress.json in --out to start over");
    place_ = start;
}

bool DocumentReader::next(Piece& piece) {
    return input_.json_lines() ? next_line(piece) : next_text(piece);
}

bool DocumentReader::next_line(Piece& piece) {
    while (true) {
        size_t newline = std::string_view::npos, searched = 0;
        do {
            const std::string_view seen = window_.seen();
            newline = seen.find('\n', searched);
            searched = seen.size();
            if (std::min(newline, searched) > longest_json_line)
                fail(Exit::data, input_.name(), ":", place_.line + 1, ": the line is longer than ", longest_json_line,
                     " bytes; is this a JSON Lines file?");
        } while (newline == std::string_view::npos && window_.grow());
        const size_t length = std::min(newline, window_.seen().size());
        if (length == 0 && newline == std::string_view::npos) return false;

        piece.text = window_.seen().substr(0, length);
        piece.place = place_;
        if (hasher_) piece.place.digest = hexadecimal(hasher_->digest());
        advance(std::min(length + 1, window_.seen().size()));
        ++place_.line;
        // In errors a trailing newline would count as another line.
        while (!piece.text.empty() && is_space(piece.text.back())) piece.text.remove_suffix(1);
        if (!piece.text.empty()) return true;
    }
}

// Before a document: skips lines of white space.
void DocumentReader::skip_blank_lines() {
    while (true) {
        const std::string_view text = window_.peek(part_bytes);
        const size_t word = std::find_if_not(text.begin(), text.end(), is_space) - text.begin();
        const bool ends = text.size() < part_bytes;
        const size_t blank = word == text.size() && ends ? word : text.substr(0, word).rfind('\n') + 1;   // npos + 1 is 0
        advance(blank);
        if (blank == 0 || word < text.size()) return;
    }
}

bool DocumentReader::next_text(Piece& piece) {
    if (rules_.split_on_blank_line && place_.document_bytes == 0) skip_blank_lines();
    std::string_view text;
    size_t length = 0;
    bool ends = false;   // the document ends where `text` does
    for (const size_t most : {part_bytes, most_part_bytes}) {
        text = window_.peek(most + 1);
        ends = text.size() <= most;
        if (rules_.split_on_blank_line && !text.empty()) {
            const size_t blank = first_blank_line(text, place_.after_newline, ends);
            ends = ends || blank != std::string_view::npos;
            text = text.substr(0, blank);
        }
        length = part_length(text);
        if (length <= part_bytes) break;
    }
    if (length == 0 && place_.document_bytes > 0) {   // only blank lines were left of the document
        place_.document_bytes = 0;
        return next_text(piece);
    }
    piece.text = text.substr(0, length);
    piece.place = place_;
    if (hasher_) piece.place.digest = hexadecimal(hasher_->digest());
    advance(length);
    place_.document_bytes = ends && length == text.size() ? 0 : place_.document_bytes + length;
    return length > 0;
}
