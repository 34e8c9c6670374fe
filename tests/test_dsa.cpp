// What Dynamic Sparse Attention (aardXiv 2510.00061) costs under each reading of its window: the counts of the published table.
#include "attention/dsa_fixed_window.cuh"
#include "attention/dsa_no_window.cuh"
#include "tests/catch.h"

namespace {

template <class A>
PairCount count_for(int T) {
    Config config;
    config.NH = 1;
    complete_settings(config, A::settings());
    return count_pairs(A(config, 0), config.NH, T);
}

}   // namespace

TEST_CASE("pairs and tiles of Dynamic Sparse Attention at 2048 tokens", "[attention][dsa]") {
    const PairCount row_rule = count_for<dsa>(2048), always = count_for<dsa_fixed_window>(2048);
    const PairCount never = count_for<dsa_no_window>(2048);
    CHECK(row_rule.pairs == 526080);
    CHECK(row_rule.tiles == 156);
    CHECK(always.pairs == 493440);
    CHECK(always.tiles == 150);
    CHECK(never.pairs == 2098176);
    CHECK(never.tiles == 528);
}

TEST_CASE("short sequences are dense under the row rule, and windowed under the fixed window", "[attention][dsa]") {
    CHECK(count_for<dsa>(512).pairs == 512 * 513 / 2);
    CHECK(count_for<dsa_fixed_window>(512).pairs == 512 * 513 / 2 - 255 * 256 / 2);   // 512 rows lose 1, 2, .. 255 keys
    CHECK(count_for<dsa>(513).pairs == 512 * 513 / 2 + 257);
}
