// Blocks of keys that every token chooses for itself, as a mask: one bit per query and block of TILE tokens. A tile of queries visits the
// key tiles of all blocks that any of them sees; the bits hide the others' pairs. A GPU computes the hidden pairs too, so scattered choices
// can cost as much as dense attention; a CPU computes only the rows that see keys of the tile. A tile needs no mask where every query sees
// all candidates, in blocks that every token sees, or where the tile's queries share a choice.
#pragma once
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/forced_blocks.h"
#include "attention/kernel/layer.h"
#include "attention/masks/choose_blocks.cuh"
#include "attention/scores/each_element.cuh"

/// A mask as data: the blocks of TILE keys that each query sees, its own up to itself. Bit n of a row is block n, by document_blocks.h.
struct BlockBits {
    uint64_t* words;   // (B, choosers, T, words_of_row())
    int T, NH, choosers;
    Documents documents;

    constexpr int words_of_row() const { return (tiles_of(T) + 63) / 64; }
    constexpr DocumentBlocks blocks() const { return {TILE, TILE, T, documents}; }
    constexpr uint64_t* row(int b, int chooser, int i) const {
        return words + ((size_t(b) * choosers + chooser) * T + i) * words_of_row();
    }
    constexpr int chooser(int h) const { return h / (NH / choosers); }
    constexpr bool has(int b, int h, int i, int n) const {
        return n >= 0 && row(b, chooser(h), i)[n / 64] >> (n % 64) & 1;
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
    constexpr uint64_t tiles(int b, int h, int i, int n) const {
        const uint64_t* const mine = row(b, chooser(h), i);
        if (first_token(b, i) % TILE == 0) return mine[n];
        return mine[n] | mine[n] << 1 | (n > 0 ? mine[n - 1] >> 63 : 0);
    }
};

/// The kernel's policy: the blocks that every token sees, and those of the bits.
template <bool GATED>
struct SelectedBlocks : ForcedBlocks {
    BlockBits bits;
    int all;   // a query with no more candidates than this sees all blocks; -1: there is no such number
    static constexpr Traits traits{.gates_output = GATED, .reads_bits = true, .few_rows_see = true};

    /// Holds for the tiles of the list only.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const bool whole = candidates(i1) <= all || (j1 - 1) / block < leading || j0 / block > (i1 - 1) / block - local;
        const Tile causal = causal_tile(i0, i1, j0, j1);
        return causal == Tile::full && !whole ? Tile::mixed : causal;
    }
};

/// Writes the bits from the blocks that every token sees and a choice, which may be null without slots. Row n of the choice belongs to
/// token n * every. Rows are (b, chooser, i).
struct SetBlockBits {
    BlockBits to;
    const int* choice;
    BlockChoice c;
    ForcedBlocks every_token_sees;
    int every;
    constexpr void operator()(unsigned row, int) const {
        const int i = int(row) % to.T, chooser = int(row) / to.T % c.choosers, b = int(row) / to.T / c.choosers;
        const int first = to.blocks().first(b, i), own = to.blocks().past(b, i), tiles = c.block / TILE;
        uint64_t* const bits = to.row(b, chooser, i);
        auto set = [&](int block) {   // of the document
            for (int n = block * tiles; n < std::min(own + 1, (block + 1) * tiles); n++)
                bits[(first + n) / 64] |= uint64_t(1) << ((first + n) % 64);
        };
        for (int n = 0; n < to.words_of_row(); n++) bits[n] = 0;
        for (int block = 0; block <= own / tiles; block++)
            if (every_token_sees.forced(own / tiles, block)) set(block);
        const int* const chosen = choice + c.of_token(b, chooser, i / every);
        for (int s = 0; s < c.slots && chosen[s] >= 0; s++) set(chosen[s] - to.first_token(b, i) / c.block);
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
            for (int i = q * TILE; i < std::min(bits.T, (q + 1) * TILE); i++) seen |= bits.tiles(b, h, i, word);
            for (int tile = word * 64; tile <= std::min(q, word * 64 + 63); tile++)
                if (seen >> (tile % 64) & 1) tiles[size_t(row) * N + n++] = tile;
        }
        count[row] = n;
    }
};

/// The mask of a choice, with its memory; none unless it `needs_bits`.
class ChoiceMask {
public:
    ChoiceMask(BumpAllocator& allocator, const LayerShape& s, const BlockChoice& choice, bool needs_bits)
        : choice_(choice), bits_{nullptr, s.T, s.NH, choice.choosers, {}} {
        const size_t sequences = needs_bits ? s.B : 0, lists = sequences * s.NH * tiles_of(s.T);
        bits_.words = allocator.take<uint64_t>(sequences * choice.choosers * s.T * bits_.words_of_row());
        count_ = allocator.take<int>(lists), tiles_ = allocator.take<int>(lists * tiles_of(s.T));
    }
    /// Computes the mask and adds it to `a`, a call of the text without one. Returns the call's policy. `fewer`: whether a token may choose
    /// fewer blocks than it has slots and candidates.
    template <bool GATED, class Device, class X>
    SelectedBlocks<GATED> apply(Device device, const ForcedBlocks& forced, AttentionForward<X>& a, const int* choice, int every = 1,
                                bool fewer = false) const {
        SelectedBlocks<GATED> policy{forced, bits_, fewer ? -1 : choice_.slots};
        policy.bits.documents = a.documents;
        each_element(device, size_t(a.B) * choice_.choosers * a.T, 1, SetBlockBits{policy.bits, choice, choice_, forced, every});
        each_element(device, size_t(a.B) * a.NH * tiles_of(a.T), 1, ListSeenTiles{count_, tiles_, policy.bits});
        if (every != 1) policy.all = INT_MAX;   // a visited tile is visible to all of its queries
        a.list = {count_, tiles_, tiles_of(a.T)};
        return policy;
    }

private:
    BlockChoice choice_;
    BlockBits bits_;
    int *count_, *tiles_;
};
