// The baseline's fixtures again, with recomputed activations (tests/variant/ has them as they are), and which forms they cover.
#include "catch.h"

#include <set>

#include "model/base/disk.h"
#include "tests/fixture_curve.h"
#include "tests/variants.h"

TEST_CASE("with recomputed activations the baseline computes what transformers does", "[fixture]") {
    for (const auto& folder : fixture_folders("causal"))
        DYNAMIC_SECTION(folder.filename().string()) { check_fixture(named("causal"), folder, Recompute::layers); }
}

TEST_CASE("every variant that PyTorch computes has a fixture", "[fixture]") {
    const std::string table = read_text("scripts/attention_torch/variants.py");
    int checked = 0;
    for (const Variant* variant : all_variants()) {
        if (table.find("    '" + std::string(variant->name) + "': ") == std::string::npos) continue;
        INFO(variant->name);
        CHECK_FALSE(fixture_folders(variant->name).empty());
        checked++;
    }
    CHECK(checked > 0);
}

TEST_CASE("the fixtures of the baseline cover every form", "[fixture]") {
    REQUIRE(fixture_folders("causal").size() >= 5);
    std::set<std::string> forms;
    for (const auto& folder : fixture_folders("causal")) {
        const Config c = load_config(folder);
        forms.insert(c.qk_norm ? "QK-norm" : "no QK-norm");
        forms.insert(c.qkv_bias ? "bias" : "no bias");
        forms.insert(c.tied ? "tied" : "untied");
        forms.insert("RoPE scaling " + std::to_string(int(c.rope_scaling.type)));
        forms.insert("group of " + std::to_string(c.NH / c.NKV));
        forms.insert(exists(folder / "model.safetensors.index.json") ? "parts" : "one file");
        const Fixture f = load_fixture(folder);
        forms.insert(f.T > TILE ? "several tiles" : "one tile");
    }
    CHECK(forms == std::set<std::string>{"QK-norm", "no QK-norm", "bias", "no bias", "tied", "untied", "group of 1", "group of 2", "group of 4", "parts",
                                         "RoPE scaling 0", "RoPE scaling 1", "RoPE scaling 2", "RoPE scaling 3",
                                         "one file", "several tiles", "one tile"});
}
