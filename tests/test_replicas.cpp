// Flipped bits in what ranks keep. (tests/ranks.sh flips them in a running job.)
#include "model/checkpoint/checkpoint.h"
#include "model/run/replicas.cuh"
#include "tests/errors.h"
#include "tests/temporary_folder.h"
#include "tests/whole_model.h"

namespace {

Variants of_first() { return Variants(*all_variants()[0], {}); }

void flip(float& x, int bit) { x = std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ (uint32_t(1) << bit)); }

}   // namespace

TEST_CASE("checksums: any flipped bit changes the sum of its piece and of no other", "[ranks]") {
    std::vector<float> x(1000);
    for (size_t i = 0; i < x.size(); i++) x[i] = i % 3 ? 0.0f : float(i) / 7;
    const std::vector<Piece> pieces = {{0, 300}, {300, 301}, {301, 1000}};
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

TEST_CASE("replicas: a flipped bit of a weight or moment is named, with AdamW and with Muon", "[ranks]") {
    for (const auto& [shard, shards, optimizer] : {std::tuple{1, 2, Optimizer::adamw}, {0, 1, Optimizer::muon}, {1, 2, Optimizer::muon}}) {
        GPT<CPU, float> gpt(of_first(), config_of({}), 2, 9, Mode::training, Recompute::nothing, shard, shards, 512, Stored::as_computed,
                            optimizer);
        gpt.allocate(CPU{});
        const std::vector<HeldSpan> second = gpt.second_moments();
        CHECK((stored_size(second) < gpt.shards.owned()) == (optimizer == Optimizer::muon));
        const std::vector<Piece> own = pieces_of(gpt.net.tensors, owned_spans(gpt.shards)).pieces;
        const std::vector<Piece> rest = pieces_of(gpt.net.tensors, second).pieces;
        ReplicaCheck<CPU, float> check(CPU{}, gpt);
        Ranks ranks;
        check.remember_update(CPU{});
        if (shards == 1) check.require_equal(CPU{}, ranks, 7);   // which remembers
        const auto complaint = [&] { return refusal(Exit::rank, [&] { check.require_unchanged(CPU{}, ranks, 8); }); };
        CHECK(complaint() == "");
        const Tensor& tensor = *std::next(gpt.net.tensors.begin(), 3);
        for (auto& [array, at, words] : {std::tuple{gpt.weights, tensor.slot.offset + 1, "the weights of " + tensor.name},
                                         {gpt.m, own.back().begin, std::string("the first moments of ")},
                                         {gpt.m, own[own.size() / 2].begin, std::string("the first moments of ")},
                                         {gpt.v, rest.front().begin, std::string("the second moments of ")},
                                         {gpt.v, rest.back().end - 1, std::string("the second moments of model.norm.weight")}}) {
            flip(array[at], 7);
            const std::string sentence = complaint();
            INFO(sentence);
            CHECK(sentence.find(words) != std::string::npos);
            CHECK(sentence.find("since the update of step 7") != std::string::npos);
            flip(array[at], 7);
            CHECK(complaint() == "");
        }
    }
}

TEST_CASE("replicas: a bit that flips while a checkpoint is saved is named, and the checkpoint gets no name", "[ranks]") {
    const TemporaryFolder folder;
    GPT<CPU, float> gpt(of_first(), config_of({}), 2, 9, Mode::training, Recompute::nothing);
    gpt.allocate(CPU{});
    ReplicaCheck<CPU, float> check(CPU{}, gpt);
    Ranks ranks;
    const Tensor& tensor = *std::next(gpt.net.tensors.begin(), 3);
    for (auto& [array, words] : {std::pair{gpt.weights, "the weights of "}, {gpt.m, "the first moments of "}, {gpt.v, "the second moments of "}}) {
        float& flipped = array[tensor.slot.offset + 1];
        TrainerState state;
        for (bool before : {true, false}) {   // before or after the file is written
            const std::vector<uint64_t> sums = check.sums_to_save(CPU{}, ranks);
            if (before) flip(flipped, 7);
            const auto save = [&](int bit) {
                save_checkpoint(folder.path(), gpt.net.config, gpt.net.tensors, gpt.weights, gpt.m, gpt.v, state, nullptr, {}, {}, {}, [&] {
                    flip(flipped, bit);
                    check.require_saved(sums, gpt.weights, gpt.m, gpt.v);
                });
            };
            const std::string sentence = refusal(Exit::rank, [&] { save(before ? 8 : 7); });
            CHECK(sentence.find("on rank 0, " + (words + tensor.name) + " changed while a checkpoint was saved") == 0);
            CHECK(std::filesystem::is_empty(folder.path()));
            flip(flipped, 7);
            if (before) flip(flipped, 8);
        }
    }
    CHECK(refusal(Exit::rank, [&] { check.require_saved(check.sums_to_save(CPU{}, ranks), gpt.weights, gpt.m, gpt.v); }) == "");
}

TEST_CASE("replicas: the pieces of all shards are every element of every tensor, once", "[ranks]") {
    const Qwen net(of_first(), config_of({}));
    for (int count : {1, 2, 3}) {
        std::vector<size_t> elements(net.tensors.count());
        std::vector<uint64_t> sums(elements.size()), expected(elements.size());
        std::vector<float> flat(net.tensors.size() + 1000);
        for (size_t i = 0; i < flat.size(); i++) flat[i] = 1 / float(i + 1);
        for (int s = 0; s < count; s++) {
            const Shards shards(net.tensors.size(), s, count, 480);
            std::vector<float> stored;
            for (size_t k = 0; k < shards.buckets(); k++) stored.insert(stored.end(), &flat[shards.own(k).begin], &flat[shards.own(k).end]);
            const TensorPieces own = pieces_of(net.tensors, owned_spans(shards));
            for (size_t p = 0; p < own.pieces.size(); p++) elements[own.tensors[p]] += own.pieces[p].size();
            own.add_up(Checksums<CPU>(CPU{}, own.pieces).of(CPU{}, stored.data()).data(), sums.data());
        }
        const TensorPieces whole = pieces_of(net.tensors);
        whole.add_up(Checksums<CPU>(CPU{}, whole.pieces).of(CPU{}, flat.data()).data(), expected.data());
        CHECK(sums == expected);
        size_t number = 0;
        for (const Tensor& tensor : net.tensors) CHECK(elements[number++] == tensor.slot.size);
    }
}
