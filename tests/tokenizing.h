// Shared by the tests of tokenize_files(): its options for files of a temporary folder, and the tokens of the shards that it writes.
#pragma once
#include "data/stream.h"
#include "data/documents/tokenize_files.h"
#include "tests/shards.h"

inline void no_progress(const TokenizeProgress&) {}

/// These files of the folder into shards folder/out/x_*.bin.
inline TokenizeOptions options_for(const TemporaryFolder& folder, const std::vector<std::string>& names) {
    TokenizeOptions options;
    for (const std::string& name : names) options.inputs.push_back(file_in(folder, name));
    options.out = file_in(folder, "out");
    options.name = std::string("x");
    return options;
}

/// All tokens of one split, or the targets: -1 for those that a mask hides.
inline std::vector<int32_t> tokens(const TemporaryFolder& folder, const std::string& split, bool as_targets = false) {
    const TokenStream stream(file_in(folder, "out/x_" + split + "_*.bin"), 512);
    std::vector<int32_t> ids(stream.size());
    stream.copy(0, ids.size(), ids.data());
    if (as_targets) stream.hide_targets(0, ids.size(), ids.data());
    return ids;
}

/// A run that is stopped once it is so many tokens beyond where it began; true if it ends before.
inline bool run_until(const TokenizeOptions& options, uint64_t tokens) {
    uint64_t began = 0;
    const auto stop = [&](const TokenizeProgress& progress) {
        if (progress.tokens > 0 && began == 0) began = progress.tokens;
        if (progress.tokens > began + tokens) fail(Exit::signal, "stopped");
    };
    return error_of([&] { tokenize_files(options, stop); }).code == Exit::done;
}
