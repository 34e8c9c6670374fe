// libFuzzer target: any bytes as a file of evaluation items. The first byte chooses JSON Lines or llm.c's layout. Reading must end
// in an Error or in items that can be scored.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "data/evaluation.h"
#include "model/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes == 0) return 0;
    static const std::string stem = "/dev/shm/fuzz_evaluation_" + std::to_string(getpid());
    static const auto tokenizer = open_tokenizer("bytes");
    const std::string path = stem + (data[0] % 2 ? ".jsonl" : ".bin");
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data + 1), std::streamsize(bytes - 1));
    try {
        const EvaluationTask task = read_evaluation({path, "items"}, tokenizer.get(), 512, 1024, data[0] / 2);
        size_t answers = 0;
        for (const EvaluationItem& item : task.items) answers += item.answers.size();
        const EvaluationScores scores = score(task, std::vector<float>(answers, -1.0f));
        if (scores.items == 0 || scores.chosen.size() != task.items.size() || !(scores.sum >= 0 && scores.sum <= 1)) std::abort();
    } catch (const Error&) {
    }
    return 0;
}
