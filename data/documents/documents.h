// Documents out of text and JSON Lines files, plain or compressed, read as a stream: files may be larger than memory.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/documents/byte_stream.h"
#include "data/documents/files.h"
#include "model/base/hash.h"

/// Called now and then during long work; it may throw to end it.
using Tick = std::function<void()>;

/// How documents are found in the inputs.
struct DocumentRules {
    std::string text_field = "text";          // JSON Lines: the key whose string is the document
    bool split_on_blank_line = false;         // text: a blank line (spaces at most) ends a document
    bool json_standard_input = false;         // "-" holds JSON Lines, not text
};

/// One source of documents: a .txt or .jsonl file, perhaps with .gz, .xz or .zst behind that, or "-" for standard input. Move-only.
class Input {
public:
    /// Names that end in anything else: Exit::usage. What cannot be opened: Exit::data.
    static Input open(const std::string& path, const DocumentRules& rules);

    /// An open regular file (or memory file) that is not compressed; `name` is what errors call it.
    Input(std::string name, bool json_lines, Descriptor file);

    const std::string& name() const { return name_; }
    bool json_lines() const { return json_lines_; }
    bool is_standard_input() const { return standard_input_; }
    uint64_t size() const { return size_; }              // bytes of the file; 0 for standard input that was not copied
    int64_t modified() const { return modified_; }       // nanoseconds since 1970; 0 for standard input

    /// Standard input can be read once only. This copies it to an unnamed file in `folder`, so that it can be read again.
    void copy_standard_input(const std::string& folder, const Tick& tick);

    /// The text from its first byte. A stream of standard input ends with an error soon after `stop` is set.
    std::unique_ptr<ByteStream> stream(const std::atomic<bool>& stop) const;

private:
    void examine();

    std::string name_;
    bool json_lines_;
    bool standard_input_ = false;
    Compression compression_ = Compression::none;
    Descriptor file_;             // none for standard input that was not copied
    uint64_t size_ = 0;
    int64_t modified_ = 0;
};

/// A stream with what of it is already in memory.
class ByteWindow {
public:
    explicit ByteWindow(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

    std::string_view seen() const { return {buffer_.data() + begin_, end_ - begin_}; }   // holds until grow()
    bool grow();                             // sees more; false at the end of the stream
    std::string_view peek(size_t bytes);     // the next `bytes` bytes, fewer at the end; holds until grow() or peek()
    void drop(size_t bytes) { begin_ += bytes; }
    void skip(uint64_t bytes) { stream_->skip(bytes); }   // before anything was seen
    uint64_t consumed() const { return stream_->consumed(); }

private:
    std::unique_ptr<ByteStream> stream_;
    std::vector<char> buffer_;
    size_t begin_ = 0, end_ = 0;
};

/// Where a piece begins in its input: enough for a reader to go on there.
struct Place {
    uint64_t offset = 0;             // bytes of text before it
    uint64_t line = 0;               // JSON Lines: lines before it
    uint64_t document_bytes = 0;     // text: bytes of its document before it; 0 where a document begins
    bool after_newline = true;
    std::string digest;              // standard input: hash of the bytes before it, to know the same text again
};

/// A line of a JSON Lines file, or a part of a document of a text file, as part_length() cuts it.
struct Piece {
    std::string_view text;     // holds until the next call of next()
    Place place;
    bool begins() const { return place.document_bytes == 0; }
};

class DocumentReader {
public:
    /// Starts at `start`, a place that an earlier reader of the same input gave. `input`, `rules` and `stop` must outlive the
    /// reader. Standard input that differs from what was before that place: Exit::data.
    DocumentReader(const Input& input, const DocumentRules& rules, const std::atomic<bool>& stop, const Place& start = {});

    /// The next piece, unparsed; false at the end. Lines of a JSON Lines file that hold nothing but white space are passed over.
    bool next(Piece& piece);

    uint64_t consumed() const { return window_.consumed(); }     // bytes of the file read so far, for progress

private:
    bool next_line(Piece& piece);
    bool next_text(Piece& piece);
    void pass_blank_lines();
    void pass(size_t bytes);             // moves on
    void pass_to(const Place& start);    // at the start: moves on to a place

    const Input& input_;
    const DocumentRules& rules_;
    ByteWindow window_;
    Place place_;                        // of what comes next
    std::optional<Hasher> hasher_;       // standard input: of what was passed
};

/// How many bytes at the start of a document's text are encoded at once: all of a text of up to 4 MiB; otherwise up to the last
/// place in the first 4 MiB, or the first one behind them, where a letter of ASCII is followed by a space. No token of the patterns
/// of GPT-2, Llama 3 and Qwen spans such a place, none of their added tokens does, no token depends on what is behind it, and NFC
/// changes nothing there: the tokens are those of the whole text. Only a text without such a place in 64 MiB is cut anywhere else,
/// between two characters.
size_t part_length(std::string_view text);

/// The text of the document in a line of a JSON Lines file: what `field` holds. A line that is no JSON object with a string there:
/// Exit::data naming `file` and `line`.
std::string text_of_json_line(std::string_view json, const std::string& field, const std::string& file, uint64_t line);
