// Command-line parsing for all programs, on top of CLI11. Every error is one sentence and Exit::usage; an unknown option gets the
// nearest known one as a suggestion. Header-only like CLI11, which is compiled wherever options are declared anyway.
#pragma once
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/base/options.h"
#include "model/base/process.h"

/// The long options that --help lists; it leaves out the group "".
inline std::vector<std::string> option_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        if (!option->get_group().empty())
            for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

/// Returns a clause on an unknown option that another program has ("it belongs to ./train_asga"), or "".
using OptionOwner = std::function<std::string(const std::string& option)>;

[[noreturn]] inline void fail_unknown(const CLI::App& app, const std::string& option, const std::string& where, const OptionOwner& owner) {
    const std::string elsewhere = owner ? owner(option) : "", hint = nearest(option, option_names(app));
    fail(Exit::usage, "unknown option ", option, where, !elsewhere.empty() ? "; " + elsewhere
                                                        : hint.empty()     ? "; --help lists the options"
                                                                           : "; did you mean " + hint + "?");
}

/// The first unrecognised argument that looks like an option, without its "=value"; "" if there is none. Reported before the
/// parser's own error, because a mistyped option often shows up as a missing one.
inline std::string unknown_option(const CLI::App& app) {
    for (const std::string& argument : app.remaining(true))
        if (argument.size() > 1 && argument[0] == '-') return argument.substr(0, argument.find('='));
    return "";
}

/// Parses the command line, and the configuration file if `app` has one. False after printing --help or --version: the program then
/// ends with code 0. Exit::usage, with a hint, for anything that cannot be parsed; Exit::data if the help cannot be printed.
inline bool parse_options(CLI::App& app, int argc, const char* const* argv, const OptionOwner& owner = {}) {
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
        fail_unknown(app, "--" + sentence.substr(at + before_key.size()), " in the configuration file", owner);
    } catch (const CLI::ParseError& error) {
        const std::string unknown = unknown_option(app);
        if (!unknown.empty()) fail_unknown(app, unknown, "", owner);
        fail(Exit::usage, error.what(), "; --help lists the options");
    }
}

/// A check for add_option: a number in [lowest, highest]. Refuses NaN.
inline CLI::Validator number_from(double lowest, double highest) {
    auto check = [lowest, highest](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool good = end != text.c_str() && *end == '\0' && value >= lowest && value <= highest;
        std::ostringstream complaint;
        complaint.precision(10);
        if (!good) complaint << text << " is not a number from " << lowest << " to " << highest;
        return complaint.str();
    };
    std::ostringstream range;
    range.precision(10);
    range << "from " << lowest << " to " << highest;
    return CLI::Validator(check, range.str());
}

/// The same for whole numbers, as a transform(): it strips leading zeros, which CLI11 would read as octal.
template <class Number>
CLI::Validator whole_number_from(Number lowest, Number highest) {
    const std::string range = "from " + std::to_string(lowest) + " to " + std::to_string(highest);
    auto transform = [=](std::string& text) {
        Number value{};
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc() || stop != end || value < lowest || value > highest) return text + " is not a whole number " + range;
        text = std::to_string(value);
        return std::string();
    };
    return CLI::Validator(transform, range);
}
