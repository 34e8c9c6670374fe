// What ranks must have in common, and flipped bits in what they keep. (tests/check_flipped_bit.py flips them in a running job.)
#include "catch.h"

#include "model/run/replicas.cuh"
#include "model/run/start.h"
#include "tests/whole_model.h"

namespace {

/// Exit::rank with a sentence that has `word` in it, where the check is made by rank 0 of one.
std::string complaint_of(const std::function<void()>& check) {
    try {
        check();
    } catch (const Error& error) {
        CHECK(error.code == Exit::rank);
        return error.what();
    }
    return "";
}

void flip(float& x, int bit) { x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ (uint32_t(1) << bit)); }

}   // namespace

TEST_CASE("checksums: any flipped bit changes the sum of its piece and of no other", "[ranks]") {
    std::vector<float> x(1000);
    for (size_t i = 0; i < x.size(); i++) x[i] = i % 3 ? 0.0f : float(i) / 7;
    const std::vector<Span> pieces = {{0, 300}, {300, 301}, {301, 1000}};
    const Checksums<CPU> checksums(CPU{}, pieces);
    const std::vector<uint64_t> before = checksums.of(CPU{}, x.data());
    for (size_t i : {0, 299, 300, 301, 998, 999})
        for (int bit : {0, 15, 31}) {
            flip(x[i], bit);
            const std::vector<uint64_t> after = checksums.of(CPU{}, x.data());
            for (size_t p = 0; p < pieces.size(); p++) CHECK((after[p] != before[p]) == (i >= pieces[p].begin && i < pieces[p].end));
            flip(x[i], bit);
        }
    CHECK(checksums.of(CPU{}, x.data()) == before);
}

TEST_CASE("replicas: a flipped bit of a weight or moment that only one rank keeps is named", "[ranks]") {
    GPT<CPU, float> gpt(Variants(*all_variants()[0], {}), config_of({}), 2, 9, Mode::training, Recompute::nothing, 1, 2, 512);
    gpt.allocate(CPU{});
    ReplicaCheck<CPU, float> check(CPU{}, gpt);
    const Ranks ranks;
    check.remember(CPU{});
    CHECK(complaint_of([&] { check.require_unchanged(CPU{}, ranks, 8); }) == "");
    const Tensor& tensor = *std::next(gpt.net.tensors.begin(), 3);
    const std::vector<Span> own = pieces_of(gpt.net.tensors, gpt.shards).spans;
    for (auto& [array, at, words] : {std::tuple{gpt.weights, tensor.slot.offset + 1, "the weights of " + tensor.name},
                                     {gpt.m, own.back().begin, std::string("the first moments of ")},
                                     {gpt.v, own.front().begin, std::string("the second moments of ")}}) {
        flip(array[at], 7);
        const std::string sentence = complaint_of([&] { check.require_unchanged(CPU{}, ranks, 8); });
        INFO(sentence);
        CHECK(sentence.find(words) != std::string::npos);
        CHECK(sentence.find("since the update of step 7") != std::string::npos);
        flip(array[at], 7);
        CHECK(complaint_of([&] { check.require_unchanged(CPU{}, ranks, 8); }) == "");
    }
}

TEST_CASE("replicas: the pieces of all shards are every element of every tensor, once", "[ranks]") {
    const Variants variants(*all_variants()[0], {});
    const Qwen net(variants, config_of({}));
    for (int count : {1, 2, 3}) {
        std::map<std::string, size_t> elements;
        for (int s = 0; s < count; s++) {
            const NamedPieces own = pieces_of(net.tensors, Shards(net.tensors.size(), s, count, 480));
            for (size_t p = 0; p < own.spans.size(); p++) elements[own.names[p]] += own.spans[p].size();
        }
        for (const Tensor& tensor : net.tensors) CHECK(elements[tensor.name] == tensor.slot.size);
    }
}

TEST_CASE("agreement: options enter it but for those of one rank, and paths count as given or not", "[ranks]") {
    Options o;
    o.resolved = "device=\"cpu\"\nlr=0.001\nthreads=2\nout=\"a\"\ntrain-data=\"x/*.bin\"\nval-data=\"\"\nwatchdog-seconds=5\nmodel=\"qwen-7m\"\n"
                 "checkpoint=\"y\"\n";
    std::map<std::string, std::string> facts;
    for (const Fact& fact : facts_of_options(o, "asga")) facts[fact.name] = fact.value;
    CHECK(facts["--lr"] == "0.001");
    CHECK(facts["--model"] == "\"qwen-7m\"");
    CHECK(facts["--train-data"] == "given");
    CHECK(facts["--val-data"] == "\"\"");
    CHECK(facts["--checkpoint"] == "given");
    CHECK(facts["the program"].starts_with("train_asga of commit "));
    for (const char* own : {"--device", "--threads", "--out", "--watchdog-seconds"}) CHECK(!facts.contains(own));
}
