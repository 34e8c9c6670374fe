// libFuzzer target: any bytes as a token shard. Opening, checking and reading it must end in an Error or in tokens that are all
// below the vocabulary; every other exception, crash or hang is a finding.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/shard.h"
#include "model/base/disk.h"
#include "model/base/error.h"

namespace {

constexpr int vocabulary = 512;

void read_shard(const std::string& path) {
    const Shard shard(path);
    shard.check_content(vocabulary);
    std::vector<int32_t> tokens(shard.size());
    shard.copy(0, tokens.size(), tokens.data());
    for (const int32_t token : tokens)
        if (token < 0 || token >= vocabulary) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    const Descriptor file(memfd_create("shard", MFD_CLOEXEC));
    if (!write_all(file.get(), reinterpret_cast<const char*>(data), bytes)) std::abort();
    try {
        read_shard("/proc/self/fd/" + std::to_string(file.get()));
    } catch (const Error&) {
    }
    return 0;
}
