// What the next token of a text costs in the attention layer of each variant, and what the layer keeps of the text, on the CPU:
//   make build/dev/bench_decode && build/dev/bench_decode [WORD]
// float32, one text, 4 query heads, 2 key/value heads of 64, one thread, settings at their defaults; the fastest of eight groups of
// eight tokens behind SHORT and behind LONG tokens. WORD: only variants with it. Every variant at its default settings can.
#include <algorithm>
#include <cstdio>

#include "attention/variant.h"
#include "model/base/options.h"
#include "model/base/text.h"
#include "model/device/machine.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

namespace {

constexpr int SHORT = 512, LONG = 32768, GROUPS = 8, GROUP = 8;

struct Cost {
    double seconds, bytes;   // of a token, of the text
};

Cost measure(const Variant& variant, int T) {
    Config c;
    c.V = 64, c.C = 64, c.L = 1, c.NH = 4, c.NKV = 2, c.HS = 64, c.F = 64;
    const int room = T + GROUPS * GROUP;
    GPT<CPU, float> gpt(variant, c, 1, room, Mode::inference);
    BatchFeed<CPU> feed(1, room, c.V);
    gpt.allocate(CPU{}), feed.allocate(CPU{});
    initialise(gpt.net.tensors, 1, gpt.weights);
    gpt_weights_loaded(CPU{}, gpt);
    std::vector<int32_t> tokens(T);
    for (int t = 0; t < T; t++) tokens[t] = int(size_t(t) * 7919 % c.V);
    gpt_forward(CPU{}, gpt, feed.put(CPU{}, tokens.data(), nullptr, 1, T));

    const auto text = cpu_passes_of<float>(*gpt.net.layers[0].attention).start_text({1, room, c.C, c.NH, c.NKV, c.HS});
    text->allocate();
    LayerState<float>& state = gpt.layers[0].attention;
    text->begin(attention_inputs(gpt, 0, 1, T), gpt.weights, state);
    Cost cost{1e30, double(text->bytes())};
    for (int n = 0; n < GROUPS; n++) {
        const Stopwatch watch;
        for (int t = 0; t < GROUP; t++) text->next(attention_inputs(gpt, 0, 1, 1), gpt.weights, state);
        cost.seconds = std::min(cost.seconds, watch.seconds() / GROUP);
    }
    return cost;
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    return run_program("bench_decode", [&] {
        const std::string word = argc > 1 ? argv[1] : "";
        const int threads = use_threads(1, 1);
        std::printf("%s, float32\n\n| variant | us at %d | us at %d | ratio | of causal's | kept at %d | at %d |\n", describe_cpu(threads).c_str(),
                    SHORT, LONG, SHORT, LONG);
        std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
        const double causal = measure(named("causal"), LONG).seconds;
        for (const Variant* variant : all_variants()) {
            if (std::string(variant->name).find(word) == std::string::npos) continue;
            const Cost near = measure(*variant, SHORT), far = measure(*variant, LONG);
            std::printf("| %s | %.1f | %.1f | %.2f | %.2f | %s | %s |\n", variant->name, near.seconds * 1e6, far.seconds * 1e6,
                        far.seconds / near.seconds, far.seconds / causal, human_bytes(near.bytes).c_str(), human_bytes(far.bytes).c_str());
            std::fflush(stdout);
        }
    });
}
