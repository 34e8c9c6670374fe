// Models of Gemma 3's form for tests.
#pragma once
#include "tests/variants.h"
#include "tests/whole_model.h"

/// The form with layers that slide, see everything, and slide, and no two numbers alike.
inline Config gemma_of(Config c) {
    c.qkv_bias = false, c.qk_norm = true, c.tied = true, c.L = 3;
    c.gemma = Gemma{.query_scalar = c.HS * 1.5, .local_theta = 50, .rope_factor = 2};
    c.variant = "sliding_window", c.settings = {{"attention_window", 9}};
    c.layers = {{"sliding_window"}, {"causal"}, {"sliding_window"}};
    return c;
}

inline Variants gemma_variants() { return {named("sliding_window"), {&on_cpu::causal}}; }
