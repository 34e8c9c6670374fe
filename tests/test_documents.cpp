// Reading documents: where long ones are cut, what is a blank line, compressed files and damaged ones.
#include <archive.h>
#include <archive_entry.h>

#include "data/documents/documents.h"
#include "model/base/json.h"
#include "tests/shards.h"

namespace {

constexpr size_t part = size_t{4} << 20;

void no_tick() {}

std::vector<std::string> documents_of(const Input& input, const DocumentRules& rules) {
    DocumentReader reader(input, rules, no_tick);
    std::vector<std::string> found;
    for (Piece piece; reader.next(piece);) {
        if (piece.begins) found.emplace_back();
        REQUIRE(!found.empty());
        found.back() += piece.text;
    }
    return found;
}

// Documents in a file of a temporary folder.
struct TextFile {
    const TemporaryFolder folder;
    DocumentRules rules;

    std::vector<std::string> documents(const std::string& text, const std::string& name = "a.txt") const {
        write_text(file_in(folder, name), text);
        return documents_of(Input::open(file_in(folder, name), rules), rules);
    }
};

using Texts = std::vector<std::string>;

// By libarchive, which writes to memory here; its raw format has one entry without a header.
std::string compressed(const std::string& text, const std::string& suffix) {
    archive* writer = archive_write_new();
    std::string out(text.size() + (1 << 20), '\0');
    size_t used = 0;
    const int filter = suffix == ".gz" ? ARCHIVE_FILTER_GZIP : suffix == ".xz" ? ARCHIVE_FILTER_XZ : ARCHIVE_FILTER_ZSTD;
    REQUIRE(archive_write_add_filter(writer, filter) == ARCHIVE_OK);
    archive_write_set_format_raw(writer);
    archive_write_set_bytes_per_block(writer, 0);
    REQUIRE(archive_write_open_memory(writer, out.data(), out.size(), &used) == ARCHIVE_OK);
    archive_entry* entry = archive_entry_new();
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_write_header(writer, entry);
    archive_write_data(writer, text.data(), text.size());
    archive_entry_free(entry);
    archive_write_close(writer);
    archive_write_free(writer);
    out.resize(used);
    return out;
}

std::string some_text(size_t words) {
    std::string text;
    for (size_t i = 0; i < words; ++i) text += std::to_string(i * 2654435761u % 100000) + (i % 9 ? " word " : " line\n");
    return text;
}

}  // namespace

TEST_CASE("documents: a text of 4 MiB is one piece, a longer one is cut between a letter and a space") {
    CHECK(part_length("") == 0);
    CHECK(part_length(std::string(part, 'a')) == part);
    CHECK(part_length(std::string(part - 2, '.') + "a  " + "bb ") == part - 1);
    CHECK(part_length(std::string(part - 2, 'a') + " aaa\n") == part - 2);
    CHECK(part_length(std::string(part, 'a') + " ") == part);
    CHECK(part_length("a " + std::string(part, 'a') + "'s ") == 1);               // not before the apostrophe
    CHECK(part_length("a " + std::string(part, ' ') + "b") == 1);                 // nor between spaces
    CHECK(part_length("a " + std::string(part - 4, '.') + "a\na\ta\n") == 1);      // nor before other white space
    CHECK(part_length("a " + std::string(part - 8, '.') + "<think>...") == 1);    // nor in what can be a token
    CHECK(part_length("a " + std::string(part, 'a') + "\xCC\x81 1") == 1);        // nor behind an accent
    CHECK(part_length(std::string(part + 5, 'a') + " b ") == part + 5);           // none before: the first one behind
}

TEST_CASE("documents: a text without a place to cut is cut at 64 MiB, between two characters") {
    std::string text = "a";
    while (text.size() < (size_t{65} << 20)) text += "漢";
    const size_t length = part_length(text);
    CHECK(length <= size_t{64} << 20);
    CHECK(length > (size_t{64} << 20) - 3);
    CHECK((text[length] & 0xC0) != 0x80);
}

TEST_CASE_METHOD(TextFile, "documents: pieces of long texts put together are the text, as often as it is read") {
    const std::string first = some_text(500000), second = std::string(part, 'x') + "\n" + some_text(700000);
    const std::string text = first + "\n\n" + second + " \n\n\n\tthird\n";
    write_text(file_in(folder, "a.txt"), text);
    const Input input = Input::open(file_in(folder, "a.txt"), {});
    for (int again = 0; again < 2; again++) CHECK((documents_of(input, rules) == Texts{text}));
    rules.split_on_blank_line = true;
    CHECK((documents_of(input, rules) == Texts{first + "\n", second + " \n", "\tthird\n"}));
}

