// The order of rows: what --shuffle 0 promises, a shuffle that loses nothing, the same rows for any number of ranks.
#include <array>
#include <set>
#include <sstream>

#include "data/loader.h"
#include "data/permutation.h"
#include "tests/shards.h"

namespace {

constexpr int vocabulary = 1 << 20;

// A folder with one shard whose tokens are their own positions, opened.
struct Ramp {
    explicit Ramp(size_t tokens) : stream(write_shard(file_in(folder, "ramp.bin"), ramp(tokens), vocabulary), vocabulary) {}
    TemporaryFolder folder;
    Mixture stream;
};

struct Rows {
    std::vector<int32_t> inputs, targets;   // (B, T)
};

Rows next(Loader& loader, const LoaderConfig& config) {
    const size_t size = static_cast<size_t>(config.B) * config.T;
    Rows batch = {std::vector<int32_t>(size), std::vector<int32_t>(size)};
    loader.next(batch.inputs.data(), batch.targets.data());
    return batch;
}

// First tokens of all rows that `ranks` ranks read in one optimiser step; checks that the rows are whole.
std::multiset<int32_t> rows_of_step(const Mixture& stream, LoaderConfig config, int64_t step) {
    std::multiset<int32_t> starts;
    for (config.rank = 0; config.rank < config.ranks; ++config.rank) {
        Loader loader(stream, config);
        loader.seek(step);
        for (int m = 0; m < config.micro_steps; ++m) {
            const Rows batch = next(loader, config);
            for (int b = 0; b < config.B; ++b) {
                const int32_t* row = &batch.inputs[b * config.T];
                for (int t = 0; t < config.T; ++t) REQUIRE(row[t] == row[0] + t);
                for (int t = 0; t < config.T; ++t) REQUIRE(batch.targets[b * config.T + t] == row[t] + 1);
                starts.insert(row[0]);
            }
        }
    }
    return starts;
}

}  // namespace

TEST_CASE("permute is a bijection for every small size") {
    for (uint64_t n = 1; n <= 200; ++n)
        for (const uint64_t key : {0u, 1u, 77u}) {
            std::vector<bool> seen(n, false);
            for (uint64_t i = 0; i < n; ++i) {
                const uint64_t to = permute(i, n, key);
                REQUIRE(to < n);
                REQUIRE_FALSE(seen[to]);
                seen[to] = true;
            }
        }
}

TEST_CASE("permute: large sizes stay in range, hit nothing twice and look shuffled") {
    for (const uint64_t n : {uint64_t{1000003}, (uint64_t{1} << 32) + 1, (uint64_t{1} << 62) - 3, ~uint64_t{0}}) {
        std::set<uint64_t> seen;
        uint64_t in_lower_half = 0;
        const uint64_t checked = 20000;
        for (uint64_t i = 0; i < checked; ++i) {
            const uint64_t to = permute(i, n, 5);
            REQUIRE(to < n);
            REQUIRE(seen.insert(to).second);
            in_lower_half += to < n / 2;
        }
        CHECK(in_lower_half > checked * 48 / 100);   // 5.6 standard deviations
        CHECK(in_lower_half < checked * 52 / 100);
    }
}

TEST_CASE("permute: keys give different orders, and every element goes everywhere") {
    constexpr uint64_t n = 50, keys = 5000;
    std::vector<int> hits(n * n, 0);
    for (uint64_t key = 0; key < keys; ++key)
        for (uint64_t i = 0; i < n; ++i) ++hits[i * n + permute(i, n, key)];
    double chi_squared = 0;   // 2499 degrees of freedom nearly: mean 2450, deviation 70
    for (const int count : hits) chi_squared += (count - 100.0) * (count - 100.0) / 100.0;
    CHECK(chi_squared < 2450 + 6 * 70);
}

TEST_CASE("loader in order: rows start where the formula says, and wrap") {
    const Ramp data(1003);
    LoaderConfig config{.B = 3, .T = 16, .ranks = 2, .micro_steps = 2, .shuffle = false};
    const int64_t n = windows(data.stream.first(), config.T);
    CHECK(n == 62);
    for (config.rank = 0; config.rank < config.ranks; ++config.rank) {
        Loader loader(data.stream, config);
        for (int64_t k = 0; k < 12; ++k)
            for (int64_t m = 0; m < config.micro_steps; ++m) {
                const Rows batch = next(loader, config);
                for (int64_t b = 0; b < config.B; ++b) {
                    const int64_t row = ((k * config.micro_steps + m) * config.ranks + config.rank) * config.B + b;
                    REQUIRE(batch.inputs[b * config.T] == row % n * config.T);
                    REQUIRE(batch.targets[b * config.T + config.T - 1] == row % n * config.T + config.T);
                }
            }
    }
}

