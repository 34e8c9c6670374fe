// The rows of a choice of blocks (attention/blocks/block_rows.cuh), the choice from scores, and the merging of rows.
#include "attention/blocks/choose_blocks.cuh"
#include "attention/blocks/merge_rows.cuh"
#include "attention/moba.cuh"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/token_blocks.h"

namespace {

/// Rows in memory of their own.
struct ListedBlocks {
    std::vector<std::byte> memory;
    BlockRows rows;
    explicit ListedBlocks(const ChoiceCase& one) : rows(one.c, one.first, one.slots) {
        BumpAllocator measure(nullptr);
        rows.take(measure);
        memory.assign(measure.bytes() + 64, std::byte(0x55));   // what is not written shows
        BumpAllocator allocator(memory.data());
        rows.take(allocator);
        list_block_rows(CPU{}, rows, one.choice.data());
    }
};

/// The tokens that chose block n in the pass, ascending.
std::vector<int> tokens_of(const ChoiceCase& one, int b, int chooser, int n) {
    std::vector<int> tokens;
    for (int t = 0; t < one.c.T; t++) {
        const int* mine = &one.choice[one.c.of_token(b, chooser, t) + one.first];
        if (std::count(mine, mine + one.slots, n)) tokens.push_back(t);
    }
    return tokens;
}

}   // namespace

TEST_CASE("blocks of packed documents: whole ones have numbers of their own, keys by block are their tokens", "[attention][blocks]") {
    const int B = 2, T = 700;
    std::vector<int32_t> start(B * T);   // from 0, 3, 200, 201, 409 and 600; and one text
    for (int t = 0; t < T; t++) start[t] = t < 3 ? 0 : t < 200 ? 3 : t < 201 ? 200 : t < 409 ? 201 : t < 600 ? 409 : 600;
    for (auto [length, stride] : {std::pair{64, 64}, {32, 16}, {5, 5}, {7, 3}, {1, 1}, {128, 128}}) {
        const DocumentBlocks blocks{length, stride, T, {start.data(), T}};
        std::vector<int> expected(B * T, -1);   // by number
        for (int n = 0; n < B * T; n++) {
            const int b = n / T, t = n % T, begin = start[n];
            if ((t - begin) % stride || t + length > T || start[n + length - 1] != begin) continue;
            int& first_token = expected[b * T + blocks.first(b, t) + blocks.inside(b, t) / stride];
            CHECK(first_token == -1);
            first_token = t;
        }
        int wrong = 0;
        for (int n = 0; n < B * T; n++) wrong += blocks.begin(n / T, n % T) != expected[n];
        const BlockKeys keys(blocks);
        for (int n = 0; n < B * T && length == stride; n++) {
            const int row = keys.row(n / T, 0, n % T), token = keys.token(n / T, 0, n % T);
            wrong += (row >= 0 && keys.token(n / T, 0, row) != n % T) || (token >= 0 && keys.row(n / T, 0, token) != n % T);
        }
        INFO("length " << length << ", stride " << stride);
        CHECK(wrong == 0);
    }
}

TEST_CASE("moba: computes what its naive() prints where blocks have to be chosen", "[attention][blocks]") {
    const auto of = [](double block, double top) { return std::map<std::string, double>{{"moba_block", block}, {"moba_top_k", top}}; };
    // Several blocks of several tiles, shared keys, and choices that are none.
    for (const LayerSizes& sizes : {LayerSizes{1, 400, 4, 2, 8, of(64, 3)}, {2, 330, 2, 1, 8, of(64, 2)},
                                    {1, 500, 2, 2, 8, of(128, 2)}, {1, 330, 2, 1, 8, of(64, 1)}})
        check_against_naive(named("moba"), sizes);
}

