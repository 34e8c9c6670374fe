// How Probabilistic Positional Attention starts: every head at the temperature of plain attention and with ALiBi's decay.
#include "attention/ppa.cuh"

#include "tests/catch.h"
#include "tests/check.h"

TEST_CASE("ppa starts with ALiBi's slopes, one per head, and scale 1", "[attention][ppa]") {
    Config config;
    config.NH = 8;
    ppa policy(config, 0);
    TensorList tensors;
    policy.declare(tensors, "model.layers.0.self_attn.");
    std::vector<double> weights(tensors.size()), numbers(2 * config.NH), expected;
    initialise(tensors, 1, weights.data());
    head_scalars_forward(CPU{}, numbers.data(), policy, weights.data(), config.NH);
    for (int h = 0; h < config.NH; h++) expected.insert(expected.end(), {1, std::pow(0.5, h + 1)});
    CHECK(difference(numbers, expected, {1e-14}) == "");
}
