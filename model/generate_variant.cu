// The generator of one attention variant; see generators.h.
#include <cstdio>

#include "attention/attention.h"
#include "model/decode.cuh"
#include "model/generators.h"
#include "model/load.cuh"
#include "model/machine.cuh"
#include "model/summary.h"

/// What the mechanisms for inference have done, on stderr: stdout is for the text.
static void report(const Decoder<float, Attention>& decoder, const Inference& inference) {
    if (const PsaCount& psa = decoder.psa_count(); psa.rows > 0) {
        std::fprintf(stderr, "psa: read %.1f%% of the cached pairs while decoding\n", 100 * psa.visited / psa.cached);
        if (inference.psa.bound == PsaBound::upper)
            std::fprintf(stderr, "psa: certified share of the attention mass: %.4f on average, at least %.4f\n",
                         psa.retained / psa.rows, psa.least_retained);
    }
    if (const AdaSpaCount& adaspa = decoder.adaspa_count(); adaspa.heads > 0)
        std::fprintf(stderr, "adaspa: the prompt read %.1f%% of its pairs of blocks, which hold %.4f of the attention mass\n",
                     100 * adaspa.kept / adaspa.candidates, adaspa.recall / adaspa.heads);
}

static void generate_from(const std::string& folder, const Config& config, std::vector<int32_t>& ids, int count,
                          const Sampling& sampling, const Inference& inference) {
    const int T = int(std::min<int64_t>(config.max_positions, int64_t(ids.size()) + count));
    GPT<CPU, float, Attention> gpt(config, 1, T, Mode::inference);
    std::vector<MemoryUse> plan = gpt.memory_plan();
    if (can_decode_from_cache(gpt)) plan.push_back({"cached keys and values", cache_bytes<float>(config, T, inference)});
    add_overheads(CPU{}, plan, 0, false);
    const size_t needed = total_bytes(plan), available = available_memory();
    if (needed > available)
        fail(Exit::out_of_memory, "a text of ", T, " tokens needs ", human_bytes(double(needed)), " and the machine has ",
             human_bytes(double(available)), " left: lower --tokens");
    gpt.allocate(CPU{});
    load_for_inference(CPU{}, gpt, folder);
    const auto& attention = gpt.net.layers[0].attention;
    if (attention.needs_known_text())
        std::fprintf(stderr, "warning: with these settings of %s, tokens of the text read later ones\n", Attention::name);
    else if (!attention.is_causal())
        std::fprintf(stderr, "warning: these settings of %s look at later tokens, which a text being written does not have\n",
                     Attention::name);
    Decoder<float, Attention> decoder(gpt, inference);
    generate_with_cache(decoder, config.V, ids, count, sampling);
    report(decoder, inference);
}

static const bool entered = generators().emplace(Attention::name, Generator{Attention::settings, generate_from}).second;
