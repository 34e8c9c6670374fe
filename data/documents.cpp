#include "data/documents.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/error.h"

namespace {

constexpr size_t read_bytes = size_t{1} << 18;
constexpr size_t piece_bytes = size_t{1} << 20;            // text is handed on about this much at a time ...
constexpr size_t most_piece_bytes = size_t{1} << 26;       // ... and this much where every line starts with white space
constexpr size_t longest_json_line = size_t{1} << 30;      // a longer line is no JSON Lines file but a mistake

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_blank(std::string_view line) { return std::all_of(line.begin(), line.end(), is_space); }

// An unnamed file in `folder`, gone when it is closed.
Descriptor temporary_file(const std::string& folder) {
    std::string name = folder + "/stdin_XXXXXX";
    Descriptor file(::mkstemp(name.data()));
    if (!file.is_open()) fail(Exit::data, folder, ": cannot hold a temporary file: ", last_os_error());
    ::unlink(name.c_str());
    return file;
}

void copy_standard_input(int to, const std::string& folder, const Tick& tick) {
    std::vector<char> buffer(read_bytes);
    while (true) {
        tick();
        const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) continue;   // tick() decides whether the signal ends the work
        if (got < 0) fail(Exit::data, "standard input cannot be read: ", last_os_error());
        if (got == 0) return;
        if (!write_all(to, buffer.data(), static_cast<size_t>(got)))
            fail(Exit::data, folder, ": cannot hold a copy of standard input: ", last_os_error());
    }
}

// How many bytes of `text` come before `cut` or before the character of UTF-8 that `cut` would split.
size_t character_boundary(std::string_view text, size_t cut) {
    size_t boundary = cut;
    while (boundary > 0 && cut - boundary < 3 && (static_cast<unsigned char>(text[boundary]) & 0xC0) == 0x80) --boundary;
    return boundary > 0 ? boundary : cut;
}

// "[json.exception.parse_error.101] parse error at line 1, column 5: ..." -> "parse error at column 5: ...": the line is
// always the first of what was parsed and would be taken for the file's.
std::string reason(const nlohmann::json::exception& error) {
    std::string text = error.what();
    const size_t bracket = text.find("] ");
    if (bracket != std::string::npos) text.erase(0, bracket + 2);
    const std::string first_line = "line 1, ";
    const size_t at = text.find(first_line);
    if (at != std::string::npos) text.erase(at, first_line.size());
    return text;
}

}  // namespace

Input::Input(std::string name, bool json_lines, Descriptor file) : name_(std::move(name)), json_lines_(json_lines), file_(std::move(file)) {
    struct stat status;
    if (::fstat(file_.get(), &status) != 0) fail(Exit::data, name_, ": cannot be examined: ", last_os_error());
    if (!S_ISREG(status.st_mode)) fail(Exit::data, name_, ": is not a regular file");
    size_ = static_cast<uint64_t>(status.st_size);
}

Input Input::open(const std::string& path, const std::string& folder, const Tick& tick) {
    if (path == "-") {
        Descriptor copy = temporary_file(folder);
        copy_standard_input(copy.get(), folder, tick);
        return Input("standard input", false, std::move(copy));
    }
    if (std::filesystem::is_directory(path)) fail(Exit::data, path, ": is a folder; give the files in it (", path, "/*.txt)");
    const bool json_lines = path.ends_with(".jsonl");
    if (!json_lines && !path.ends_with(".txt"))
        fail(Exit::usage, path, ": ends in neither .txt nor .jsonl; for other files of text use: ./tokenize ... - < ", path);
    Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));   // a named pipe must not make it wait
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    return Input(path, json_lines, std::move(file));
}

