// libFuzzer target: any bytes as the inputs of ./tokenize. The first byte chooses JSON Lines, text or text divided at blank
// lines. Reading must end in an Error or in documents, and counting must find as many of them as reading does.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "data/documents.h"
#include "model/error.h"

namespace {

uint64_t count(const Input& input, const DocumentRules& rules, bool parse) {
    DocumentReader reader(input, rules);
    Piece piece;
    uint64_t documents = 0;
    while (parse ? reader.next(piece) : reader.next_unparsed(piece)) documents += piece.begins;
    if (reader.offset() != input.size()) std::abort();
    return documents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes == 0) return 0;
    Descriptor file(memfd_create("documents", MFD_CLOEXEC));
    if (!write_all(file.get(), reinterpret_cast<const char*>(data + 1), bytes - 1)) std::abort();
    DocumentRules rules;
    rules.split_on_blank_line = data[0] % 3 == 1;
    const Input input("input", data[0] % 3 == 0, std::move(file));
    try {
        if (count(input, rules, true) != count(input, rules, false)) std::abort();
    } catch (const Error&) {
    }
    return 0;
}
