// The generator of one attention variant; see generators.h.
#include "attention/attention.h"
#include "model/checkpoint.h"
#include "model/generate.cuh"
#include "model/generators.h"

/// Refuses a folder that lacks weights: text from random numbers would look like a bad model.
static void generate_from(const std::string& folder, const Config& config, std::vector<int32_t>& ids, int count,
                          const Sampling& how) {
    const int T = std::min<int>(config.max_positions, int(ids.size()) + count);
    GPT<CPU, float, Attention> gpt(config, 1, T, Mode::inference);
    gpt.allocate();
    const LoadReport report = load_weights(folder, gpt.net.tensors, 1, gpt.weights);
    if (!report.initialised.empty())
        fail(Exit::checkpoint, folder, ": lacks ", report.initialised.size(), " tensors of ", Attention::name, ", the first is ",
             report.initialised.front());
    generate(CPU{}, gpt, ids, count, how);
}

static const bool entered = generators().emplace(Attention::name, generate_from).second;
