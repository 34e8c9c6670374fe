// The choice of keys by the indexer of deepseek_sparse on the GPU: the CPU's, to the bit. The layer as a whole: test_attention_variant_gpu.
#include "attention/deepseek_sparse.cuh"
#include "tests/attention_case.h"
#include "tests/gpu/on_gpu.h"

namespace {

/// Queries, keys and weights in halves, and a scale that is a power of two: every sum is exact, and ties are ties on both devices.
std::vector<float> halves(size_t n, uint64_t seed) {
    std::vector<float> numbers;
    for (double x : normal_numbers(n, seed)) numbers.push_back(std::round(2 * float(x)) / 2);
    return numbers;
}

struct ChoiceCase {
    IndexShape s;
    int top, at_once;
    std::vector<int> starts;   // of documents (B, T), or none
};

struct Chosen {
    std::vector<uint64_t> words;
    std::vector<int> count, list, touched;
    std::vector<float> lse;
};

template <class Device>
Chosen choose(Device device, const ChoiceCase& one) {
    const IndexShape& s = one.s;
    const int tiles = tiles_of(s.T), NH = 2;
    using Floats = std::vector<float>;
    using Ints = std::vector<int>;
    On<Device, float> qk{halves(s.tokens() * s.row(), 5)}, w{halves(s.tokens() * s.heads, 6)};
    On<Device, float> pairs{Floats(size_t(one.at_once) * TILE * padded(s.T), NAN)}, lse{Floats(s.tokens(), NAN)};
    On<Device, int> starts{one.starts.empty() ? Ints(1) : one.starts}, touched{Ints(size_t(s.B) * tiles * tiles, 9)};
    On<Device, int> count{Ints(size_t(s.B) * NH * tiles, 9)}, list{Ints(size_t(s.B) * NH * tiles * tiles, 9)};
    On<Device, uint64_t> words{std::vector<uint64_t>(s.tokens() * tiles, 0)};
    BumpAllocator nowhere(nullptr);
    Index<float> index(nowhere, s);
    index.qk = qk.data(), index.w = w.data();
    const ChosenKeys<float> to{{words.data(), s.T}, count.data(), list.data(), touched.data(), lse.data()};
    const Documents documents{one.starts.empty() ? nullptr : starts.data(), s.T};
    IndexPiece<float>::each(s.B, s.T, one.at_once, pairs.data(), [&](const IndexPiece<float>& piece) {
        index_scores(device, piece, index, TouchedTiles{});
        choose_keys(device, to, piece, documents, one.top);
    });
    list_chosen_tiles(device, to, s.B, NH);
    return {words.numbers(), count.numbers(), list.numbers(), touched.numbers(), lse.numbers()};
}

}   // namespace

TEST_CASE("GPU indexer: the CPU's choice to the bit, with ties, documents, and pieces of any size", "[gpu][attention][indexer]") {
    std::vector<int> starts(2 * 150);
    for (int n = 0; n < 300; n++) starts[n] = n % 150 < 70 ? 0 : n % 150 < 75 ? 70 : 75;
    for (const ChoiceCase& one : {ChoiceCase{{2, 200, 4, 64, 32}, 20, 3, {}}, {{1, 330, 1, 64, 32}, 3, 6, {}},
                                  {{2, 150, 4, 64, 32}, 7, 1, starts}, {{1, 130, 4, 64, 32}, 1000, 2, {}}, {{1, 1, 4, 64, 32}, 1, 1, {}}}) {
        INFO("T " << one.s.T << ", top " << one.top);
        const Chosen cpu = choose(CPU{}, one), gpu = choose(test_gpu(), one);
        CHECK(gpu.words == cpu.words);
        CHECK((gpu.count == cpu.count && gpu.list == cpu.list && gpu.touched == cpu.touched));
        CHECK(difference(gpu.lse, cpu.lse, {0, 1e-5}) == "");
        int64_t seen = 0, expected = 0;
        for (uint64_t word : cpu.words) seen += std::popcount(word);
        for (size_t n = 0; n < one.s.tokens(); n++)
            expected += std::min(int(n) % one.s.T + 1 - (one.starts.empty() ? 0 : one.starts[n]), one.top);
        CHECK(seen == expected);
    }
}