TEST_CASE("loader shuffled: an epoch has every row once, the next one in another order and phase") {
    const Ramp data(1003);
    const RowOrder order(data.stream.first(), 16, true, 7);
    const uint64_t n = order.rows_per_epoch();
    CHECK(n == 61);
    std::set<std::vector<uint64_t>> orders;
    std::set<uint64_t> phases;
    for (uint64_t epoch = 0; epoch < 10; ++epoch) {
        std::vector<uint64_t> starts;
        for (uint64_t row = 0; row < n; ++row) starts.push_back(order.start(epoch * n + row));
        const uint64_t phase = starts[0] % 16;
        orders.insert(starts);
        phases.insert(phase);
        std::sort(starts.begin(), starts.end());
        for (uint64_t w = 0; w < n; ++w) REQUIRE(starts[w] == w * 16 + phase);
        REQUIRE(starts.back() + 16 < data.stream.size());
    }
    CHECK(orders.size() == 10);
    CHECK(phases.size() > 4);
    CHECK(RowOrder(data.stream.first(), 16, true, 8).start(0) != order.start(0));
}

TEST_CASE("loader: 1, 2 and 4 ranks see the same rows in a step") {
    const Ramp data(2000);
    for (const bool shuffle : {false, true}) {
        const LoaderConfig alone{.B = 8, .T = 10, .seed = 3, .shuffle = shuffle};
        for (int64_t step = 0; step < 30; ++step)   // more than one epoch
            for (const auto [B, ranks, micro_steps] : {std::array{4, 2, 1}, {1, 4, 2}, {2, 1, 4}}) {
                const LoaderConfig config{.B = B, .T = 10, .ranks = ranks, .micro_steps = micro_steps, .seed = 3, .shuffle = shuffle};
                REQUIRE(rows_of_step(data.stream, config, step) == rows_of_step(data.stream, alone, step));
            }
    }
}

TEST_CASE("loader: seek continues the sequence, forwards and back") {
    const Ramp data(500);
    const LoaderConfig config{.B = 2, .T = 8, .micro_steps = 3, .seed = 11};
    Loader straight(data.stream, config);
    std::vector<std::vector<int32_t>> expected;
    for (int i = 0; i < 60; ++i) expected.push_back(next(straight, config).inputs);
    Loader loader(data.stream, config);
    for (const int64_t step : {7, 0, 19, 7}) {
        loader.seek(step);
        for (int m = 0; m < 3; ++m) REQUIRE(next(loader, config).inputs == expected[step * 3 + m]);
    }
    loader.seek(1000000000000);
    CHECK_NOTHROW(next(loader, config));
}

TEST_CASE("loader: the shortest streams") {
    for (const bool shuffle : {false, true})
        for (const size_t extra : {1, 2, 15, 16, 17, 31}) {
            const Ramp data(16 + extra);
            const LoaderConfig config{.B = 5, .T = 16, .shuffle = shuffle};
            for (int64_t step = 0; step < 20; ++step) REQUIRE(rows_of_step(data.stream, config, step).size() == 5);
        }
    const Ramp data(16);
    const LoaderConfig config{.T = 16};
    CHECK(says(error_of([&] { Loader(data.stream, config); }), Exit::data, {"ramp.bin", "16 tokens", "17"}));
    CHECK(windows(data.stream.first(), 16) == 0);
}

TEST_CASE("loader: what fails on the thread is thrown by next(), again and again, and the thread ends cleanly") {
    const Ramp data(100000);
    const LoaderConfig config{.T = 64, .shuffle = false};
    Loader loader(data.stream, config);
    std::filesystem::resize_file(file_in(data.folder, "ramp.bin"), 3000);
    for (int attempt = 0; attempt < 3; ++attempt)
        CHECK(says(error_of([&] { next(loader, config); }), Exit::data, {"ramp.bin", "cut short"}));
}

TEST_CASE("validation rows are fixed, in order and bounded") {
    const Ramp data(100);
    CHECK(windows(data.stream.first(), 9) == 11);
    CHECK(windows(data.stream.first(), 99) == 1);
    CHECK(windows(data.stream.first(), 100) == 0);
    std::vector<int32_t> inputs(18), targets(18);
    validation_rows(data.stream.first(), 9, 9, 2, inputs.data(), targets.data());
    for (int i = 0; i < 18; ++i) CHECK(inputs[i] == 81 + i);
    for (int i = 0; i < 18; ++i) CHECK(targets[i] == 82 + i);
    const Error error = error_of([&] { validation_rows(data.stream.first(), 10, 9, 2, inputs.data(), targets.data()); });
    CHECK(says(error, Exit::data, {"rows 10 to 11", "100 tokens", "11 such rows"}));
}

