// The options of both ladders.
#pragma once
#include <string>

#include "model/base/command_line.h"

struct LadderOptions {
    int B = 4, T = 4096, NH = 12, repeats = 10;
    bool quick = false;
};

/// Reads the command line; `what` is the program in a sentence. False where it only asked for help.
inline bool parse(int argc, char** argv, const std::string& what, LadderOptions& o) {
    CLI::App app(what);
    app.option_defaults()->always_capture_default();
    const auto positive = whole_number_from(1, 1 << 20);
    app.add_option("--batch-size", o.B, "sequences")->transform(positive);
    app.add_option("--seq-len", o.T, "tokens per sequence, T")->transform(positive);
    app.add_option("--heads", o.NH, "heads, of 64 and then of 128 numbers")->transform(positive);
    app.add_option("--repeats", o.repeats, "runs of which the median is printed")->transform(positive);
    app.add_flag("--quick", o.quick, "run everything once to see that it runs; the times mean nothing");
    return parse_options(app, argc, argv);
}
