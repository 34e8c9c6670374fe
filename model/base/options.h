// Shared by all programs: suggestions for mistyped names, and a main() that turns every error into one sentence on stderr and an
// exit code. (Command lines: command_line.h.)
#pragma once
#include <functional>
#include <string>
#include <vector>

/// The candidate with the smallest edit distance (Levenshtein) to `word`; "" if none is within a third of the word's length, or two
/// if that is more.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

/// Exit::usage if `option`, which names a file to write, names the file of `other_option`. Either may be "".
void require_two_files(const char* option, const std::string& file, const char* other_option, const std::string& other);

/// Runs the body of main() and returns the exit code: 0, or that of a thrown Error, with "PROGRAM: error: SENTENCE" on stderr.
/// std::bad_alloc and a thread that cannot be started give Exit::out_of_memory, std::filesystem's errors Exit::data, others 1.
int run_program(const std::string& program, const std::function<void()>& body);
