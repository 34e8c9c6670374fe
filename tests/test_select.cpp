// Block selection (attention/masks/select.cuh) against its definition in plain loops over sorted candidates.
#include "attention/masks/select.cuh"

#include "tests/catch.h"
#include "tests/select_case.h"

TEST_CASE("chosen tiles are those of the definition: ties, forced tiles, dense heads, shared scores", "[attention]") {
    for (const SelectCase& c : select_cases()) {
        INFO(c.text());
        const TileLists lists = c.choose();
        int wrong = 0;
        for (int b = 0; b < c.s.B; b++)
            for (int h = 0; h < c.s.NH; h++)
                for (int r = 0; r < c.s.N; r++) wrong += lists.of(c.s, b, h, r) != c.defined(b, h, r);
        CHECK(wrong == 0);
    }
}

TEST_CASE("chosen tiles: a share is strictly above the threshold, and scores of any size have shares", "[attention]") {
    SelectCase c{{1, 1, 1, 3}, {.threshold = 0.5f}, {}};
    c.scores.assign(9, 800);   // two candidates of equal share; exp(800) is infinite
    CHECK(c.choose().of(c.s, 0, 0, 2) == std::vector<int>{2});
    c.choice.threshold = 0.49f;
    CHECK(c.choose().of(c.s, 0, 0, 2) == std::vector<int>{0, 1, 2});
}
