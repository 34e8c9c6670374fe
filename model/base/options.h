// What all programs have in common: a mistyped name names the nearest one, and every error ends the program with one sentence on
// stderr and its exit code. (Command lines: command_line.h.)
#pragma once
#include <functional>
#include <string>
#include <vector>

/// The candidate with the smallest edit distance (Levenshtein) to `word`, "" when none is near enough to be a slip of the
/// fingers: more than a third of the word's letters, at least two, would have to change.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// Runs the body of main() and returns the exit code: 0, or that of the Error that was thrown, with "PROGRAM: error: SENTENCE" on
/// stderr. Running out of memory is Exit::out_of_memory; other exceptions give 1.
int run_program(const std::string& program, const std::function<void()>& body);
