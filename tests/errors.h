// The Error that a call throws.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "tests/catch.h"

/// The Error that `call` throws, or one with code `done` if it throws none. Other exceptions propagate.
template <class Call>
Error error_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    return Error(Exit::done, "nothing was thrown");
}

/// The sentence that `call` is refused with, by an Error with this code; "" where it is not refused.
template <class Call>
std::string refusal(Exit code, Call call) {
    const Error error = error_of(call);
    if (error.code == Exit::done) return "";
    CHECK(error.code == code);
    return error.what();
}

/// Whether the error's sentence contains all parts. A check that fails shows the sentence.
inline bool says(const Error& error, const std::vector<std::string>& parts) {
    const std::string sentence = error.what();
    UNSCOPED_INFO(sentence);
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return sentence.find(part) != std::string::npos; });
}

/// The same of an error with this code.
inline bool says(const Error& error, Exit code, const std::vector<std::string>& parts) { return says(error, parts) && error.code == code; }
