// What the command lines of all programs have in common: unknown options name the nearest known one, and every error ends
// the program with one sentence on stderr and its exit code.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}

/// The candidate with the smallest edit distance (Levenshtein) to `word`, "" when none is near enough to be a slip of the
/// fingers: more than a third of the word's letters, at least two, would have to change.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// Parses the command line (and the configuration file, where `app` has one). False when --help or --version was asked for
/// and printed: the program then ends with code 0. Anything that cannot be parsed: Exit::usage with a hint.
bool parse_options(CLI::App& app, int argc, const char* const* argv);

/// A check for add_option: a number from `lowest` to `highest`, both included; NaN is none.
CLI::Validator number_from(double lowest, double highest);

/// Runs the body of main() and returns the exit code: 0, or that of the Error that was thrown, with "PROGRAM: error: SENTENCE" on
/// stderr. Running out of memory is Exit::out_of_memory; other exceptions give 1.
int run_program(const std::string& program, const std::function<void()>& body);
