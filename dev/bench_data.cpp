// Tokens per second of reading shards, in order and shuffled, which must stay far above what any model trains on:
//   make build/dev/bench_data && build/dev/bench_data 'DIR/*.bin' [BATCH_SIZE [SEQ_LEN [VOCABULARY]]]
// The vocabulary is GPT-2's unless given; as when training starts, tokens are checked against it, or known from an earlier start.
#include <cstdio>
#include <cstdlib>

#include "data/loader.h"
#include "model/base/error.h"
#include "model/base/options.h"
#include "model/base/text.h"

namespace {

double tokens_per_second(const TokenStream& stream, int B, int T, bool shuffle) {
    Loader loader(stream, {B, T, 1, 0, 1, 1, shuffle});
    std::vector<int32_t> inputs(size_t(B) * T), targets(inputs.size());
    const int64_t batches = std::max<int64_t>(1, std::min<int64_t>(int64_t(stream.size()), 100000000) / (int64_t(B) * T));
    loader.next(inputs.data(), targets.data());
    Stopwatch watch;
    for (int64_t n = 0; n < batches; n++) loader.next(inputs.data(), targets.data());
    return double(batches) * B * T / watch.seconds();
}

}   // namespace

int main(int argc, char** argv) {
    return run_program("bench_data", [&] {
        if (argc < 2) fail(Exit::usage, "usage: build/dev/bench_data 'DIR/*.bin' [BATCH_SIZE [SEQ_LEN [VOCABULARY]]]");
        const int B = argc > 2 ? std::atoi(argv[2]) : 8, T = argc > 3 ? std::atoi(argv[3]) : 1024;
        if (B < 1 || T < 1) fail(Exit::usage, "a batch of ", B, " x ", T, ": expected at least 1 x 1");
        Stopwatch watch;
        const TokenStream stream(argv[1], argc > 4 ? std::atoi(argv[4]) : 50257);
        std::printf("%llu tokens in %zu shards, opened and checked in %.2f s\n", static_cast<unsigned long long>(stream.size()),
                    stream.shards(), watch.seconds());
        for (const bool shuffle : {false, true})
            std::printf("batches of %d x %d, %s: %.1f million tokens/s\n", B, T, shuffle ? "shuffled" : "in order",
                        tokens_per_second(stream, B, T, shuffle) / 1e6);
    });
}
