#include "data/split.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace {

struct Survey {
    uint64_t documents = 0;
    uint64_t bytes = 0;       // of their text; only counted where lines are parsed
};

// Counting documents needs no parsing, counting the bytes of their text does.
Survey survey(const std::vector<Input>& inputs, const DocumentRules& rules, bool parse, const OnDocument& on_document) {
    const std::atomic<bool> never = false;   // on_document may throw instead
    Survey found;
    for (const Input& input : inputs) {
        DocumentReader reader(input, rules, never);
        Piece piece;
        while (reader.next(piece)) {
            found.documents += piece.begins();
            if (parse && input.json_lines())
                found.bytes += text_of_json_line(piece.text, rules.text_field, input.name(), piece.place.line + 1).size();
            else
                found.bytes += piece.text.size();
            on_document(found.documents);
        }
    }
    return found;
}

// floor(n * (1 - val_fraction)), but at least 1; the small term undoes rounding as in 98.99999 for 99.
uint64_t train_part(uint64_t n, double val_fraction) {
    const double part = std::floor(static_cast<double>(n) * (1.0 - val_fraction) + 1e-6);
    return std::clamp<uint64_t>(static_cast<uint64_t>(part), 1, std::max<uint64_t>(n, 1));
}

}  // namespace

Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const OnDocument& on_document) {
    Split split;
    const uint64_t documents = survey(inputs, rules, false, on_document).documents;
    split.train_documents = train_part(documents, val_fraction);
    if (documents > 1) return split;
    split.train_bytes = train_part(survey(inputs, rules, true, on_document).bytes, val_fraction);
    return split;
}
