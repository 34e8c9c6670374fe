// Choices of blocks by tokens, and the rows that they become.
#pragma once
#include <random>
#include <sstream>
#include <vector>

#include "attention/blocks/block_rows.cuh"

/// A choice at random: of the blocks before its own every token takes some.
struct ChoiceCase {
    BlockChoice c;
    int first, slots;   // of the pass
    std::vector<int> choice;

    ChoiceCase(const BlockChoice& c_, int first_, int slots_, unsigned seed)
        : c(c_), first(first_), slots(slots_), choice(c_.size(), -1) {
        std::mt19937 random(seed);
        for (int list = 0; list < c.B * c.choosers; list++)
            for (int t = 0; t < c.T; t++) {
                int* to = &choice[(size_t(list) * c.T + t) * c.slots];
                for (int n = 0, taken = 0; n < t / c.block && taken < c.slots; n++)
                    if (random() % 3) to[taken++] = n;
            }
    }
    std::string text() const {
        std::ostringstream out;
        out << "T " << c.T << ", block " << c.block << ", " << c.choosers << " of " << c.NH << " heads choose " << c.slots
            << ", pass " << first << " + " << slots;
        return out.str();
    }
};

inline std::vector<ChoiceCase> choice_cases() {
    std::vector<ChoiceCase> cases;
    for (int T : {40, 64, 65, 400, 700}) {
        cases.push_back({{2, T, 4, 2, 64, 3}, 0, 3, unsigned(T)});
        cases.push_back({{1, T, 4, 4, 128, 2}, 0, 2, unsigned(T)});
        cases.push_back({{1, T, 2, 1, 64, 5}, 4, 1, unsigned(T)});
        cases.push_back({{1, T, 2, 1, 64, 5}, 1, 2, unsigned(T)});
    }
    return cases;
}