TEST_CASE("block rows: the tokens of each block in order, padded to tiles, with the block's key tiles", "[attention][blocks]") {
    for (const ChoiceCase& one : choice_cases()) {
        INFO(one.text());
        const ListedBlocks listed(one);
        const BlockRows& rows = listed.rows;
        for (int b = 0; b < one.c.B; b++)
            for (int h = 0; h < one.c.NH; h++) {
                std::vector<int> expected, owner;   // tokens, and the block of each tile of rows
                for (int n = 0; n < one.c.blocks(); n++) {
                    for (int t : tokens_of(one, b, rows.chooser(h), n)) expected.push_back(t);
                    expected.resize(padded(int(expected.size())), -1), owner.resize(expected.size() / TILE, n);
                }
                REQUIRE(int(expected.size()) <= rows.count);
                expected.resize(rows.count, -1), owner.resize(rows.count / TILE, -1);
                int wrong = 0;
                for (int r = 0; r < rows.count; r++) wrong += rows.token(b, h, r) != expected[r];
                for (int tile = 0; tile < rows.count / TILE; tile++) {
                    const size_t at = (size_t(b) * one.c.NH + h) * (rows.count / TILE) + tile;
                    wrong += rows.tile_count[at] != (owner[tile] < 0 ? 0 : one.c.block / TILE);
                    for (int m = 0; m < rows.tile_count[at]; m++)
                        wrong += rows.tiles[at * rows.of_block() + m] != owner[tile] * rows.of_block() + m;
                }
                CHECK(wrong == 0);
            }
    }
}

TEST_CASE("block rows: a token's rows are those that hold it, one after the other", "[attention][blocks]") {
    for (const ChoiceCase& one : choice_cases()) {
        INFO(one.text());
        const ListedBlocks listed(one);
        const BlockRows& rows = listed.rows;
        int wrong = 0;
        for (int b = 0; b < one.c.B; b++)
            for (int h = 0; h < one.c.NH; h++)
                for (int t = 0; t < one.c.T; t++) {
                    std::vector<int> expected, found;
                    for (int r = 0; r < rows.count; r++)
                        if (rows.token(b, h, r) == t) expected.push_back(r);
                    for (int r = rows.row(b, h, t); r >= 0; r = rows.next(b, h, r)) found.push_back(r);
                    wrong += found != expected;
                }
        CHECK(wrong == 0);
    }
}

TEST_CASE("chosen blocks: the greatest scores between the forced blocks, ties to the earlier, ascending", "[attention][blocks]") {
    std::vector<int> order;
    auto choose = [&](const std::vector<double>& scores, const TileChoice& choice) {
        std::vector<int> to(choice.top, 99);
        choose_blocks(CPU{}, to.data(), scores.data(), choice, int(scores.size()) - 1, order);
        return to;
    };
    CHECK(choose({9, 1, 3, 2, 3, 3, 9}, {.top = 2}) == std::vector<int>{0, 2});
    CHECK(choose({9, 1, 3, 2, 3, 3, 9, 9}, {.top = 3, .leading = 1, .local = 2}) == std::vector<int>{2, 4, 5});
    CHECK(choose({9, 1, 3, 2, 3, 3, 9, 9}, {.top = 2, .leading = 1, .local = 3}) == std::vector<int>{2, 4});
    CHECK(choose({9, 1, 9}, {.top = 3}) == std::vector<int>{0, 1, -1});
    CHECK(choose({9}, {.top = 2, .leading = 1, .local = 2}) == std::vector<int>{-1, -1});
}

