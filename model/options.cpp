#include "model/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <new>
#include <numeric>
#include <sstream>

#include "model/error.h"

namespace {

// Insertions, deletions and replacements that turn a into b, one row of the table at a time.
size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row.back();
}

std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

[[noreturn]] void fail_unknown(const CLI::App& app, const std::string& option, const std::string& where) {
    const std::string hint = nearest(option, option_names(app));
    fail(Exit::usage, "unknown option ", option, where, hint.empty() ? "; --help lists the options" : "; did you mean " + hint + "?");
}

// The first argument that looks like an option and was not taken, without its "=value"; "" when there is none. It is looked
// for before the parser's own complaint, because a mistyped option often shows as a missing one.
std::string unknown_option(const CLI::App& app) {
    for (const std::string& argument : app.remaining(true))
        if (argument.size() > 1 && argument[0] == '-') return argument.substr(0, argument.find('='));
    return "";
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
    std::string best;
    for (const std::string& candidate : candidates) {
        const size_t distance = edit_distance(word, candidate);
        if (distance >= fewest) continue;
        fewest = distance;
        best = candidate;
    }
    return best;
}

bool parse_options(CLI::App& app, int argc, const char* const* argv) {
    app.allow_config_extras(CLI::config_extras_mode::error);
    try {
        app.parse(argc, argv);
        return true;
    } catch (const CLI::Success& help) {
        app.exit(help);   // prints it
        return false;
    } catch (const CLI::ConfigError& error) {
        const std::string sentence = error.what();
        const std::string before_key = "not able to parse ";
        const size_t at = sentence.find(before_key);
        if (at == std::string::npos) fail(Exit::usage, sentence);
        fail_unknown(app, "--" + sentence.substr(at + before_key.size()), " in the configuration file");
    } catch (const CLI::ParseError& error) {
        const std::string unknown = unknown_option(app);
        if (!unknown.empty()) fail_unknown(app, unknown, "");
        fail(Exit::usage, error.what(), "; --help lists the options");
    }
}

CLI::Validator number_from(double lowest, double highest) {
    auto check = [lowest, highest](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool good = end != text.c_str() && *end == '\0' && value >= lowest && value <= highest;
        std::ostringstream complaint;
        if (!good) complaint << text << " is not a number from " << lowest << " to " << highest;
        return complaint.str();
    };
    std::ostringstream range;
    range << "from " << lowest << " to " << highest;
    return CLI::Validator(check, range.str());
}

int run_program(const std::string& program, const std::function<void()>& body) {
    const auto complain = [&](const std::string& sentence) { std::cerr << program << ": error: " << sentence << std::endl; };
    try {
        body();
        return static_cast<int>(Exit::done);
    } catch (const Error& error) {
        complain(error.what());
        return static_cast<int>(error.code);
    } catch (const std::bad_alloc&) {
        complain("out of memory");
        return static_cast<int>(Exit::out_of_memory);
    } catch (const std::exception& error) {
        complain(error.what());
        return 1;
    }
}
