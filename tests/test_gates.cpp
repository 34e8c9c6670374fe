// Gates on outputs where float32 is at its end.
#include <cmath>

#include "attention/gated.cuh"
#include "attention/sink_logits.cuh"
#include "tests/catch.h"

TEST_CASE("gates so far open that they are 1 in float32 still have a gradient", "[attention]") {
    const float wide = 25, nothing = 0, one = 1, expected = std::exp(-wide);
    REQUIRE(sigmoid(wide) == 1);
    float dlse = 0, dout = 0, du = 0;
    SinkSharesBackward<float>{&dlse, &one, &wide, &nothing, 1, 1}(0, 0);
    CHECK(std::abs(dlse / expected - 1) < 1e-5f);
    GateElementsBackward<float>{&dout, &du, &one, &one, &wide, 1}(0, 0);
    CHECK(std::abs(du / expected - 1) < 1e-5f);
    CHECK(dout == 1);
}
