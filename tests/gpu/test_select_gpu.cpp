// The choice of tiles from scores (attention/masks/select.cuh) on both devices, against its definition in plain loops over sorted
// candidates.
#include "attention/blocks/block_gate.cuh"
#include "attention/blocks/naive_choice.h"
#include "attention/masks/select.cuh"
#include "tests/attention_case.h"
#include "tests/gpu/on_gpu.h"

namespace {

struct SelectCase {
    TileScores s;
    TileChoice choice;
    std::vector<float> scores;

    /// The tiles of every list (B, NH, N), as the device chooses them.
    template <class Device>
    std::vector<std::vector<int>> choose(Device device) const {
        const size_t lists = size_t(s.B) * s.NH * s.N;
        On<Device, float> of_pairs(scores);
        On<Device, int> count(std::vector<int>(lists, -1)), tiles(std::vector<int>(lists * s.N, -1));
        choose_tiles(device, count.data(), tiles.data(), of_pairs.data(), s, choice, FirstBlock{});
        const std::vector<int> counts = count.numbers(), all = tiles.numbers();
        std::vector<std::vector<int>> chosen;
        for (size_t n = 0; n < lists; n++) chosen.emplace_back(all.begin() + n * s.N, all.begin() + n * s.N + counts[n]);
        return chosen;
    }

    std::vector<std::vector<int>> defined() const {
        std::vector<std::vector<int>> lists;
        for (int n = 0; n < s.B * s.NH * s.N; n++) {
            const int h = n / s.N % s.NH, r = n % s.N;
            const float* mine = &scores[size_t(n) * s.N];
            const std::vector<bool> seen = naive_choice(std::vector<double>(mine, mine + r + 1).data(), choice, r);
            std::vector<int>& list = lists.emplace_back();
            for (int c = 0; c <= r; c++)
                if (h < choice.dense_heads || seen[c]) list.push_back(c);
        }
        return lists;
    }
};

}   // namespace

// Among them more tiles than a warp has lanes; every second case has -2, 0, -0, 2 and little else for scores.
TEST_CASE("chosen tiles are those of the definition: ties, forced tiles, dense heads", "[gpu][attention]") {
    const TileChoice choices[] = {{0}, {1}, {3, -1, 1, 2}, {5, -1, 0, 1, 2}, {100}, {0, 0.02f}, {0, 0.2f, 2, 3}, {2, -1, 40, 1, 4}};
    uint64_t number = 0;
    for (const TileScores s : {TileScores{1, 4, 1}, TileScores{2, 4, 7}, TileScores{1, 4, 100}})
        for (const TileChoice& choice : choices) {
            INFO(s.N << " tiles, top " << choice.top << ", threshold " << choice.threshold);
            SelectCase one{s, choice, normal_numbers<float>(size_t(s.B) * s.NH * s.N * s.N, ++number)};
            if (number % 2 == 0)
                for (float& score : one.scores) score = 2 * std::round(score / 2);
            CHECK(one.choose(CPU{}) == one.defined());
            CHECK(one.choose(test_gpu()) == one.defined());
        }
}

TEST_CASE("chosen tiles: a share is strictly above the threshold, and scores of any size have shares", "[gpu][attention]") {
    SelectCase c{{1, 1, 3}, {.threshold = 0.5f}, std::vector<float>(9, 800)};   // two candidates of equal share; exp(800) is infinite
    CHECK(c.choose(CPU{})[2] == std::vector<int>{2});
    c.choice.threshold = 0.49f;
    CHECK(c.choose(test_gpu())[2] == std::vector<int>{0, 1, 2});
}