TEST_CASE_METHOD(TextFile, "documents: the end of a very long line is no blank line, and a blank line at a cut is one") {
    rules.split_on_blank_line = true;
    std::string han = "a";
    while (han.size() < (size_t{64} << 20) - 1) han += "漢";
    for (const std::string& text : {std::string(part, 'x') + "\nsame document\n", std::string(part, 'x') + "  \nsame document\n"})
        CHECK((documents(text) == Texts{text}));
    // The first piece ends at 64 MiB, where the line does.
    han.resize((size_t{64} << 20) - 1);
    CHECK((documents(han + "\n\nanother\n") == Texts{han + "\n", "another\n"}));
}

TEST_CASE_METHOD(TextFile, "documents: texts of blank lines, of nothing, of one line") {
    rules.split_on_blank_line = true;
    CHECK(documents("").empty());
    CHECK(documents("\n \n\t").empty());
    CHECK(documents(std::string(3 * part, '\n') + "a" + std::string(3 * part, ' ')).size() == 1);
    CHECK(documents("a") == Texts{"a"});
    CHECK(documents(" a\n ") == Texts{" a\n"});
    CHECK(documents("a\n\nb") == Texts{"a\n", "b"});
    CHECK(documents("\r\na\r\n\r\n b\r\n") == Texts{"a\r\n", " b\r\n"});
}

TEST_CASE_METHOD(TextFile, "documents: lines of a JSON Lines file know their number, and have a limit") {
    write_text(file_in(folder, "a.jsonl"), "1\n\n \t\r\n22\r\n\n333\n" + std::string(longest_json_line + 1, 'a') + "\n");
    const Input input = Input::open(file_in(folder, "a.jsonl"), rules);
    DocumentReader reader(input, rules, no_tick);
    Piece piece;
    for (const auto& [text, line] : std::vector<std::pair<std::string, uint64_t>>{{"1", 1}, {"22", 4}, {"333", 6}}) {
        REQUIRE(reader.next(piece));
        CHECK(piece.text == text);
        CHECK(piece.line == line);
    }
    CHECK(says(error_of([&] { reader.next(piece); }), Exit::data, {"a.jsonl:7", "is longer than 67108864 bytes"}));
}

TEST_CASE_METHOD(TextFile, "documents: compressed files give their text, in one part and in several") {
    const std::string text = some_text(300000);
    for (const std::string suffix : {".gz", ".xz", ".zst"}) {
        INFO(suffix);
        const std::string name = "a.txt" + suffix, bytes = compressed(text, suffix);
        CHECK((documents(bytes, name) == Texts{text}));
        CHECK((documents(bytes + bytes, name) == Texts{text + text}));
        if (suffix == ".gz") {   // filled up with zero bytes, more than are read at once
            CHECK((documents(bytes + std::string(1, '\0') + bytes + std::string(600000, '\0'), name) == Texts{text + text}));
            CHECK(error_of([&] { documents(bytes + std::string(300000, '\0') + "more", name); }).code == Exit::data);
        }
        CHECK(documents(compressed("", suffix), name).empty());
        CHECK(documents(compressed("{\"text\":1}\n\n[]\n", suffix), "a.jsonl" + suffix) == Texts{"{\"text\":1}", "[]"});
    }
}

TEST_CASE_METHOD(TextFile,
                 "documents: a compressed file that is damaged, cut short anywhere or another thing is an error, never a shorter text") {
    const std::string text = some_text(2000);
    for (const std::string suffix : {".gz", ".xz", ".zst"}) {
        const std::string name = "a.txt" + suffix, bytes = compressed(text, suffix);
        const auto check = [&](const std::string& contents, const std::string& what, const Exit code = Exit::data) {
            INFO(suffix << " " << what);
            Texts found;
            const Error error = error_of([&] { found = documents(contents, name); });
            if (error.code == Exit::done) CHECK((code == Exit::done && found[0] == text));
            else CHECK(says(error, Exit::data, {name}));
        };
        for (size_t size = 0; size < bytes.size(); size += 1 + size / 7)
            check(bytes.substr(0, size), std::to_string(size) + " bytes");
        for (size_t less = 1; less < 30; ++less) check(bytes.substr(0, bytes.size() - less), "less " + std::to_string(less));
        check(text, "plain text");
        check(bytes + "more", "garbage at the end");
        check(bytes + bytes.substr(0, bytes.size() / 2), "half of a second part");
        // Some bits of the headers say nothing about the text (the time in gzip's); none may change it. The zstd file has no
        // checksum here, as libarchive writes none (the program zstd does).
        if (suffix == ".zst") continue;
        for (size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 200) {
            std::string damaged = bytes;
            damaged[at] = static_cast<char>(damaged[at] ^ 4);
            check(damaged, "damaged at " + std::to_string(at), Exit::done);
        }
    }
}

