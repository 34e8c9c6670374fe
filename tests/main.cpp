// main() of the tests. Version 2 of Catch2 compiles it here, version 3 brings it in a library.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