TEST_CASE("mixture: every source has its share of the rows of any stretch, each of its rows in turn") {
    const Ramp a(400), b(100), c(100);
    const auto mixed = [&](const std::string& weights) {
        std::istringstream words(weights);
        std::string spec, weight;
        for (const Ramp* ramp : {&a, &b, &c}) words >> weight, spec += weight + " " + file_in(ramp->folder, "ramp.bin") + " ";
        return Mixture(spec, vocabulary);
    };
    const Mixture mixture = mixed("5 2 1");
    CHECK(mixture.size() == 600);
    std::vector<uint64_t> next_of(3, 0);
    for (const uint64_t first : {uint64_t{0}, uint64_t{1} << 40}) {   // rows are found without those before them
        if (first) next_of = mixture.counts(first);
        for (uint64_t row = first; row < first + 5000; ++row) {
            const auto [source, index] = mixture.place(row);
            REQUIRE(index == next_of[source]++);
            REQUIRE(mixture.counts(row + 1) == next_of);
            for (size_t n = 0; n < 3; ++n) REQUIRE(std::abs(double(next_of[n]) - double(row + 1) * mixture.sources()[n].share) < (first ? 1e3 : 2));
        }
    }
    CHECK(mixed("0.625 .25 1.25e-1").fingerprint() == mixture.fingerprint());
    CHECK(mixed("5 1 2").fingerprint() != mixture.fingerprint());
}

TEST_CASE("mixture: any number of ranks trains on the same rows, each source in its own order") {
    const Ramp a(2000), b(300);
    const Mixture mixture("0.75 " + file_in(a.folder, "ramp.bin") + " 0.25 " + file_in(b.folder, "ramp.bin"), vocabulary);
    const LoaderConfig alone{.B = 8, .T = 10, .seed = 3}, shared{.B = 1, .T = 10, .ranks = 4, .micro_steps = 2, .seed = 3};
    const RowOrder of_a(mixture.sources()[0].stream, 10, true, 3), of_b(mixture.sources()[1].stream, 10, true, 3);
    uint64_t from_a = 0, from_b = 0;
    for (int64_t step = 0; step < 40; ++step) {
        const auto rows = rows_of_step(mixture, alone, step);
        REQUIRE(rows_of_step(mixture, shared, step) == rows);
        std::multiset<int32_t> expected;   // 6 and 2 of every 8
        for (int n = 0; n < 6; ++n) expected.insert(int32_t(of_a.start(from_a++)));
        for (int n = 0; n < 2; ++n) expected.insert(int32_t(of_b.start(from_b++)));
        REQUIRE(rows == expected);
    }
}

TEST_CASE("mixture: one glob may have spaces; weights that make no sense, and sources too short, are named") {
    const Ramp a(100), tiny(5);
    const std::string path = file_in(a.folder, "ramp.bin"), spaced = file_in(a.folder, "my ramp.bin");
    std::filesystem::copy_file(path, spaced);
    CHECK(Mixture(spaced, vocabulary).size() == 100);
    CHECK(Mixture("1 " + spaced + " 3 " + path, vocabulary).sources()[0].stream.name() == spaced);
    CHECK(Mixture(path, vocabulary).fingerprint() == TokenStream(path, vocabulary).fingerprint());
    for (const std::string weight : {"0", "-0.5", "1e999"}) {
        const Error error = error_of([&] { Mixture("0.5 " + path + " " + weight + " " + path, vocabulary); });
        CHECK(says(error, Exit::usage, {path, "not a positive number"}));
    }
    CHECK(says(error_of([&] { Mixture("0.5 " + path + " 0.5", vocabulary); }), {"0.5 has no shards"}));
    CHECK(error_of([&] { Mixture("0.5 0.5 " + path, vocabulary); }).code == Exit::usage);
    CHECK(error_of([&] { Mixture("1 " + path + " 1 " + path + ".none", vocabulary); }).code == Exit::data);
    const Mixture uneven("1 " + path + " 1 " + file_in(tiny.folder, "ramp.bin"), vocabulary);
    const LoaderConfig config{.T = 16};
    CHECK(says(error_of([&] { Loader(uneven, config); }), {file_in(tiny.folder, "ramp.bin"), "5 tokens"}));
}
