// BigBird (Zaheer et al. 2020, arXiv 2007.14062) in the causal form of block-sparse libraries: over blocks of tokens, a window, a
// few global blocks and a few random ones. With r = block(i) and c = block(j):
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and (r - c <= floor(window / 2) or c < globals or c in random(h, r))
// The paper's encoder is bidirectional. Its window of three blocks has one on either side, of which the left one remains here; an
// even number counts as the next odd one. Its global rows see every token; under j <= i they see only what the window and the global
// columns already include.
// The source draws its random blocks from a generator. Here random(h, r) is a function of (seed, layer, head, r) alone, so that
// forward, backward, recomputation and decoding agree: the earlier blocks [0, r) are divided into `random` parts as equal as
// possible, and one block is drawn uniformly from each. The draws of a row are distinct; with r <= random they are all the earlier
// blocks. A draw inside the window or on a global block adds nothing.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"

struct bigbird : Policy {
    static constexpr const char* name = "bigbird";
    int before;    // blocks of the window before the row's own
    int globals;   // blocks [0, globals) are global
    int random;    // blocks drawn for every row of blocks
    Divisor block, parts;   // for division by the tokens of a block and by `random`
    uint32_t key;           // the layer's random key

    bigbird(const Config& config, int layer)
        : Policy(config, layer), before(int(config.setting("bigbird_window")) / 2), globals(int(config.setting("bigbird_globals"))),
          random(int(config.setting("bigbird_random"))), block(int(config.setting("bigbird_block"))), parts(std::max(1, random)),
          key(scrambled(scrambled(uint32_t(config.setting("bigbird_seed"))) + uint32_t(layer))) {}

    static std::vector<Setting> settings() {
        return {{"--bigbird-block", "bigbird_block", 64, 1, 1e6, WHOLE, "tokens per block", true},
                {"--bigbird-window", "bigbird_window", 3, 1, 1e6, WHOLE,
                 "blocks of the two-sided window; the causal mask hides the right half",
                 true, 1, "bigbird_block", 2},
                {"--bigbird-globals", "bigbird_globals", 1, 0, 1e6, WHOLE, "leading blocks that every later block sees", true, 1,
                 "bigbird_block"},
                {"--bigbird-random", "bigbird_random", 1, 0, 64, WHOLE, "random earlier blocks per block of queries and head", true,
                 1, "bigbird_block"},
                {"--bigbird-seed", "bigbird_seed", 1, 0, 2147483647, WHOLE, "random seed of the random blocks"}};
    }

    static constexpr Traits traits{.long_visible = true};
    constexpr bool visible(int h, int i, int j) const { return j <= i && sees(h, block.quotient(i), block.quotient(j)); }

    /// Block by block; a tile is one block of the default size.
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (j0 > i1 - 1) return Tile::hidden;
        const int size = block.divisor();
        Verdict verdict;
        for (int r = block.quotient(i0); r * size < i1; r++)
            for (int c = block.quotient(j0); c * size < j1; c++) {
                const Rectangle part = Rectangle{i0, i1, j0, j1}.rows(r * size, (r + 1) * size).columns(c * size, (c + 1) * size);
                if (sees(h, r, c))
                    verdict.add_causal(part);
                else
                    verdict.add(part, Tile::hidden);
                if (verdict.is_mixed()) return Tile::mixed;
            }
        return verdict.tile();
    }

    /// The block drawn from part n of the blocks [0, r); -1 when the part is empty.
    constexpr int random_block(int h, int r, int n) const {
        const int length = parts.quotient(r), longer = parts.remainder(r);   // the first `longer` parts have one more block
        const int first = n * length + std::min(n, longer), count = length + (n < longer);
        if (count == 0) return -1;
        const uint32_t bits = scrambled(scrambled(key + uint32_t(h)) + uint32_t(r) * 64 + uint32_t(n));
        return first + int(uint64_t(bits) * uint64_t(count) >> 32);
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        const int size = block.divisor(), blocks = (in.T + size - 1) / size;
        std::vector<char> layout(size_t(in.NH) * blocks * blocks);   // (NH, blocks, blocks)
        for (int h = 0; h < in.NH; h++)
            for (int r = 0; r < blocks; r++) {
                char* row = &layout[(size_t(h) * blocks + r) * blocks];
                for (int c = 0; c < std::min(globals, blocks); c++) row[c] = 1;
                for (int c = std::max(0, r - before); c <= r; c++) row[c] = 1;
                for (int n = 0; n < random; n++)
                    if (const int c = random_block(h, r, n); c >= 0) row[c] = 1;
            }
        auto seen = [&](int h, int i, int j) { return j <= i && layout[(size_t(h) * blocks + i / size) * blocks + j / size]; };
        dense_softmax(in, out, seen);
    }

private:
    /// 32 pseudorandom bits (the finaliser of MurmurHash3).
    static constexpr uint32_t scrambled(uint32_t x) {
        x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
        x = (x ^ (x >> 13)) * 0xC2B2AE35u;
        return x ^ (x >> 16);
    }

    /// Whether block r of queries sees block c of keys.
    constexpr bool sees(int h, int r, int c) const {
        if (c > r) return false;
        if (r - c <= before || c < globals) return true;
        for (int n = 0; n < random; n++)
            if (c == random_block(h, r, n)) return true;
        return false;
    }
};
