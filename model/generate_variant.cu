// The generator of one attention variant; see generators.h.
#include "attention/attention.h"
#include "model/checkpoint.h"
#include "model/generate.cuh"
#include "model/generators.h"
#include "model/machine.cuh"
#include "model/summary.h"

/// Refuses a folder that lacks weights: text from random numbers would look like a bad model.
static void generate_from(const std::string& folder, const Config& config, std::vector<int32_t>& ids, int count,
                          const Sampling& how) {
    const int T = int(std::min<int64_t>(config.max_positions, int64_t(ids.size()) + count));
    GPT<CPU, float, Attention> gpt(config, 1, T, Mode::inference);
    std::vector<MemoryUse> plan = gpt.memory_plan();
    add_overheads(CPU{}, plan, 0, false);
    const size_t needed = total_bytes(plan), available = available_memory();
    if (needed > available)
        fail(Exit::out_of_memory, "a text of ", T, " tokens needs ", human_bytes(double(needed)), " and the machine has ",
             human_bytes(double(available)), " left: lower --tokens");
    gpt.allocate(CPU{});
    const LoadReport report = load_weights(folder, gpt.net.tensors, 1, gpt.weights);
    if (!report.initialised.empty())
        fail(Exit::checkpoint, folder, ": lacks ", report.initialised.size(), " tensors of ", Attention::name, ", the first is ",
             report.initialised.front());
    gpt_weights_loaded(CPU{}, gpt);
    generate(CPU{}, gpt, ids, count, how);
}

static const bool entered = generators().emplace(Attention::name, generate_from).second;
