// The blocks that slc reads whole (NSA, Yuan et al. 2025, section 3.3.2): their number, the granularity of the choice, the mask.
//     every = 1      every token chooses, as published
//     every = TILE   the queries of a tile share their first token's choice, which depends on nothing later than any of them. Our
//                    form, not the paper's.
// A tile of queries visits the key tiles of all blocks that any of them chose. One bit per query and block hides the others' pairs. A GPU
// computes them, so that scattered choices cost up to as much as dense attention; a CPU takes only the rows that see keys of the tile.
// Nothing is hidden where all candidates are chosen, in blocks that every token sees, and with a shared choice.
#pragma once
#include "attention/blocks/forced_blocks.h"
#include "attention/nsa/importance.cuh"

/// A mask as data: the blocks of TILE keys that each query sees, its own up to itself. Bit n of a row is block n, by document_blocks.h.
struct BlockBits {
    uint64_t* words;   // (B, NKV, T, words_of_row())
    int T, NH, NKV;
    Documents documents;

    constexpr int words_of_row() const { return (tiles_of(T) + 63) / 64; }
    constexpr DocumentBlocks blocks() const { return {TILE, TILE, T, documents}; }
    constexpr uint64_t* row(int b, int kv, int i) const { return words + ((size_t(b) * NKV + kv) * T + i) * words_of_row(); }
    constexpr bool has(int b, int h, int i, int n) const {
        return n >= 0 && row(b, h / (NH / NKV), i)[n / 64] >> (n % 64) & 1;
    }
    /// The first token of query i's document. Its blocks begin in the tile of their number, first_token() % TILE tokens after it.
    constexpr int first_token(int b, int i) const { return documents ? documents.at(b, i) : 0; }

    /// Bit c: whether query i sees key c of the tile, which is its own or an earlier one.
    constexpr uint64_t word(int b, int h, int i, int tile) const {
        const int offset = first_token(b, i) % TILE;
        const uint64_t all = ~uint64_t(0), of_block = all << offset;
        const uint64_t seen = (has(b, h, i, tile) ? of_block : 0) | (has(b, h, i, tile - 1) ? ~of_block : 0);
        return tile < i / TILE ? seen : seen & all >> (TILE - 1 - i % TILE);
    }
    /// Word n of query i's tiles: those that a block of its row has keys in.
    constexpr uint64_t tiles(int b, int kv, int i, int n) const {
        const uint64_t* const mine = row(b, kv, i);
        if (first_token(b, i) % TILE == 0) return mine[n];
        return mine[n] | mine[n] << 1 | (n > 0 ? mine[n - 1] >> 63 : 0);
    }
};

/// The kernel's policy.
struct SelectedBlocks : Policy {
    BlockBits bits;
    TileChoice rule;
    static constexpr Traits traits{.gates_output = true, .reads_bits = true, .few_rows_see = true};

    /// For the tiles of the list. Queries up to the last block that has no more than rule.top candidates see all blocks.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const int last = (i1 - 1) / TILE;
        const bool whole = candidates_of(rule, last) <= rule.top || (j1 - 1) / TILE < rule.leading || j0 / TILE > last - rule.local;
        const Tile causal = causal_tile(i0, i1, j0, j1);
        return causal == Tile::full && !whole ? Tile::mixed : causal;
    }
};

struct Selection {
    int blocks;   // blocks of TILE tokens per query: the first, its own, the one before it, the chosen ones
    int every;    // 1 or TILE

    constexpr int rows(int T) const { return (T + every - 1) / every; }
    constexpr int slots(int T) const { return std::min(blocks - 3, std::max(tiles_of(T) - 3, 0)); }
    /// Whether every token may see all blocks of T tokens: no token chooses then, and slc is causal attention.
    constexpr bool sees_all(int T) const { return every == 1 && tiles_of(T) <= blocks; }
    constexpr TileChoice rule(int T) const { return choice_of_blocks(slots(T)); }

