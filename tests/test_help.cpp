// The command line of the training programs: what --help lists, and options of other trainers.
#include <iostream>
#include <sstream>

#include "attention/variant.h"
#include "model/base/error.h"
#include "model/run/start.h"
#include "tests/catch.h"

namespace {

/// Parses the arguments of ./train_VARIANT.
bool parse(const char* variant, std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train");
    Options options;
    return parse_train_options(int(arguments.size()), const_cast<char**>(arguments.data()), named(variant), options);
}

/// Captures standard output for its lifetime.
struct CapturedOutput {
    std::ostringstream printed;
    std::streambuf* terminal = std::cout.rdbuf(printed.rdbuf());
    ~CapturedOutput() { std::cout.rdbuf(terminal); }
};

std::string help_of(const char* variant) {
    const CapturedOutput output;
    CHECK_FALSE(parse(variant, {"--help"}));
    return output.printed.str();
}

std::string refusal(const char* variant, std::vector<const char*> arguments) {
    try {
        parse(variant, std::move(arguments));
    } catch (const Error& error) {
        CHECK(error.code == Exit::usage);
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}   // namespace

TEST_CASE("options: --help has groups, and only what works in this trainer", "[options]") {
    for (const Variant* variant : all_variants()) {
        const std::string help = help_of(variant->name);
        for (const char* group : {"Model:", "Data:", "Schedule and optimiser:", "Evaluation:", "Output:", "Parallel:", "Attention:"})
            CHECK(contains(help, std::string("\n") + group + "\n"));
        for (const Setting& s : variant->settings()) CHECK(contains(help, std::string("  ") + s.option + " "));
        const bool is_causal = variant->name == std::string("causal");
        CHECK(contains(help, "--psa-eps") == is_causal);
        CHECK(contains(help, "--layers") == !is_causal);
        CHECK_FALSE(contains(help, "no effect"));
    }
    CHECK(contains(help_of("sinks"), "--window"));
    CHECK_FALSE(contains(help_of("causal"), "--window"));
}

TEST_CASE("options: what --help leaves out is still accepted or refused as before", "[options]") {
    CHECK(parse("causal", {"--window", "3", "--dense-until", "4"}));
    CHECK(parse("asga", {"--attention", "trained"}));
    CHECK(contains(refusal("asga", {"--evaluate", "--attention", "psa"}), "use ./train_causal, not ./train_asga"));
}

TEST_CASE("options: an unknown option names the trainer that has it, or the nearest one", "[options]") {
    CHECK(refusal("causal", {"--moba-block", "64"}) == "unknown option --moba-block; options that begin with --moba belong to ./train_moba");
    CHECK(contains(refusal("causal", {"--deepseek-sparse-top-k=3"}), "belong to ./train_deepseek_sparse"));
    CHECK(contains(refusal("seer", {"--sinks", "3"}), "belong to ./train_sinks"));
    for (const char* variant : {"asga", "asga_no_geometry"})
        CHECK(contains(refusal(variant, {"--asga-hiden", "8"}), "did you mean --asga-hidden?"));
    CHECK(contains(refusal("causal", {"--atention", "psa"}), "did you mean --attention?"));
    CHECK(contains(refusal("asga", {"--windows", "3"}), "unknown option --windows"));
}
