// Replacements for sources whose library was missing at build time: the Makefile compiles data/without/NAME.cpp instead of the
// source of that name, and its functions fail when called. Training on shards calls none of them.
#pragma once
#include <string>

#include "model/base/error.h"

/// refuse_without("zlib", "zlib1g-dev", "a.txt.gz: cannot be decompressed")
[[noreturn]] inline void refuse_without(const char* library, const char* package, const std::string& what) {
    fail(Exit::usage, what, ", since this program was built without ", library, "; install it (apt install ", package,
         "), then build again");
}
