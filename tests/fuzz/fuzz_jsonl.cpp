// libFuzzer target: any bytes as the inputs of ./tokenize. The first byte chooses JSON Lines, text or text divided at blank
// lines, the second where reading goes on. Reading must give every byte of a text, and the same pieces from any place on; a line
// must be an Error or a text.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "data/documents/documents.h"
#include "model/base/disk.h"
#include "model/base/error.h"

namespace {

const std::atomic<bool> never = false;

struct Found {
    std::string text;
    Place place;
};

std::vector<Found> pieces(const Input& input, const DocumentRules& rules, const Place& start) {
    DocumentReader reader(input, rules, never, start);
    std::vector<Found> found;
    for (Piece piece; reader.next(piece);) found.push_back({std::string(piece.text), piece.place});
    if (reader.consumed() != input.size()) std::abort();
    return found;
}

void parse(const Found& line) {
    try {
        text_of_json_line(line.text, "text", "input", line.place.line + 1);
    } catch (const Error&) {
    }
    try {
        prompt_of_json_line(line.text, "input", line.place.line + 1);
    } catch (const Error&) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes < 2) return 0;
    const std::string text(reinterpret_cast<const char*>(data + 2), bytes - 2);
    Descriptor file(memfd_create("documents", MFD_CLOEXEC));
    if (!write_all(file.get(), text.data(), text.size())) std::abort();
    const bool json_lines = data[0] % 3 == 0;
    DocumentRules rules;
    rules.split_on_blank_line = data[0] % 3 == 1;
    const Input input("input", json_lines, std::move(file));

    const std::vector<Found> all = pieces(input, rules, {});
    for (const Found& piece : all) {
        if (piece.text != text.substr(piece.place.offset, piece.text.size())) std::abort();
        if (json_lines) parse(piece);
    }
    if (!json_lines && !rules.split_on_blank_line && !text.empty() && (all.size() != 1 || all[0].text != text)) std::abort();
    if (all.empty()) return 0;
    const size_t from = data[1] % all.size();
    const std::vector<Found> rest = pieces(input, rules, all[from].place);
    if (rest.size() != all.size() - from || rest[0].text != all[from].text) std::abort();
    if (rest[0].place.line != all[from].place.line) std::abort();
    return 0;
}
