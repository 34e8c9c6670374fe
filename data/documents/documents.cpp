#include "data/documents/documents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"

using namespace std::string_view_literals;

namespace {

constexpr size_t part_bytes = size_t{1} << 22;
constexpr size_t most_part_bytes = size_t{1} << 26;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Only before a space: "<think>" can be one added token, and some tokenizers prepend a space to a text without one.
bool is_safe_cut(std::string_view text, size_t cut) { return is_letter(text[cut - 1]) && text[cut] == ' '; }

// `cut`, or the beginning of the UTF-8 character that `cut` would split; the end of that character if it is the first.
size_t character_boundary(std::string_view text, size_t cut) {
    const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; };
    size_t boundary = cut;
    while (boundary > 0 && cut - boundary < 3 && continues(boundary)) --boundary;
    if (boundary > 0) return boundary;
    while (cut < std::min<size_t>(text.size(), 4) && continues(cut)) ++cut;
    return cut;
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

std::string text_of_json_line(std::string_view json, const std::string& field, const std::string& where) {
    const nlohmann::json object = parse_json_object(json, where, Exit::data);
    const bool has_prompt = object.contains("prompt") && object.contains("completion");
    const char* const hint = has_prompt ? "; --mask-prompts reads its prompt and completion" : "; --text-field names the one to take";
    return string_field(object, field, where, Exit::data, hint);
}

PromptAndCompletion prompt_of_json_line(std::string_view json, const std::string& where) {
    const nlohmann::json object = parse_json_object(json, where, Exit::data);
    const auto text = [&](const char* key) {
        return string_field(object, key, where, Exit::data, "; with --mask-prompts every line has a \"prompt\" and a \"completion\"");
    };
    PromptAndCompletion found{text("prompt"), text("completion")};
    if (found.completion.empty()) fail(Exit::data, where, ": the completion is empty, so that it has no targets");
    return found;
}

Input::Input(std::string name, bool json_lines, Descriptor file, Compression compression, std::string encoding)
    : name_(std::move(name)), json_lines_(json_lines), file_(std::move(file)), compression_(compression), encoding_(std::move(encoding)) {
    if (file_.is_open()) examine();
    // libarchive would report no error.
    if (compression_ != Compression::none && size_ == 0) fail(Exit::data, name_, ": is empty, so it is not a compressed file");
}

void Input::examine() {
    struct stat status;
    if (::fstat(file_.get(), &status) != 0) fail(Exit::data, name_, ": cannot be examined: ", last_os_error());
    if (!S_ISREG(status.st_mode)) fail(Exit::data, name_, ": is not a regular file");
    size_ = static_cast<uint64_t>(status.st_size);
    modified_ = int64_t{status.st_mtim.tv_sec} * 1000000000 + status.st_mtim.tv_nsec;
}

Input Input::open(const std::string& path, const DocumentRules& rules) {
    if (path == "-") return {"standard input", rules.json_standard_input, Descriptor(), Compression::none, rules.encoding};
    if (std::filesystem::is_directory(path)) fail(Exit::data, path, ": is a folder; give the files in it (", path, "/*.txt)");
    const Compression compression = compression_of(path);
    const std::string plain = compression == Compression::none ? path : path.substr(0, path.rfind('.'));
    if (!plain.ends_with(".jsonl") && !plain.ends_with(".txt")) fail_at_name(path);
    const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;   // a named pipe must not block
    Descriptor file(retried([&] { return ::open(path.c_str(), flags); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    return {path, plain.ends_with(".jsonl"), std::move(file), compression, rules.encoding};
}

void Input::copy_standard_input(const std::string& folder, const Tick& tick) {
    Descriptor copy = temporary_file(folder);
    std::vector<char> buffer(stream_buffer_bytes);
    const auto from = open_plain(name_, STDIN_FILENO, to_its_end, tick);
    while (const size_t got = from->read(buffer.data(), buffer.size()))
        if (!write_all(copy.get(), buffer.data(), got))
            fail(Exit::data, folder, ": cannot hold a copy of standard input: ", last_os_error(), "; --val-tokens needs no copy");
    file_ = std::move(copy);
    examine();
    modified_ = 0;   // of the copy
}

std::unique_ptr<ByteStream> Input::stream(const Tick& tick) const {
    if (!file_.is_open()) return as_utf8(name_, open_plain(name_, STDIN_FILENO, to_its_end, tick), encoding_);
    if (::lseek(file_.get(), 0, SEEK_SET) != 0) fail(Exit::data, name_, ": cannot be read from its beginning: ", last_os_error());
    const auto bytes = [&] {
        if (compression_ == Compression::xz || compression_ == Compression::zstd) return open_archive(name_, file_.get(), compression_);
        auto plain = open_plain(name_, file_.get(), size_, tick);
        return compression_ == Compression::gzip ? open_gzip(name_, std::move(plain)) : std::move(plain);
    };
    return as_utf8(name_, bytes(), encoding_);
}

bool ByteWindow::grow() {
    if (buffer_.size() - end_ < stream_buffer_bytes) {
        std::copy(buffer_.begin() + ptrdiff_t(begin_), buffer_.begin() + ptrdiff_t(end_), buffer_.begin());
        end_ -= begin_;
        begin_ = 0;
        buffer_.resize(std::max(buffer_.size(), 2 * (end_ + stream_buffer_bytes)));   // doubled, so that moves are rare
    }
    const size_t got = stream_->read(buffer_.data() + end_, buffer_.size() - end_);
    end_ += got;
    return got > 0;
}

std::string_view ByteWindow::peek(size_t bytes) {
    while (end_ - begin_ < bytes && grow()) {}
    return seen().substr(0, bytes);
}

DocumentReader::DocumentReader(const Input& input, const DocumentRules& rules, const Tick& tick, uint64_t divide_at)
    : input_(input), rules_(rules), window_(input.stream(tick)), divide_at_(divide_at) {
    drop_byte_order_mark();
}

void DocumentReader::drop_byte_order_mark() {
    const std::string_view head = window_.peek(4);
    for (const auto& [mark, encoding] : {std::pair("\xFF\xFE\0\0"sv, "UTF-32"), {"\0\0\xFE\xFF"sv, "UTF-32"},
                                         {"\xFF\xFE"sv, "UTF-16"}, {"\xFE\xFF"sv, "UTF-16"}})
        if (head.starts_with(mark))
            fail(Exit::data, input_.name(), ": begins with the byte-order mark of ", encoding, "; give --encoding ", encoding);
    if (head.starts_with("\xEF\xBB\xBF")) window_.drop(3);
}

void DocumentReader::advance(size_t bytes) {
    if (bytes > 0) after_newline_ = window_.seen()[bytes - 1] == '\n';
    window_.drop(bytes);
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
                fail(Exit::data, input_.name(), ":", line_ + 1, ": the line is longer than ", longest_json_line,
                     " bytes; is this a JSON Lines file?");
        } while (newline == std::string_view::npos && window_.grow());
        const size_t length = std::min(newline, window_.seen().size());
        if (length == 0 && newline == std::string_view::npos) return false;

        piece = {window_.seen().substr(0, length), ++line_};
        advance(std::min(length + 1, window_.seen().size()));
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
    if (rules_.split_on_blank_line && document_bytes_ == 0) skip_blank_lines();
    std::string_view text;
    size_t length = 0;
    bool ends = false;   // the document ends where `text` does
    for (const size_t most : {part_bytes, most_part_bytes}) {
        text = window_.peek(most + 1);
        ends = text.size() <= most;
        if (rules_.split_on_blank_line && !text.empty()) {
            const size_t blank = first_blank_line(text, after_newline_, ends);
            ends = ends || blank != std::string_view::npos;
            text = text.substr(0, blank);
        }
        if (divide_at_ > document_bytes_ && divide_at_ - document_bytes_ < text.size()) {
            text = text.substr(0, character_boundary(text, divide_at_ - document_bytes_));
            divide_at_ = document_bytes_ + text.size();
            ends = false;
        }
        length = part_length(text);
        if (length <= part_bytes) break;
    }
    if (length == 0 && document_bytes_ > 0) {   // only blank lines were left of the document
        document_bytes_ = 0;
        return next_text(piece);
    }
    piece = {text.substr(0, length), 0, document_bytes_ == 0, document_bytes_ == divide_at_};
    advance(length);
    document_bytes_ = ends && length == text.size() ? 0 : document_bytes_ + length;
    return length > 0;
}
