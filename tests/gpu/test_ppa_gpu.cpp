// Positions in the scores of Probabilistic Positional Attention: bf16 is for q, k and v; distances of tens of thousands of tokens
// and decays that hardly differ from 0 have to stay exact.
#include "attention/ppa.cuh"

#include "tests/attention_policies.h"
#include "tests/gpu/attention_on_gpu.h"

namespace {

/// Two heads with scale 1 and a decay of `slope` and a sixteenth of it; rows and columns stand for the tokens
/// first, first + step, ...
void check_positions(int first, int step, double slope) {
    INFO("tokens " << first << ", " << first + step << ", ...; decay " << slope);
    Problem p(1, 130, 130, 2, 1, 32, {2, 0, 0});
    p.head = {1, slope, 1, slope / 16};
    for (int n = 0; n < 2 * 130; n++) p.q_position.push_back(first + n % 130 * step);
    p.k_position = p.q_position;
    Config config;
    config.NH = 2;
    const ppa policy(config, 0);
    check_attention_on_gpu(p, policy);
}

}   // namespace

TEST_CASE("GPU ppa: distances up to a context of 32768", "[gpu][attention]") { check_positions(0, 252, 0x1p-8); }
TEST_CASE("GPU ppa: neighbours at the end of a context of 32768", "[gpu][attention]") { check_positions(32638, 1, 0.25); }
