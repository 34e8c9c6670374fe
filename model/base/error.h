// One way to fail: throw an Error that carries the exit code and one sentence that names the file, the value and the way out.
// main() prints the sentence on stderr and returns the code; under mpirun it takes the other ranks down with it.
#pragma once
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

/// Exit codes of every program of this project.
enum class Exit : int {
    done = 0,
    usage = 2,          // an option or a value that makes no sense
    data = 3,           // shards, text, tokenizer files
    out_of_memory = 4,
    not_finite = 5,     // a loss or gradient that is NaN or infinite
    rank = 6,           // another rank hung or died
    checkpoint = 7,     // model folders, config.json, safetensors, disk full while saving
    signal = 75,        // stopped on a signal after saving
};

struct Error : std::runtime_error {
    Exit code;
    Error(Exit code_, const std::string& sentence) : std::runtime_error(sentence), code(code_) {}
};

/// Joins its arguments to one sentence and throws it: fail(Exit::data, path, ": holds ", n, " tokens, header says ", m).
template <class... Parts>
[[noreturn]] void fail(Exit code, const Parts&... parts) {
    std::ostringstream sentence;
    sentence.precision(10);
    (sentence << ... << parts);
    throw Error(code, sentence.str());
}

/// The operating system's words for the last failed call.
inline std::string last_os_error() { return std::strerror(errno); }
