// Each attention variant against its reference fixtures, where it has some.
#include "tests/catch.h"

#include "attention/attention.h"
#include "tests/fixture_curve.h"

#define VARIANT_NAME(variant) ATTENTION_QUOTED(variant)

TEST_CASE(VARIANT_NAME(ATTENTION) " model: the reference's logits, gradient norms and training curve", "[fixture][variant]") {
    for (const auto& folder : fixture_folders(Attention::name))
        DYNAMIC_SECTION(folder.filename().string()) { check_fixture<Attention>(folder, Recompute::nothing); }
}