TEST_CASE("forced blocks: tiles are hidden and full where visible() says so", "[attention][blocks]") {
    const Policy plain(Config{}, 0);
    std::mt19937_64 generator(3);
    auto below = [&](int n) { return int(generator() % uint64_t(n)); };
    for (const ForcedBlocks& forced : {ForcedBlocks(plain, 64, 1, 2), {plain, 128, 0, 1}, {plain, 64, INT_MAX, 2}}) {
        int wrong = 0;
        for (int n = 0; n < 600; n++) {
            const bool whole_tiles = n % 2;   // the others may be called mixed where they are not
            const int i0 = whole_tiles ? 64 * below(8) : below(400), i1 = i0 + (whole_tiles ? 64 : 1 + below(90));
            const int j0 = whole_tiles ? 64 * below(8) : below(400), j1 = j0 + (whole_tiles ? 64 : 1 + below(90));
            const Tile exact = verdict_by_pairs({i0, i1, j0, j1}, [&](int i, int j) {
                const bool seen = j <= i && (j / forced.block < forced.leading || j / forced.block > i / forced.block - forced.local);
                wrong += forced.visible(0, i, j) != seen;
                return seen;
            });
            const Tile verdict = forced.tile(0, i0, i1, j0, j1);
            wrong += verdict != exact && (whole_tiles || verdict != Tile::mixed);
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("merged rows: one softmax over what was there and all rows of a token, with its statistics", "[attention][blocks]") {
    const ChoiceCase one({1, 200, 2, 1, 64, 3}, 0, 3, 5);
    const ListedBlocks listed(one);
    const int T = one.c.T, NH = one.c.NH, HS = 4, R = listed.rows.count;
    const size_t of_text = size_t(NH) * T, of_rows = size_t(NH) * R;
    std::vector<double> out = normal_numbers(of_text * HS, 1), lse = normal_numbers(of_text, 2), entropy = normal_numbers(of_text, 3);
    lse[3] = lse[150] = -INFINITY, entropy[3] = entropy[150] = 0;
    std::vector<double> pairs(of_text, 10), tiles(size_t(NH) * tiles_of(T), 1);
    std::vector<double> row_out = normal_numbers(of_rows * HS, 4), row_lse = normal_numbers(of_rows, 5);
    std::vector<double> row_entropy = normal_numbers(of_rows, 6), row_pairs(of_rows, 64), row_tiles(size_t(NH) * tiles_of(R), 2);
    const std::vector<double> out_0 = out, lse_0 = lse, entropy_0 = entropy;
    const Statistics<double> to{entropy.data(), nullptr, pairs.data(), tiles.data()};
    const Statistics<double> from{row_entropy.data(), nullptr, row_pairs.data(), row_tiles.data()};
    const Branch<double, BlockRows> rows{listed.rows, row_out.data(), row_lse.data(), from};
    merge_rows(CPU{}, RowMerge<double, BlockRows>{{1, T, NH, NH, HS}, rows, out.data(), lse.data(), to});
    double worst = 0;
    for (int h = 0; h < NH; h++)
        for (int t = 0; t < T; t++) {
            const size_t n = size_t(h) * T + t;
            std::vector<double> weight{std::exp(lse_0[n])}, inside{entropy_0[n]};
            std::vector<const double*> parts{&out_0[(size_t(t) * NH + h) * HS]};
            for (int r = 0; r < R; r++) {
                if (listed.rows.token(0, h, r) != t) continue;
                weight.push_back(std::exp(row_lse[size_t(h) * R + r])), inside.push_back(row_entropy[size_t(h) * R + r]);
                parts.push_back(&row_out[(size_t(r) * NH + h) * HS]);
            }
            const double total = sum_of(weight);
            double expected = 0, of_choice = 0;
            for (size_t p = 0; p < parts.size() && total > 0; p++) {
                expected += weight[p] / total * parts[p][1];
                if (weight[p] > 0) of_choice += weight[p] / total * (inside[p] - std::log(weight[p] / total));
            }
            worst = std::max(worst, std::abs(out[(size_t(t) * NH + h) * HS + 1] - expected));
            worst = std::max(worst, std::abs(entropy[n] - of_choice));
            if (total > 0) worst = std::max(worst, std::abs(lse[n] - std::log(total)));
            else CHECK(lse[n] == -INFINITY);
            CHECK(pairs[n] == 10 + 64 * (double(parts.size()) - 1));
        }
    CHECK(worst <= 1e-12);
    CHECK(sum_of(tiles) == double(NH) * (tiles_of(T) + 2 * tiles_of(R)));
}
