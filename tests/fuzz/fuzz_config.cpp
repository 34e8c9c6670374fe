// libFuzzer: any text is either refused with an Error or gives a configuration that survives writing and reading.
#include <cstdlib>
#include <string>

#include "model/base/error.h"
#include "model/config.h"

static void write_and_read(const Config& config) {
    const std::string written = config_to_json(config);
    if (config_to_json(config_from_json(written, "written")) != written) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Config config;
    try {
        config = config_from_json(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    } catch (const Error&) {
        return 0;
    }
    write_and_read(config);   // an Error from here is a finding
    return 0;
}
