// Errors of the emulator, and places in the source.
#pragma once
#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace emulator {

using Location = std::source_location;

/// A mistake in a kernel or in its launch. what() is one sentence with the place.
struct Error : std::runtime_error {
    using runtime_error::runtime_error;
};

template <class... Parts>
std::string join(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

inline std::string place(const Location& at) { return join(at.file_name(), ":", at.line()); }

/// The bare name of the function of `at`: g++ gives "void f(int) [with X = float]", of which this is `f`.
inline std::string function_at(const Location& at) {
    std::string name = at.function_name();
    const std::string anonymous = "(anonymous namespace)::";
    if (const size_t found = name.find(anonymous); found != std::string::npos) name.erase(found, anonymous.size());
    name = name.substr(0, name.find('('));
    if (const size_t space = name.rfind(' '); space != std::string::npos) name.erase(0, space + 1);
    return name;
}

}   // namespace emulator
