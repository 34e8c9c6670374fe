// The mask of chosen blocks (attention/blocks/block_bits.cuh) in tiles and in words, where the tests of every variant do not reach: more
// blocks than a word has bits, documents that begin inside tiles, blocks of several tiles, tiles in which nothing is hidden.
#include <random>

#include "attention/nsa.cuh"
#include "tests/attention_case.h"

namespace {

/// What is chosen from: the sizes of the choice, the blocks that every token sees, and whose choice token t takes, t / every's.
struct Blocks {
    int T, block, slots, leading, local, choosers, every = 1;
    bool fewer = false;   // than slots and candidates
};

/// A choice at random, as choose_blocks() leaves it: of the candidates every row takes some; or all if there are no more than slots, unless
/// it may take `fewer`.
std::vector<int> random_choice(const BlockChoice& c, const ForcedBlocks& forced, int every, bool fewer, const DocumentBlocks& blocks) {
    std::vector<int> choice(c.size(), -1);
    std::mt19937 random(c.T);
    for (int n = 0; n < c.B * c.choosers * c.T; n++) {
        const int t = n % c.T * every, b = n / c.T / c.choosers, candidates = blocks.past(b, t) + 1 - forced.leading - forced.local;
        for (int m = 0, taken = 0; m < candidates && taken < c.slots; m++)
            if (int(random() % (fewer ? 2000 : 1000)) * candidates < 1000 * c.slots)
                choice[size_t(n) * c.slots + taken++] = blocks.first(b, t) + forced.leading + m;
    }
    return choice;
}

/// Checks pairs, words and verdicts of the rows `step` apart. `starts` are tokens at which documents begin, or none.
void check_mask(const Blocks& of, const std::vector<int>& starts, int step) {
    INFO("T " << of.T << ", blocks of " << of.block << ", every " << of.every << ", documents " << starts.size());
    const int B = 2, NH = 4, T = of.T;
    std::vector<int> first_tokens(size_t(B) * T);
    for (int t = 0; t < T; t++)
        for (int start : starts)
            if (start <= t) first_tokens[T + t] = start;   // the first sequence is one document
    const Documents documents = starts.empty() ? Documents{} : Documents{first_tokens.data(), T};
    const BlockChoice c{B, (T + of.every - 1) / of.every, NH, of.choosers, of.block, of.slots};
    const ForcedBlocks forced(Policy(Config{}, 0), of.block, of.leading, of.local);
    const DocumentBlocks blocks{of.block, of.block, T, documents};
    const std::vector<int> choice = random_choice(c, forced, of.every, of.fewer, blocks);

    AttentionForward<double> a{};
    a.B = B, a.T = a.S = T, a.NH = NH, a.NKV = 2, a.documents = documents;
    const LayerShape s{B, T, 8, NH, 2, 2};
    BumpAllocator measure(nullptr);
    ChoiceMask(measure, s, c, true);
    std::vector<std::byte> memory(measure.bytes());
    BumpAllocator allocator(memory.data());
    const auto policy = ChoiceMask(allocator, s, c, true).apply<false>(CPU{}, forced, a, choice.data(), of.every, of.fewer);
    int wrong = 0, full = 0;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h += 3) {
            const TileWalk<double, SelectedBlocks<false>> walk(policy, a, b, h);
            for (int i = 0; i < T; i += step)
                for (int tile = 0; tile <= i / TILE; tile++) {
                    const int i0 = i / TILE * TILE, j0 = tile * TILE, first = blocks.first(b, i), start = i - blocks.inside(b, i);
                    const Tile verdict = walk.judge_listed({b, h, i0, j0, std::min(TILE, T - i0), TILE});
                    const int own = i0 / of.block, n = tile * TILE / of.block;
                    const int* const chosen = choice.data() + c.of_token(b, h / (NH / of.choosers), i / of.every);
                    for (int j = j0; j < std::min(T, j0 + TILE); j++) {
                        const int m = (j - start) / of.block;
                        const bool takes = forced.forced((i - start) / of.block, m) ||
                                           std::find(chosen, chosen + of.slots, first + m) != chosen + of.slots;
                        const bool sees = start <= j && j <= i && takes;
                        wrong += (walk.bits(i, j) & 1) != sees;
                        wrong += sees ? verdict == Tile::hidden : verdict == Tile::full;
                    }
                    const bool touched = policy.bits.tiles(b, h, i, tile / 64) >> (tile % 64) & 1;
                    wrong += touched != (policy.bits.word(b, h, i, tile) != 0);
                    full += verdict == Tile::full;
                    const bool all = own + 1 - of.leading - of.local <= of.slots && !of.fewer;
                    const bool whole = all || forced.forced(own, n) || of.every != 1;
                    if (!documents && tile < i0 / TILE && whole) wrong += verdict == Tile::mixed;
                }
        }
    CHECK(wrong == 0);
    CHECK(full > 0);
}

}   // namespace

TEST_CASE("chosen blocks: each query sees its blocks, and tiles without hidden pairs are full", "[attention][blocks]") {
    check_mask({460, TILE, 1, 1, 2, 2}, {}, 1);   // as in nsa
    check_mask({460, TILE, 2, 1, 2, 2, TILE}, {}, 1);
    check_mask({460, TILE, 0, 1, 2, 2}, {}, 1);
    check_mask({460, TILE, 1, 1, 2, 2}, {0, 20, 100, 300}, 1);
    check_mask({70 * TILE + 9, TILE, 3, 1, 2, 2}, {}, 7);
    check_mask({70 * TILE + 9, TILE, 17, 1, 2, 2}, {0, 2, 64 * 69}, 7);
    check_mask({730, 2 * TILE, 2, 0, 1, 4}, {}, 1);   // as in moba
    check_mask({730, 2 * TILE, 1, 0, 1, 4}, {0, 20, 300, 301, 470}, 1);
    check_mask({70 * TILE + 9, 3 * TILE, 2, 0, 1, 4}, {0, 70, 64 * 20 + 5}, 7);
    check_mask({460, TILE, 3, 1, 1, 2, 1, true}, {}, 1);   // as in seer_r with a threshold
}

TEST_CASE("nsa's mask: where all blocks are chosen it is causal attention", "[attention][nsa]") {
    const PolicyCase<float, nsa> layer({1, 1, 2, 1, 8, {{"nsa_selected", 16}}});
    CHECK((layer.policy.selection.sees_all(1024) && !layer.policy.selection.sees_all(1025)));
    const NsaBranch slc = layer.policy.branch(SLC);
    for (int i0 = 0; i0 < 1024; i0 += TILE)
        for (int j0 = 0; j0 < 1024; j0 += TILE)
            CHECK(slc.tile(0, i0, i0 + TILE, j0, j0 + TILE) == Policy::causal_tile(i0, i0 + TILE, j0, j0 + TILE));
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