TEST_CASE_METHOD(TextFile, "documents: inputs that are folders, pipes or of another kind are refused, standard input can be JSON Lines") {
    for (const char* name : {"a.pdf", "a.txt.bz2", "a.gz", "jsonl", "a.parquet"}) {
        write_text(file_in(folder, name), "text");
        CHECK(says(error_of([&] { Input::open(file_in(folder, name), {}); }), Exit::usage, {name, ".txt", ".jsonl"}));
    }
    CHECK(says(error_of([&] { Input::open(file_in(folder, "a.parquet"), {}); }), {"scripts/fineweb.py"}));
    CHECK(says(error_of([&] { Input::open(folder.path().string(), {}); }), {"is a folder"}));
    CHECK_FALSE(Input::open("-", rules).json_lines());
    rules.json_standard_input = true;
    CHECK(Input::open("-", rules).json_lines());
}

TEST_CASE_METHOD(TextFile, "documents: a file that is cut short while it is read is an error") {
    write_text(file_in(folder, "a.txt"), some_text(100000));
    const Input input = Input::open(file_in(folder, "a.txt"), {});
    std::filesystem::resize_file(file_in(folder, "a.txt"), 1000);
    CHECK(says(error_of([&] { documents_of(input, rules); }), {"a.txt", "cut short", "1000"}));
}

TEST_CASE_METHOD(TextFile, "documents: text in other encodings is that in UTF-8, compressed or not") {
    std::string utf8, utf16 = "\xFF\xFE", latin1;
    for (size_t i = 0; i < 400000; i++) {   // several buffers, cut within characters
        const char16_t characters[] = {u'a', u'\xE9', u'\x20AC'};
        const char16_t c = i % 50 == 49 ? u' ' : characters[(i * i + i / 7) % 3];
        if (c == u'\xE9' && i % 3 == 0) {   // beyond 16 bits
            utf8 += "\xF0\x9F\x99\x82", utf16 += {'\x3D', '\xD8', '\x42', '\xDE'};
            continue;
        }
        utf8 += c == u'\xE9' ? "\xC3\xA9" : c == u'\x20AC' ? "\xE2\x82\xAC" : std::string(1, char(c));
        utf16 += {char(c & 255), char(c >> 8)};
    }
    rules.encoding = "UTF-16";
    CHECK((documents(utf16) == Texts{utf8}));
    CHECK((documents(compressed(utf16, ".gz"), "b.txt.gz") == Texts{utf8}));
    rules.encoding = "latin1";
    CHECK(documents("d\xE9j\xE0 vu") == Texts{"d\xC3\xA9j\xC3\xA0 vu"});
    rules.encoding = "UTF-8";
    CHECK(documents("\xEF\xBB\xBF{\"text\": \"x\"}\n", "d.jsonl") == Texts{"{\"text\": \"x\"}"});
}

TEST_CASE_METHOD(TextFile, "documents: an encoding that is not the text's is named with the way out") {
    const auto error = [&](const std::string& text, const std::string& encoding) {
        rules.encoding = encoding;
        return error_of([&] { documents(text); });
    };
    using namespace std::string_literals;
    CHECK(says(error("\xFF\xFEh\0"s, "UTF-8"), {"a.txt", "byte-order mark of UTF-16", "--encoding UTF-16"}));
    CHECK(says(error("\xFE\xFF\0h"s, "UTF-8"), {"UTF-16"}));
    CHECK(says(error("\xFF\xFE\0\0h\0\0\0"s, "UTF-8"), {"UTF-32"}));
    CHECK(says(error(std::string(300000, 'x') + "\xE9", "ASCII"), {"a.txt", "byte 300000 is not ASCII"}));
    CHECK(says(error("h\0i"s, "UTF-16LE"), {"ends within a character of UTF-16LE"}));
    CHECK(error("h", "klingon").code == Exit::usage);
    CHECK(error("h", "ASCII").code == Exit::done);
}
