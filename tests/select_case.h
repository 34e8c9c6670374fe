// Scores and a choice of tiles from them, and what the choice is by definition.
#pragma once
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "attention/masks/select.cuh"
#include "tests/attention_case.h"

struct TileLists {
    std::vector<int> count, tiles;
    std::vector<int> of(const TileScores& s, int b, int h, int r) const {
        const size_t n = s.list(b, h, r);
        return {tiles.begin() + n * s.N, tiles.begin() + n * s.N + count[n]};
    }
};

struct SelectCase {
    TileScores s;
    TileChoice choice;
    std::vector<double> scores;

    std::string text() const {
        std::ostringstream out;
        out << s.NH << " heads, " << s.heads << " with scores, " << s.N << " tiles, top " << choice.top << ", threshold "
            << choice.threshold << ", leading " << choice.leading << ", local " << choice.local << ", dense " << choice.dense_heads;
        return out.str();
    }
    size_t lists() const { return size_t(s.B) * s.NH * s.N; }

    TileLists choose() const {
        TileLists to{std::vector<int>(lists(), -1), std::vector<int>(lists() * s.N, -1)};
        choose_tiles(CPU{}, to.count.data(), to.tiles.data(), scores.data(), s, choice);
        return to;
    }

    std::vector<int> defined(int b, int h, int r) const {
        const double* mine = &scores[((size_t(b) * s.heads + h * s.heads / s.NH) * s.N + r) * s.N];
        std::vector<int> taken, candidates;
        for (int c = 0; c <= r; c++)
            (h < choice.dense_heads || c < choice.leading || c + choice.local > r ? taken : candidates).push_back(c);
        std::stable_sort(candidates.begin(), candidates.end(), [&](int x, int y) { return mine[x] > mine[y]; });
        double total = 0;
        for (int c : candidates) total += std::exp(mine[c]);
        for (size_t n = 0; n < candidates.size(); n++)
            if (choice.threshold < 0 ? int(n) < choice.top : std::exp(mine[candidates[n]]) / total > choice.threshold)
                taken.push_back(candidates[n]);
        std::sort(taken.begin(), taken.end());
        return taken;
    }
};

/// Among them more tiles than a warp has lanes; every second case has -2, 0, -0, 2 and little else for scores.
inline std::vector<SelectCase> select_cases() {
    std::vector<SelectCase> cases;
    const TileChoice choices[] = {{0}, {1}, {3, -1, 1, 2}, {5, -1, 0, 1, 2}, {100}, {0, 0.02f}, {0, 0.2f, 2, 3}, {2, -1, 40, 1, 4}};
    for (const TileScores s : {TileScores{1, 4, 4, 1}, TileScores{2, 4, 2, 7}, TileScores{1, 4, 1, 100}})
        for (const TileChoice& choice : choices) {
            SelectCase one{s, choice, normal_numbers(size_t(s.B) * s.heads * s.N * s.N, cases.size() + 1)};
            for (double& score : one.scores) score = cases.size() % 2 ? 2 * std::round(score / 2) : double(float(score));
            cases.push_back(one);
        }
    return cases;
}
