// The indexer of deepseek_sparse, its choice of keys and what it learns, where the generic tests of variants do not reach.
#include "attention/deepseek_sparse.cuh"
#include "model/qwen.h"
#include "tests/attention_case.h"
#include "tests/threads.h"

namespace {

using Case = PolicyCase<double, deepseek_sparse>;
using Settings = std::map<std::string, double>;
const std::string D = "deepseek_sparse_";

Settings of(double top, double distil, double heads = 4, double dim = 32) {
    return {{D + "top_k", top}, {D + "distil", distil}, {D + "heads", heads}, {D + "dim", dim}};
}

/// A choice from scores that are there already.
struct ChoiceOf {
    int T, top;
    std::vector<uint64_t> words;
    std::vector<double> pairs, lse;
    PairBits bits;
    ChoiceOf(const std::vector<std::vector<double>>& scores, int top_, const std::vector<int>& starts = {})
        : T(int(scores.size())), top(top_), words(size_t(T) * tiles_of(T)), pairs(size_t(tiles_of(T)) * TILE * padded(T)), lse(T),
          bits{words.data(), T} {
        const IndexPiece<double> piece{1, T, 0, tiles_of(T), pairs.data()};
        for (int t = 0; t < T; t++) std::copy(scores[t].begin(), scores[t].end(), piece.row(t / TILE, t % TILE));
        const Documents documents{starts.empty() ? nullptr : starts.data(), T};
        choose_keys(CPU{}, ChosenKeys<double>{bits, nullptr, nullptr, nullptr, lse.data()}, piece, documents, top);
    }
    std::vector<int> keys(int t) const {
        std::vector<int> seen;
        for (int j = 0; j <= t / TILE * TILE + TILE - 1; j++)
            if (bits.word(0, t, j / TILE) >> (j % TILE) & 1) seen.push_back(j);
        return seen;
    }
};

}   // namespace

TEST_CASE("deepseek_sparse: the greatest scores are chosen, ties go to the earlier key, in the own document", "[attention][indexer]") {
    const ChoiceOf choice({{1}, {1, 1}, {0, 2, 1}, {0, 0, 0, 0}, {3, 1, 2, 3, 1}, {0, -1, -0.0, 5, 0, -2}}, 2);
    const std::vector<std::vector<int>> expected{{0}, {0, 1}, {1, 2}, {0, 1}, {0, 3}, {0, 3}};
    for (int t = 0; t < 6; t++) CHECK(choice.keys(t) == expected[t]);
    const ChoiceOf near({{1}, {1, 1}, {NAN, 1, 2}, {1, 1.01, 1, 1}, {1.02, 1, 1.01, 1.03, 1.01}}, 2);   // no number is no great one
    const std::vector<std::vector<int>> of_near{{0}, {0, 1}, {1, 2}, {0, 1}, {0, 3}};
    for (int t = 0; t < 5; t++) CHECK(near.keys(t) == of_near[t]);
    CHECK(std::fabs(choice.lse[4] - (3 + std::log(2))) < 1e-15);
    CHECK(std::fabs(choice.lse[5] - std::log(std::exp(5) + 1)) < 1e-14);

    const ChoiceOf packed({{1}, {1, 1}, {9, 9, 1}, {9, 9, 0, 0}, {9, 9, 2, 3, 1}, {9, 9, 2, 3, 1, 2}}, 2, {0, 0, 2, 2, 2, 2});
    const std::vector<std::vector<int>> own{{0}, {0, 1}, {2}, {2, 3}, {2, 3}, {2, 3}};
    for (int t = 0; t < 6; t++) CHECK(packed.keys(t) == own[t]);
}

TEST_CASE("deepseek_sparse: the indexer has the gradients of its loss, and nothing of attention's", "[attention][indexer]") {
    const Threads one(1);
    Settings weighted = of(20, 1);
    weighted[D + "distil_weight"] = 3;
    for (const Settings& settings : {of(20, 1), of(20, 2), of(200, 1, 1, 64), weighted}) {
        Case layer({2, 90, 4, 2, 16, settings});
        layer.forward();
        layer.backward(std::vector<double>(layer.out.size(), 0));
        for (const Tensor& tensor : layer.tensors) {
            INFO(tensor.name);
            const size_t begin = tensor.slot.offset, end = begin + tensor.slot.size;
            const auto own = [=](size_t n) { return n >= begin && n < end; };
            const auto loss = [&] { return layer.forward(), sum_of(layer.auxiliary); };
            CHECK(slope_error(layer.weights, layer.dweights, own, loss, 1e-7) <= 2e-6);   // by a step so small that it crosses no kink
        }
        Case other({2, 90, 4, 2, 16, settings});
        other.forward();
        other.backward(normal_numbers(other.out.size(), 7));
        CHECK(bit_difference(other.dweights, layer.dweights) == "");
        CHECK(sum_of(layer.dx) == 0);
    }
}