    /// Row n of a choice belongs to token n * every.
    BlockChoice choice(const LayerShape& s) const { return {s.B, rows(s.T), s.NH, s.NKV, TILE, sees_all(s.T) ? 0 : slots(s.T)}; }
    /// Whether a query in block r of its document sees block n, by its row of a choice. The document's first block is number `first`.
    bool sees(const int* chosen, int T, int first, int r, int n) const {
        return sees_all(T) || rule(T).forced(r, n) || std::find(chosen, chosen + slots(T), first + n) != chosen + slots(T);
    }
    /// Pairs of one head and sequence, and the most tiles.
    PairCount expected_pairs(const Policy& p, int T) const {
        PairCount count = expected_block_pairs({p, TILE, sees_all(T) ? INT_MAX : 1, 2}, slots(T), 1, T);
        count.tiles = 0;
        for (int r = 0; r < tiles_of(T); r++) count.tiles += std::min(r + 1, 3 + TILE / every * slots(T));
        return count;
    }
};

/// Writes the bits from the blocks that every token sees and a choice, which may be null without slots. Rows are (b, kv, i).
struct SetBlockBits {
    BlockBits to;
    const int* choice;
    BlockChoice c;
    int every;
    TileChoice rule;
    constexpr void operator()(unsigned row, int) const {
        const int i = int(row) % to.T, kv = int(row) / to.T % to.NKV, b = int(row) / to.T / to.NKV;
        const int first = to.blocks().first(b, i), own = to.blocks().past(b, i);
        uint64_t* const bits = to.row(b, kv, i);
        auto set = [&](int n) { bits[n / 64] |= uint64_t(1) << (n % 64); };
        for (int n = 0; n < to.words_of_row(); n++) bits[n] = 0;
        for (int n = 0; n <= own; n++)
            if (rule.forced(own, n)) set(first + n);
        const int* const chosen = choice + c.of_token(b, kv, i / every);
        for (int s = 0; s < c.slots && chosen[s] >= 0; s++) set(chosen[s]);
    }
};

/// The kernel's list: count (B, NH, N), tiles (B, NH, N, N). Rows are (b, h, query tile).
struct ListSeenTiles {
    int *count, *tiles;
    BlockBits bits;
    constexpr void operator()(unsigned row, int) const {
        const int N = tiles_of(bits.T), q = int(row) % N, h = int(row) / N % bits.NH, b = int(row) / N / bits.NH;
        int n = 0;
        for (int word = 0; word <= q / 64; word++) {
            uint64_t seen = 0;
            for (int i = q * TILE; i < std::min(bits.T, (q + 1) * TILE); i++) seen |= bits.tiles(b, h / (bits.NH / bits.NKV), i, word);
            for (int tile = word * 64; tile <= std::min(q, word * 64 + 63); tile++)
                if (seen >> (tile % 64) & 1) tiles[size_t(row) * N + n++] = tile;
        }
        count[row] = n;
    }
};

/// The kernel's mask for a choice, with its memory; none where all blocks are seen.
class SelectionMask {
public:
    SelectionMask(BumpAllocator& allocator, const LayerShape& s, const Selection& of)
        : selection_(of), choice_(of.choice(s)), bits_{nullptr, s.T, s.NH, s.NKV, {}} {
        const size_t sequences = of.sees_all(s.T) ? 0 : s.B, lists = sequences * s.NH * tiles_of(s.T);
        bits_.words = allocator.take<uint64_t>(sequences * s.NKV * s.T * bits_.words_of_row());
        count_ = allocator.take<int>(lists), tiles_ = allocator.take<int>(lists * tiles_of(s.T));
    }
    /// Computes the mask and adds it to `a`, a call of the text without one. Returns the call's policy.
    template <class Device, class X>
    SelectedBlocks apply(Device device, const Policy& p, AttentionForward<X>& a, const int* choice) const {
        SelectedBlocks policy{p, bits_, selection_.rule(a.T)};
        policy.bits.documents = a.documents;
        each_element(device, size_t(a.B) * a.NKV * a.T, 1, SetBlockBits{policy.bits, choice, choice_, selection_.every, policy.rule});
        each_element(device, size_t(a.B) * a.NH * tiles_of(a.T), 1, ListSeenTiles{count_, tiles_, policy.bits});
        if (selection_.every != 1) policy.rule.top = INT_MAX;   // a visited tile is visible to all of its queries
        a.list = {count_, tiles_, tiles_of(a.T)};
        return policy;
    }

private:
    Selection selection_;
    BlockChoice choice_;
    BlockBits bits_;
    int *count_, *tiles_;
};
