// The tokens of a run: one source, or several that share its rows by weight.
#pragma once
#include "data/stream.h"

struct Source {
    TokenStream stream;
    double share;   // of the rows
};

/// Move-only, as its streams are.
class Mixture {
public:
    /// `sources` is a glob, or weights and globs: "0.7 web/*.bin 0.3 code/*.bin". Only weights relative to their sum matter. A word that
    /// is a number begins a source; a path may have other words. Exit::usage for a weight that is not positive or has no glob;
    /// Exit::data as for TokenStream, and if sources have different tokenizers.
    Mixture(const std::string& sources, int vocabulary, bool check_again = false);

    const std::vector<Source>& sources() const { return sources_; }
    const TokenStream& first() const { return sources_[0].stream; }

    /// As of TokenStream, over all sources. The fingerprint depends on the weights too; of one source it is its own.
    uint64_t size() const;
    size_t shards() const;
    const std::string& name() const { return name_; }
    const std::string& tokenizer() const { return first().tokenizer(); }
    std::string fingerprint() const;
    bool masked() const;

    /// Row `row` of the run is row `index` of its source.
    struct Place {
        size_t source;
        uint64_t index;
    };
    /// Without state: any row in the time of one division per source.
    Place place(uint64_t row) const;

    /// How many of the run's first `rows` rows each source gives: its share, within one row per source.
    std::vector<uint64_t> counts(uint64_t rows) const;

private:
    std::string name_;
    std::vector<Source> sources_;
    std::vector<uint64_t> splits_;   // source i's part of the rows that sources before it leave, in units of 2^-32; the last takes all
};
