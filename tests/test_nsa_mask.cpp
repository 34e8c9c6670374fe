// The mask of nsa's chosen blocks (attention/nsa/selection.cuh) in tiles and in words, where the tests of every variant do not reach:
// more blocks than a word has bits, documents that begin inside tiles, tiles in which nothing is hidden.
#include <random>

#include "attention/nsa.cuh"
#include "tests/attention_case.h"

namespace {

/// A choice at random, as choose_blocks() leaves it: of the candidates every row takes some, or all if there are no more than slots.
std::vector<int> random_choice(const BlockChoice& c, const Selection& selection, const DocumentBlocks& blocks) {
    std::vector<int> choice(c.size(), -1);
    std::mt19937 random(c.T);
    for (int n = 0; n < c.B * c.choosers * c.T; n++) {
        const int t = n % c.T * selection.every, b = n / c.T / c.choosers, candidates = blocks.past(b, t) - 2;
        for (int block = 1, taken = 0; block <= candidates && taken < c.slots; block++)
            if (int(random() % 1000) * candidates < 1000 * c.slots) choice[size_t(n) * c.slots + taken++] = blocks.first(b, t) + block;
    }
    return choice;
}

/// Checks pairs, words and verdicts of the rows `step` apart. `starts` are tokens at which documents begin, or none.
void check_mask(int T, const Selection& selection, const std::vector<int>& starts, int step) {
    INFO("T " << T << ", " << selection.blocks << " blocks, every " << selection.every << ", documents " << starts.size());
    const int B = 2, NH = 4, NKV = 2;
    std::vector<int> first_tokens(size_t(B) * T);
    for (int t = 0; t < T; t++)
        for (int start : starts)
            if (start <= t) first_tokens[T + t] = start;   // the first sequence is one document
    const Documents documents = starts.empty() ? Documents{} : Documents{first_tokens.data(), T};
    const LayerShape s{B, T, 8, NH, NKV, 2};
    const BlockChoice c = selection.choice(s);
    const DocumentBlocks blocks{TILE, TILE, T, documents};
    const std::vector<int> choice = random_choice(c, selection, blocks);

    AttentionForward<double> a{};
    a.B = B, a.T = a.S = T, a.NH = NH, a.NKV = NKV, a.documents = documents;
    BumpAllocator measure(nullptr);
    SelectionMask{measure, s, selection};
    std::vector<std::byte> memory(measure.bytes());
    BumpAllocator allocator(memory.data());
    const SelectedBlocks policy = SelectionMask(allocator, s, selection).apply(CPU{}, Policy(Config{}, 0), a, choice.data());
    int wrong = 0, full = 0;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h += 3) {
            const TileWalk<double, SelectedBlocks> walk(policy, a, b, h);
            for (int i = 0; i < T; i += step)
                for (int tile = 0; tile <= i / TILE; tile++) {
                    const int i0 = i / TILE * TILE, j0 = tile * TILE, first = blocks.first(b, i), start = i - blocks.inside(b, i);
                    const Tile verdict = walk.judge_listed({b, h, i0, j0, std::min(TILE, T - i0), TILE});
                    const int* const chosen = choice.data() + c.of_token(b, h / 2, i / selection.every);
                    for (int j = j0; j < std::min(T, j0 + TILE); j++) {
                        const bool sees = start <= j && j <= i &&
                                          selection.sees(chosen, T, first, (i - start) / TILE, (j - start) / TILE);
                        wrong += (walk.bits(i, j) & 1) != sees;
                        wrong += sees ? verdict == Tile::hidden : verdict == Tile::full;
                    }
                    const bool touched = policy.bits.tiles(b, h / 2, i, tile / 64) >> (tile % 64) & 1;
                    wrong += touched != (policy.bits.word(b, h, i, tile) != 0);
                    full += verdict == Tile::full;
                    const bool is_whole = i0 / TILE <= selection.blocks - 1 || tile == 0 || tile == i0 / TILE - 1 || selection.every != 1;
                    if (!documents && tile < i0 / TILE && is_whole) wrong += verdict == Tile::mixed;
                }
        }
    CHECK(wrong == 0);
    CHECK(full > 0);
}

}   // namespace

TEST_CASE("nsa's mask: each query sees its blocks, and tiles without hidden pairs are full", "[attention][nsa]") {
    check_mask(460, {4, 1}, {}, 1);
    check_mask(460, {5, TILE}, {}, 1);
    check_mask(460, {3, 1}, {}, 1);
    check_mask(460, {4, 1}, {0, 20, 100, 300}, 1);
    check_mask(70 * TILE + 9, {6, 1}, {}, 7);
    check_mask(70 * TILE + 9, {20, 1}, {0, 2, 64 * 69}, 7);
}

TEST_CASE("nsa's mask: where all blocks are chosen it is causal attention, without a list or bits", "[attention][nsa]") {
    const PolicyCase<float, nsa> layer({1, 1, 2, 1, 8, {{"nsa_selected", 16}}});
    CHECK((layer.policy.selection.sees_all(1024) && !layer.policy.selection.sees_all(1025)));
    const NsaBranch slc = layer.policy.branch(SLC);
    for (int i0 = 0; i0 < 1024; i0 += TILE)
        for (int j0 = 0; j0 < 1024; j0 += TILE)
            CHECK(slc.tile(0, i0, i0 + TILE, j0, j0 + TILE) == Policy::causal_tile(i0, i0 + TILE, j0, j0 + TILE));
    BumpAllocator measure(nullptr);
    SelectionMask{measure, {1, 1024, 8, 2, 1, 8}, layer.policy.selection};
    CHECK(measure.bytes() == 0);
}

TEST_CASE("nsa expects the pairs that it visits, and no fewer tiles", "[attention][nsa]") {
    const int T = 460, NH = 4;
    for (double shared : {0, 1}) {
        PolicyCase<double, nsa> layer({1, T, NH, 2, 8, {{"nsa_selected", 4}, {"nsa_choice", shared}}});
        std::vector<double> pairs(size_t(BRANCHES) * NH * T), tiles(size_t(BRANCHES) * NH * tiles_of(T));
        layer.statistics.pairs = pairs.data(), layer.statistics.tiles = tiles.data();
        layer.forward();
        const PairCount expected = layer.policy.expected_pairs(NH, T);
        CHECK(sum_of(pairs) == expected.pairs);
        CHECK((shared ? sum_of(tiles) == expected.tiles : sum_of(tiles) <= expected.tiles));
        CHECK(layer.policy.expects_at_most() == !shared);
    }
}
