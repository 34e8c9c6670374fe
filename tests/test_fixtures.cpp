// Logits, gradient norms and twenty training steps of the baseline against transformers, in all forms of its folders.
#include "catch.h"

#include <set>

#include "attention/causal.cuh"
#include "tests/fixture_curve.h"

TEST_CASE("the baseline computes what transformers does: Qwen3 and Qwen2, tied and untied, bf16, in one file and in parts", "[fixture]") {
    const auto folders = fixture_folders("causal");
    REQUIRE(folders.size() >= 5);
    for (const auto& folder : folders)
        DYNAMIC_SECTION(folder.filename().string()) { check_fixture<causal>(folder, false); }
}

TEST_CASE("with recomputed activations it computes the same", "[fixture]") {
    const auto folders = fixture_folders("causal");
    DYNAMIC_SECTION(folders.front().filename().string()) { check_fixture<causal>(folders.front(), true); }
}

TEST_CASE("the fixtures of the baseline cover every form", "[fixture]") {
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
