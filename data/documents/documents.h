// Documents from text and JSON Lines files, plain or compressed, read as a stream: files may be larger than memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/documents/byte_stream.h"
#include "data/files.h"
#include "data/manifest.h"

/// Rules for dividing inputs into documents.
struct DocumentRules {
    std::string text_field = "text";          // JSON Lines: the key whose string is the document
    bool mask_prompts = false;                // JSON Lines instead: a prompt and its completion; only the completion has targets
    bool split_on_blank_line = false;         // text: a blank line (spaces at most) ends a document
    bool json_standard_input = false;         // "-" holds JSON Lines, not text
    std::string encoding = "UTF-8";           // encoding of the inputs, by iconv's name
};

/// One source of documents: a .txt or .jsonl file, optionally with .gz, .xz or .zst appended, or "-" for standard input. Move-only.
class Input {
public:
    /// Exit::usage for other extensions, Exit::data if the file cannot be opened.
    static Input open(const std::string& path, const DocumentRules& rules);

    /// An open regular file (or memory file), or standard input if none is open; `name` is its name in errors.
    Input(std::string name, bool json_lines, Descriptor file, Compression compression, std::string encoding = "UTF-8");

    const std::string& name() const { return name_; }
    bool json_lines() const { return json_lines_; }
    uint64_t size() const { return size_; }              // bytes of the file; 0 for uncopied standard input
    int64_t modified() const { return modified_; }       // nanoseconds since 1970; 0 for standard input

    /// Copies standard input to an unnamed file in `folder`, so that it can be read more than once.
    void copy_standard_input(const std::string& folder, const Tick& tick);

    /// The text in UTF-8 from its beginning. One stream at a time.
    std::unique_ptr<ByteStream> stream(const Tick& tick) const;

private:
    void examine();

    std::string name_;
    bool json_lines_;
    Descriptor file_;             // none for uncopied standard input
    Compression compression_;
    std::string encoding_;
    uint64_t size_ = 0;
    int64_t modified_ = 0;
};

/// A stream with a buffer for look-ahead.
class ByteWindow {
public:
    explicit ByteWindow(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

    std::string_view seen() const { return {buffer_.data() + begin_, end_ - begin_}; }   // valid until grow()
    bool grow();                             // reads more; false at the end of the stream
    std::string_view peek(size_t bytes);     // the next `bytes` bytes, fewer at the end; valid until grow() or peek()
    void drop(size_t bytes) { begin_ += bytes; }
    uint64_t consumed() const { return stream_->consumed(); }

private:
    std::unique_ptr<ByteStream> stream_;
    std::vector<char> buffer_;
    size_t begin_ = 0, end_ = 0;
};

/// A line of a JSON Lines file, or a part of a document of a text file, divided by part_length().
struct Piece {
    std::string_view text;     // valid until the next call of next()
    uint64_t line = 0;         // JSON Lines: its number, from 1
    bool begins = true;        // a document
    bool divides = false;      // the document: it begins where DocumentReader was told to divide it
};

class DocumentReader {
public:
    /// Preconditions: `input` and `rules` outlive the reader. Text documents are divided after `divide_at` bytes, at a UTF-8 character.
    /// Exit::data for a text that begins with the byte-order mark of another encoding.
    DocumentReader(const Input& input, const DocumentRules& rules, const Tick& tick, uint64_t divide_at = nowhere);

    /// The next piece, unparsed; false at the end. Skips blank lines of a JSON Lines file.
    bool next(Piece& piece);

    uint64_t consumed() const { return window_.consumed(); }     // bytes of the file read so far, for progress

private:
    void drop_byte_order_mark();
    bool next_line(Piece& piece);
    bool next_text(Piece& piece);
    void skip_blank_lines();
    void advance(size_t bytes);

    const Input& input_;
    const DocumentRules& rules_;
    ByteWindow window_;
    uint64_t divide_at_;
    uint64_t line_ = 0;                  // JSON Lines: lines passed
    uint64_t document_bytes_ = 0;        // text: bytes of the present document passed
    bool after_newline_ = true;
};

/// The length of the first part of a document's text to be encoded separately: all of a text of up to 4 MiB; otherwise up to the
/// last position in the first 4 MiB, or the first one after them, where an ASCII letter is followed by a space. No token of the
/// patterns of GPT-2, Llama 3 and Qwen and none of their added tokens spans such a position, no token depends on what follows it,
/// and NFC changes nothing there: the tokens are those of the whole text. Only a text without such a position in 64 MiB is cut
/// elsewhere, between two characters.
size_t part_length(std::string_view text);

/// The document in a line of a JSON Lines file: the string in `field`. Exit::data, naming `where` (file and line), for a line that is
/// not a JSON object with such a string.
std::string text_of_json_line(std::string_view json, const std::string& field, const std::string& where);

/// The strings "prompt", perhaps empty, and "completion" in a line of a JSON Lines file. Exit::data as above, and for an empty
/// completion.
struct PromptAndCompletion {
    std::string prompt, completion;
};
PromptAndCompletion prompt_of_json_line(std::string_view json, const std::string& where);