size_t Input::read(uint64_t offset, char* out, size_t bytes) const {
    bytes = std::min<uint64_t>(bytes, size_ - std::min(offset, size_));   // what was appended since is not part of it
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = ::pread(file_.get(), out + done, bytes - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(Exit::data, name_, ": cannot be read at byte ", offset + done, ": ", last_os_error());
        if (got == 0) fail(Exit::data, name_, ": was cut short while it was read: it had ", size_, " bytes, now ", offset + done);
        done += static_cast<size_t>(got);
    }
    return done;
}

// Reads on behind what the buffer still holds; false at the end of the input.
bool LineReader::fill() {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    end_ -= begin_;
    begin_ = 0;
    // Doubling keeps a line of many megabytes from being moved once for every read.
    const size_t wanted = std::max(read_bytes, end_);
    buffer_.resize(end_ + wanted);
    const size_t got = input_.read(offset_, buffer_.data() + end_, wanted);
    end_ += got;
    offset_ += got;
    return got > 0;
}

bool LineReader::next(std::string_view& line, size_t limit) {
    size_t searched = 0;
    while (true) {
        const std::string_view rest(buffer_.data() + begin_, end_ - begin_);
        const size_t newline = rest.substr(0, limit).find('\n', searched);
        size_t length = 0;
        if (newline != std::string_view::npos) length = newline + 1;
        else if (rest.size() > limit) length = character_boundary(rest, limit);
        searched = rest.size();
        if (length == 0 && fill()) continue;
        if (length == 0) length = end_ - begin_;   // the last line has no newline
        line = std::string_view(buffer_.data() + begin_, length);
        begin_ += length;
        return length > 0;
    }
}

bool DocumentReader::next_json_line(std::string_view& line) {
    while (lines_.next(line, longest_json_line)) {
        ++line_number_;
        if (line.size() >= longest_json_line - 4 && line.back() != '\n')
            fail(Exit::data, input_.name(), ":", line_number_, ": the line is longer than ", longest_json_line,
                 " bytes; is this a JSON Lines file?");
        while (!line.empty() && is_space(line.back())) line.remove_suffix(1);   // the newline would count as a line in errors
        if (!line.empty()) return true;
    }
    return false;
}

bool DocumentReader::next_text(Piece& piece) {
    text_ = std::exchange(held_, {});
    const bool begins = !inside_;
    bool ended = false;
    std::string_view line;
    while (!ended && held_.empty() && lines_.next(line, piece_bytes)) {
        const bool line_starts = text_.empty() || text_.back() == '\n';   // not so behind a part of a very long line
        const bool full = text_.size() >= (is_space(line[0]) ? most_piece_bytes : piece_bytes);
        if (rules_.split_on_blank_line && line_starts && is_blank(line)) ended = !text_.empty();
        else if (full) held_ = line;
        else text_ += line;
    }
    inside_ = !held_.empty();
    piece = {text_, begins};
    return !text_.empty();
}

bool DocumentReader::next_unparsed(Piece& piece) {
    if (!input_.json_lines()) return next_text(piece);
    piece.begins = true;
    return next_json_line(piece.text);
}

bool DocumentReader::next(Piece& piece) {
    if (!next_unparsed(piece)) return false;
    if (!input_.json_lines()) return true;
    try {
        nlohmann::json object = nlohmann::json::parse(piece.text);
        if (!object.is_object())
            fail(Exit::data, input_.name(), ":", line_number_, ": a JSON object is expected, this is ", object.type_name());
        const auto field = object.find(rules_.text_field);
        if (field == object.end())
            fail(Exit::data, input_.name(), ":", line_number_, ": the object has no field \"", rules_.text_field,
                 "\"; --text-field names the one to take");
        if (!field->is_string())
            fail(Exit::data, input_.name(), ":", line_number_, ": field \"", rules_.text_field,
                 "\" must be a string, it is ", field->type_name());
        text_ = std::move(field->get_ref<std::string&>());
    } catch (const nlohmann::json::exception& error) {
        fail(Exit::data, input_.name(), ":", line_number_, ": ", reason(error));
    }
    piece.text = text_;
    return true;
}
