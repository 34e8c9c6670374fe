// What stands in for a library that was missing when the program was built: the Makefile takes data/without/NAME.cpp in the place of
// data/NAME.cpp, and the functions refuse when they are called. Training on shards calls none of them.
#pragma once
#include <string>

#include "model/base/error.h"

/// refuse_without("zlib", "zlib1g-dev", "a.txt.gz: cannot be decompressed")
[[noreturn]] inline void refuse_without(const char* library, const char* package, const std::string& what) {
    fail(Exit::usage, what, ", since this program was built without ", library, "; install it (apt install ", package,
         "), then make configure and build again");
}