TEST_CASE("deepseek_sparse: pieces of any size learn the same", "[attention][indexer]") {
    Case layer({2, 200, 2, 1, 8, of(20, 1)});
    layer.forward();
    const LayerInputs<double> in = layer.inputs();
    const deepseek_sparse& p = layer.policy;
    const IndexShape s = p.index_shape(in);
    auto learn = [&](int at_once) {
        const size_t tiles = tiles_of(in.T), BT = s.tokens();
        std::vector<int> starts(BT);   // of documents: no query of the second looks at the tiles of the first
        for (size_t n = 0; n < BT; n++) starts[n] = int(n) % in.T < 2 * TILE ? 0 : 2 * TILE;
        std::vector<std::byte> memory(deepseek_sparse::ForwardScratch<double>(p, nullptr, in).allocator.bytes());
        const deepseek_sparse::ForwardScratch<double> scratch(p, memory.data(), in);
        const deepseek_sparse::Kept<double> kept(p, layer.kept_state().kept, in);
        const ChosenKeys<double> chosen{kept.bits, kept.count, kept.list, scratch.touched, scratch.lse};
        index_forward(CPU{}, scratch.index, in, layer.weights.data(), p.tensors);
        IndexPiece<double>::each(in.B, in.T, at_once, scratch.pairs, [&](const IndexPiece<double>& piece) {
            index_scores(CPU{}, piece, scratch.index, TouchedTiles{});
            choose_keys(CPU{}, chosen, piece, Documents{starts.data(), in.T}, p.most());
        });
        list_chosen_tiles(CPU{}, chosen, in.B, in.NH);
        std::vector<double> results(size_t(in.B) * in.NH), divergences(8 * TILE * tiles, NAN), of(BT, NAN);
        std::vector<double> dqk(BT * s.row(), NAN), dw(BT * s.heads, NAN);
        const double scale = scratch.index.scale();
        const IndexDistillation<double> d{in, layer.kept_state().lse, scratch.index, chosen, 1, scale, divergences.data(), of.data(),
                                          dqk.data(), dw.data()};
        distil_index(CPU{}, results.data(), d, at_once, scratch.pairs);
        for (const auto* part : {&dqk, &dw, &of}) results.insert(results.end(), part->begin(), part->end());
        return results;
    };
    const std::vector<double> whole = learn(8);
    CHECK(all_finite(whole));
    for (int at_once : {1, 3}) CHECK(bit_difference(learn(at_once), whole) == "");
}

TEST_CASE("deepseek_sparse: what is trained, counted and refused", "[attention][indexer]") {
    const std::string own = "model.layers.0.self_attn.deepseek_sparse.wq", other = "model.layers.0.self_attn.q_proj.weight";
    auto policy = [](const Settings& settings) { return Case({1, 1, 4, 2, 16, settings}).policy; };
    CHECK((policy(of(20, 0)).trains(other) && !policy(of(20, 0)).trains(own)));
    CHECK((policy(of(20, 1)).trains(other) && policy(of(20, 1)).trains(own)));
    CHECK((!policy(of(20, 2)).trains(other) && policy(of(20, 2)).trains(own)));

    Config hybrid;   // what its layers freeze is frozen, whatever other layers train
    hybrid.L = 2, hybrid.layers = {{"causal"}, {"deepseek_sparse", of(20, 0)}};
    for (const Tensor& t : Qwen(Variants(named("deepseek_sparse"), {&on_cpu::causal}), hybrid).tensors)
        CHECK((t.role == Role::frozen) == (t.name.find(".deepseek_sparse.") != std::string::npos));

    auto rotated = [](int D, int HS) { return IndexShape{1, 1, 4, D, HS}.rotated(); };   // half, in which RoPE's table has frequencies
    CHECK((rotated(64, 64) == 32 && rotated(128, 64) == 64 && rotated(128, 32) == 32 && rotated(64, 24) == 8));

    CHECK(policy(of(20, 0)).expected_pairs(4, 100).tiles == 4 * 3);
    CHECK((policy(of(20, 0)).expects_at_most() && !policy(of(20, 2)).expects_at_most()));
    CHECK(policy(of(20, 0)).further_pairs(4, 100) == 5050.0 * 4 * 32 / (2 * 16));
    CHECK(policy(of(20, 1)).further_pairs(4, 100) == (5050.0 * 4 * 32 + 1810.0 * (5 * 4 * 32 + 4 * 16)) / (2 * 16));
    CHECK(policy(of(20, 0)).cached_keys(100) == 100 * (1 + 32.0 / 64));
    CHECK_FALSE(Case::accepts(named("deepseek_sparse"), {1, 1, 2, 1, 16, of(20, 0, 4, 96)}));
    CHECK(Case::accepts(named("deepseek_sparse"), {1, 1, 2, 1, 16, of(20, 0, 4, 128)}));
}
