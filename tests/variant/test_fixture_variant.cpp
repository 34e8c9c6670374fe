// Each attention variant against its reference fixtures, where it has some.
#include "tests/fixture_curve.h"
#include "tests/variants.h"

VARIANT_CASE(" model: the reference's logits, gradient norms and training curve", "[fixture][variant]") {
    for (const auto& folder : fixture_folders(variant.name))
        DYNAMIC_SECTION(folder.filename().string()) { check_fixture(variant, folder, Recompute::nothing); }
}
