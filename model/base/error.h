// One way to fail: throw an Error with an exit code and one sentence that names the file, the value and a remedy. main() prints the
// sentence on stderr and returns the code; under mpirun that ends the other ranks too.
#pragma once
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

/// Exit codes of every program of this project.
enum class Exit : int {
    done = 0,
    usage = 2,          // an invalid option or value
    data = 3,           // shards, text, tokenizer files
    out_of_memory = 4,
    not_finite = 5,     // a loss, gradient or logit is NaN or infinite
    rank = 6,           // another rank hung or died, or a GPU failed
    checkpoint = 7,     // model folders, config.json, safetensors, disk full while saving
    signal = 75,        // stopped by a signal after saving
};

/// An empty sentence: another rank prints it.
struct Error : std::runtime_error {
    Exit code;
    Error(Exit code_, const std::string& sentence) : std::runtime_error(sentence), code(code_) {}
};

/// Throws an Error whose sentence is the concatenated arguments: fail(Exit::data, path, ": holds ", n, " tokens, header says ", m).
template <class... Parts>
[[noreturn]] void fail(Exit code, const Parts&... parts) {
    std::ostringstream sentence;
    sentence.precision(10);
    (sentence << ... << parts);
    throw Error(code, sentence.str());
}

/// The operating system's message for the last failed call.
inline std::string last_os_error() { return std::strerror(errno); }
