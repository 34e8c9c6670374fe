// The baseline's fixtures again, with recomputed activations (tests/variant/ has them as they are), and which forms they cover.
#include "catch.h"

#include <set>

#include "tests/fixture_curve.h"
#include "tests/variants.h"

TEST_CASE("with recomputed activations the baseline computes what transformers does", "[fixture]") {
    for (const auto& folder : fixture_folders("causal"))
        DYNAMIC_SECTION(folder.filename().string()) { check_fixture(named("causal"), folder, Recompute::layers); }
}

TEST_CASE("every variant of the papers has a fixture", "[fixture]") {
    for (const char* variant :
         {"adaptive_sparse", "asga", "asga_fixed", "asga_neither", "asga_no_geometry", "bigbird", "deepseek_sparse", "deepspeed_fixed", "dsa",
          "dsa_fixed_window", "dsa_no_gate", "dsa_no_window", "fixed_factorized", "forgetting", "gated", "longformer", "longnet",
          "moba", "moh", "mosa", "nsa", "ppa", "routing", "seer", "shaw", "sink_logits", "sinks", "sinks_cache",
          "sliding_window", "strided"}) {
        INFO(variant);
        CHECK_FALSE(fixture_folders(variant).empty());
    }
}

TEST_CASE("the fixtures of the baseline cover every form", "[fixture]") {
    REQUIRE(fixture_folders("causal").size() >= 5);
    std::set<std::string> forms;
    for (const auto& folder : fixture_folders("causal")) {
        const Config c = load_config(folder);
        forms.insert(c.qk_norm ? "QK-norm" : "no QK-norm");
        forms.insert(c.qkv_bias ? "bias" : "no bias");
        forms.insert(c.tied ? "tied" : "untied");
        forms.insert("group of " + std::to_string(c.NH / c.NKV));
        forms.insert(exists(folder / "model.safetensors.index.json") ? "parts" : "one file");
        const Fixture f = load_fixture(folder);
        forms.insert(f.T > TILE ? "several tiles" : "one tile");
    }
    CHECK(forms == std::set<std::string>{"QK-norm", "no QK-norm", "bias", "no bias", "tied", "untied", "group of 1", "group of 2", "group of 4", "parts",
                                         "one file", "several tiles", "one tile"});
}
