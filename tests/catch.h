#pragma once
// Catch2, version 2 or 3: Debian 12 and Ubuntu 22.04 have the first, Ubuntu 24.04 the second.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
