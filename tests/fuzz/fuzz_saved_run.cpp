// libFuzzer target: any bytes as the NAME_progress.json of a stopped ./tokenize. What is taken for one must survive being written.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "data/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    const auto run = saved_run_from_json(std::string(reinterpret_cast<const char*>(data), bytes));
    if (!run) return 0;
    const std::string json = saved_run_to_json(*run);
    const auto again = saved_run_from_json(json);
    if (!again || saved_run_to_json(*again) != json || !difference(run->made_by, again->made_by).empty()) std::abort();
    return 0;
}
