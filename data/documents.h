// Documents from text and JSON Lines files, read as a stream: files may be larger than memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/files.h"

/// Called now and then during long work; it may throw to end it.
using Tick = std::function<void()>;

/// How documents are found in the inputs.
struct DocumentRules {
    std::string text_field = "text";      // JSON Lines: the key whose string is the document
    bool split_on_blank_line = false;     // text: a blank line (spaces at most) ends a document
};

/// One source of documents: a .txt file, a .jsonl file, or "-" for text from standard input. It can be read several times from
/// the start, so standard input is first copied to an unnamed file in `folder`. Move-only.
class Input {
public:
    /// Names that end in neither .txt nor .jsonl: Exit::usage. What cannot be read: Exit::data.
    static Input open(const std::string& path, const std::string& folder, const Tick& tick);

    /// An open regular file (or memory file); `name` is what errors call it.
    Input(std::string name, bool json_lines, Descriptor file);

    const std::string& name() const { return name_; }
    bool json_lines() const { return json_lines_; }
    uint64_t size() const { return size_; }     // bytes

    /// Reads up to `bytes` bytes at `offset`; fewer only at the end.
    size_t read(uint64_t offset, char* out, size_t bytes) const;

private:
    std::string name_;
    bool json_lines_;
    Descriptor file_;
    uint64_t size_;
};

/// A line of an input with its newline, or as much of a longer line as was allowed.
class LineReader {
public:
    explicit LineReader(const Input& input) : input_(input) {}

    /// False at the end. At most `limit` bytes, cut between two characters of UTF-8. The view holds until the next call.
    bool next(std::string_view& line, size_t limit);

    uint64_t offset() const { return offset_ - (end_ - begin_); }    // of the next line in the input

private:
    bool fill();

    const Input& input_;
    std::vector<char> buffer_;
    size_t begin_ = 0, end_ = 0;     // what of the buffer is still to be given
    uint64_t offset_ = 0;            // in the input, of the byte behind the buffer
};

/// A part of a document. Parts are cut in front of a line that starts with no white space, where no tokenizer joins
/// characters to one token; only lines above a megabyte are cut inside.
struct Piece {
    std::string_view text;     // holds until the next call of next()
    bool begins = false;       // the first part of its document
};

class DocumentReader {
public:
    /// Does not keep copies: `input` and `rules` must outlive it.
    DocumentReader(const Input& input, const DocumentRules& rules) : input_(input), rules_(rules), lines_(input) {}

    /// The next part of the next document; false at the end. A line of a .jsonl file that is no JSON object with a string under
    /// rules.text_field: Exit::data naming file and line.
    bool next(Piece& piece);

    /// As next() for a reader who only counts: lines of a .jsonl file are given as they are, unparsed and unchecked.
    bool next_unparsed(Piece& piece);

    uint64_t offset() const { return lines_.offset(); }     // bytes of the input read so far

private:
    bool next_json_line(std::string_view& line);
    bool next_text(Piece& piece);

    const Input& input_;
    const DocumentRules& rules_;
    LineReader lines_;
    std::string text_;              // what the last Piece views
    std::string held_;              // text: the line that the next piece starts with
    bool inside_ = false;           // text: the document goes on in the next piece
    uint64_t line_number_ = 0;      // JSON Lines, from 1
};
