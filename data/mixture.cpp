#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"
#include "model/base/hash.h"

namespace {

struct Weighted {
    double weight;
    std::string glob;
};

bool is_number(const std::string& word) {
    if (word.find_first_not_of("+-.0123456789eE") != std::string::npos) return false;   // nor are inf and nan
    char* end = nullptr;
    std::strtod(word.c_str(), &end);
    return end != word.c_str() && !*end;
}

// One glob of weight 1 unless the first of several words is a number.
std::vector<Weighted> parse(const std::string& sources) {
    std::istringstream words(sources);
    std::vector<Weighted> found;
    std::string word;
    if (!(words >> word) || !is_number(word) || words.eof()) return {{1, sources}};
    do {
        if (is_number(word)) found.push_back({std::strtod(word.c_str(), nullptr), ""});
        else found.back().glob += (found.back().glob.empty() ? "" : " ") + word;
    } while (words >> word);
    for (const Weighted& one : found) {
        if (one.glob.empty())
            fail(Exit::usage, "'", sources, "': the weight ", one.weight, " has no shards behind it; give '0.7 web/*.bin 0.3 code/*.bin'");
        if (!(one.weight > 0) || !std::isfinite(one.weight))
            fail(Exit::usage, "'", sources, "': the weight ", one.weight, " of ", one.glob, " is not a positive number");
    }
    return found;
}

// floor(rows * split / 2^32): of `rows` rows, those of a source with this split. Grows by 0 or 1 from one row to the next.
uint64_t part(uint64_t rows, uint64_t split) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(rows) * split >> 32);
}

}  // namespace

Mixture::Mixture(const std::string& sources, int vocabulary, bool check_again) : name_(sources) {
    const std::vector<Weighted> parsed = parse(sources);
    double left = 0;
    for (const Weighted& one : parsed) left += one.weight;
    const double whole = left;
    for (const Weighted& one : parsed) {
        sources_.push_back({TokenStream(one.glob, vocabulary, check_again), one.weight / whole});
        const TokenStream& added = sources_.back().stream;
        if (!same_tokenizer(added.tokenizer(), tokenizer()))
            fail(Exit::data, added.name(), ": its tokenizer is '", added.tokenizer(), "', that of ", first().name(), " is '", tokenizer(),
                 "' ('' is unknown); tokens of different tokenizers cannot be mixed");
        splits_.push_back(static_cast<uint64_t>(std::llround(std::ldexp(std::min(1.0, one.weight / left), 32))));
        left -= one.weight;
    }
    splits_.pop_back();
}

uint64_t Mixture::size() const {
    uint64_t tokens = 0;
    for (const Source& s : sources_) tokens += s.stream.size();
    return tokens;
}

size_t Mixture::shards() const {
    size_t files = 0;
    for (const Source& s : sources_) files += s.stream.shards();
    return files;
}

bool Mixture::masked() const {
    return std::any_of(sources_.begin(), sources_.end(), [](const Source& s) { return s.stream.masked(); });
}

std::string Mixture::fingerprint() const {
    if (sources_.size() == 1) return first().fingerprint();
    std::string all;
    for (const Source& s : sources_) all += s.stream.fingerprint() + "\n";
    for (const uint64_t split : splits_) all += hexadecimal(split) + "\n";
    return hexadecimal(xxh3(all));
}

Mixture::Place Mixture::place(uint64_t row) const {
    size_t source = 0;
    for (; source < splits_.size(); ++source) {
        const uint64_t before = part(row, splits_[source]);
        if (part(row + 1, splits_[source]) > before) return {source, before};
        row -= before;
    }
    return {source, row};
}

std::vector<uint64_t> Mixture::counts(uint64_t rows) const {
    std::vector<uint64_t> found;
    for (const uint64_t split : splits_) {
        found.push_back(part(rows, split));
        rows -= found.back();
    }
    found.push_back(rows);
    return found;
}
