// Batches on their way to the GPU (model/run/feed.cuh) and recorded work on them (model/device/graphs.cuh): what the GPU sees of
// each step, in several orders of the streams.
#include "model/run/feed.cuh"

#include "model/device/graphs.cuh"
#include "tests/gpu/on_gpu.h"
#include "tests/shards.h"

namespace {

constexpr int B = 2, T = 5, N = B * T, VOCABULARY = 1000;

/// A stream of tokens that tell where they lie, and loaders of it that all give the same steps.
struct Tokens {
    TemporaryFolder folder;
    Mixture stream{write_shard(file_in(folder, "ramp.bin"), ramp(997), VOCABULARY), VOCABULARY};
    LoaderConfig config{.B = B, .T = T};
};

/// Tokens, targets and rows by token of one step as the host makes them.
struct HostStep {
    std::vector<int32_t> tokens = std::vector<int32_t>(N), targets = tokens, rows = tokens;
    void sort() {
        std::vector<TokenRun> runs(RowsByToken::capacity_for(N, VOCABULARY));
        sort_by_token(tokens.data(), N, VOCABULARY, rows.data(), runs.data());
    }
    std::vector<int32_t> all() const { return joined(joined(tokens, targets), rows); }
};
HostStep next(Loader& loader) {
    HostStep step;
    loader.next(step.tokens.data(), step.targets.data());
    step.sort();
    return step;
}

/// Work of the device's stream, as a training step would be.
void copy(const GPU& device, int32_t* to, const int32_t* from) {
    check(cudaMemcpyAsync(to, from, N * sizeof(int32_t), cudaMemcpyDeviceToDevice, device.stream));
}
void copy(const GPU& device, int32_t* to, const Batch& from) {
    copy(device, to, from.tokens), copy(device, to + N, from.targets), copy(device, to + 2 * N, from.by_token.rows);
}

}   // namespace

TEST_CASE("GPU feed: the host runs ahead, and every batch has its own tokens, targets and rows by token", "[gpu][feed]") {
    const int steps = 8;
    const Tokens tokens;
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        INFO("order " << order);
        Loader loader(tokens.stream, tokens.config), same(tokens.stream, tokens.config);
        const DeviceMemory<int32_t> trained(std::vector<int32_t>(steps * 3 * N, -1)), put(trained.host());
        BatchFeed<GPU> feed(B, T, VOCABULARY);
        feed.allocate(test_gpu());
        std::vector<int32_t> expected, expected_put;
        for (int step = 0; step < steps; step++) {
            copy(test_gpu(), trained.data() + step * 3 * N, feed.next(test_gpu(), loader, B, T));
            if (step % 4 != 3) feed.prefetch(test_gpu(), loader, B, T);
            expected = joined(expected, next(same).all());
            HostStep other;   // as in a validation between the steps
            for (int n = 0; n < N; n++) other.tokens[n] = (7 * n + step) % VOCABULARY, other.targets[n] = n + step;
            other.sort();
            expected_put = joined(expected_put, step % 2 ? other.all() : std::vector<int32_t>(3 * N, -1));
            if (step % 2 == 0) continue;
            copy(test_gpu(), put.data() + step * 3 * N, feed.put(test_gpu(), other.tokens.data(), other.targets.data(), B, T));
        }
        CHECK(trained.host() == expected);
        CHECK(put.host() == expected_put);
    }
}

TEST_CASE("GPU feed: where documents begin, of batches from a loader and of those that are put", "[gpu][feed][documents]") {
    const Tokens tokens;
    Loader loader(tokens.stream, tokens.config), same(tokens.stream, tokens.config);
    const HostStep first = next(same), second = next(same);
    const int32_t border = first.tokens[3];
    BatchFeed<GPU> feed(B, T, VOCABULARY, {border, true});
    feed.allocate(test_gpu());
    auto check_starts = [&](const Batch& batch, const std::vector<int32_t>& tokens) {
        std::vector<int32_t> expected(N), seen(N);
        find_documents(tokens.data(), B, T, border, expected.data());
        to_host(test_gpu(), seen.data(), batch.documents.start, N);
        CHECK(seen == expected);
        CHECK((batch.documents.T == T && batch.documents.restart_positions));
    };
    check_starts(feed.next(test_gpu(), loader, B, T), first.tokens);
    feed.prefetch(test_gpu(), loader, B, T);
    check_starts(feed.put(test_gpu(), first.tokens.data(), nullptr, B, T), first.tokens);
    check_starts(feed.next(test_gpu(), loader, B, T), second.tokens);
    BatchFeed<GPU> whole(B, T, VOCABULARY);
    whole.allocate(test_gpu());
    CHECK_FALSE(whole.put(test_gpu(), first.tokens.data(), nullptr, B, T).documents);
}

TEST_CASE("GPU graphs: each place for a batch and each kind of step has a recording of its own", "[gpu][feed]") {
    const int steps = 20;   // of each of the four, one as it is, one recorded, one replayed
    const Tokens tokens;
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        INFO("order " << order);
        Loader loader(tokens.stream, tokens.config), same(tokens.stream, tokens.config);
        const DeviceMemory<int32_t> result(std::vector<int32_t>(N, -1)), seen(std::vector<int32_t>(steps * N, -1));
        BatchFeed<GPU> feed(B, T, VOCABULARY);
        feed.allocate(test_gpu());
        StepGraphs<GPU> graphs;
        std::vector<int32_t> expected;
        for (int step = 0; step < steps; step++) {
            const Batch batch = feed.next(test_gpu(), loader, B, T);
            const Write write = step % 3 ? Write::add : Write::overwrite;
            graphs.run(test_gpu(), batch.tokens, write,
                       [&] { copy(test_gpu(), result.data(), write == Write::add ? batch.targets : batch.tokens); });
            copy(test_gpu(), seen.data() + step * N, result.data());
            feed.prefetch(test_gpu(), loader, B, T);
            const HostStep now = next(same);
            expected = joined(expected, write == Write::add ? now.targets : now.tokens);
        }
        CHECK(seen.host() == expected);
    }
}
