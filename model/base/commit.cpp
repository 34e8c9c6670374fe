// The commit of the build, `git describe --dirty`, which the Makefile passes as -DCOMMIT="1a2b3c4d5e6f-dirty".
#include <string_view>

#include "model/base/process.h"

constexpr std::string_view DIRTY = "-dirty";
constexpr std::string_view DESCRIBED = COMMIT;

bool source_is_dirty() { return DESCRIBED.ends_with(DIRTY); }

const char* source_commit() {
    static const std::string commit(DESCRIBED.substr(0, DESCRIBED.size() - (source_is_dirty() ? DIRTY.size() : 0)));
    return commit.c_str();
}
