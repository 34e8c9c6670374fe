// The logits of a text, for tests/check_modeling.py:  build/dev/logits FOLDER < ids > logits
// Ids are 32 bits each, logits float32 (tokens, V).
#include <algorithm>
#include <cstdio>
#include <vector>

#include "attention/variant.h"
#include "model/base/options.h"
#include "model/checkpoint/load.cuh"
#include "model/device/machine.h"
#include "model/run/feed.cuh"

static std::vector<int32_t> read_ids(const Config& c) {
    std::vector<int32_t> ids;
    for (int32_t id; std::fread(&id, sizeof id, 1, stdin) == 1;) ids.push_back(id);
    if (ids.empty()) fail(Exit::data, "standard input has no ids");
    for (int32_t id : ids)
        if (id < 0 || id >= c.V) fail(Exit::data, "id ", id, " is not in the model's vocabulary 0..", c.V - 1);
    return ids;
}

int main(int argc, char** argv) {
    return run_program("logits", [&] {
        if (argc != 2) fail(Exit::usage, "usage: logits FOLDER < ids > logits");
        const Config config = load_config(argv[1]);
        const std::vector<int32_t> ids = read_ids(config);
        const int T = int(ids.size());
        use_threads(0, 1);
        GPT<CPU, float> gpt({named(config.variant), all_variants()}, config, 1, T, Mode::inference);
        BatchFeed<CPU> feed(1, T, config.V);
        gpt.allocate(CPU{}), feed.allocate(CPU{});
        load_for_inference(CPU{}, gpt, argv[1]);
        gpt.forward(CPU{}, feed.put(CPU{}, ids.data(), nullptr, 1, T));
        for (int row = 0; row < T; row += gpt.logit_rows) {
            const int rows = std::min(gpt.logit_rows, T - row);
            std::fwrite(gpt.logits(CPU{}, row, rows), sizeof(float), size_t(rows) * config.V, stdout);
        }
        if (std::fflush(stdout) != 0 || std::ferror(stdout))
            fail(Exit::data, "standard output cannot be written: ", last_os_error());
    });
}
