// Command-line parsing for all programs, on top of CLI11. Every error is one sentence and Exit::usage; an unknown option gets the
// nearest known one as a suggestion. Header-only like CLI11, which is compiled wherever options are declared anyway.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/base/options.h"
#include "model/base/process.h"

/// Exit::usage, suggesting the nearest option that --help lists: those of the group "" are hidden.
[[noreturn]] inline void fail_unknown(const CLI::App& app, const std::string& unknown, const std::string& where) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        if (!option->get_group().empty())
            for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string hint = nearest(unknown, names);
    fail(Exit::usage, "unknown option ", unknown, where, hint.empty() ? "; --help lists the options" : "; did you mean " + hint + "?");
}

/// Parses the command line, and the configuration file if `app` has one. False after printing --help or --version: the program then
/// ends with code 0. Exit::usage, with a hint, for anything that cannot be parsed; Exit::data if the help cannot be printed.
inline bool parse_options(CLI::App& app, int argc, const char* const* argv) {
    app.allow_config_extras(CLI::config_extras_mode::error);
    try {
        app.parse(argc, argv);
        return true;
    } catch (const CLI::Success& help) {
        app.exit(help);   // prints it
        require_printed();
        return false;
    } catch (const CLI::ConfigError& error) {
        const std::string sentence = error.what();
        const std::string before_key = "not able to parse ";
        const size_t at = sentence.find(before_key);
        if (at == std::string::npos) fail(Exit::usage, sentence);
        fail_unknown(app, "--" + sentence.substr(at + before_key.size()), " in the configuration file");
    } catch (const CLI::ParseError& error) {
        for (const std::string& argument : app.remaining(true))   // a mistyped option often shows up as a missing one
            if (argument.size() > 1 && argument[0] == '-') fail_unknown(app, argument.substr(0, argument.find('=')), "");
        fail(Exit::usage, error.what(), "; --help lists the options");
    }
}

/// Checks that a text is a `kind` of number in [lowest, highest]. Refuses NaN. Strips leading zeros of whole numbers, which CLI11 would
/// read as octal.
template <class Number>
CLI::Validator in_range(const std::string& kind, Number lowest, Number highest) {
    std::ostringstream range;
    range.precision(10);
    range << "from " << lowest << " to " << highest;
    auto check = [=, range = range.str()](std::string& text) {
        Number value{};
        const char* const end = text.data() + text.size();
        const bool has_plus = std::is_floating_point_v<Number> && text.starts_with('+');
        const auto [stop, error] = std::from_chars(text.data() + has_plus, end, value);
        if (error != std::errc() || stop != end || !(value >= lowest && value <= highest)) return text + " is not a " + kind + " " + range;
        if (std::is_integral_v<Number>) text = std::to_string(value);
        return std::string();
    };
    return CLI::Validator(check, range.str());
}

/// For add_option(...)->check().
inline CLI::Validator number_from(double lowest, double highest) { return in_range("number", lowest, highest); }

/// For add_option(...)->transform().
template <class Number>
CLI::Validator whole_number_from(Number lowest, Number highest) {
    return in_range("whole number", lowest, highest);
}
