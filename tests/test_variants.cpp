// The variants of a program (attention/variants.cpp), on which ./generate and the tests of every variant stand.
#include <algorithm>
#include <filesystem>

#include "attention/variant.h"
#include "tests/errors.h"

TEST_CASE("variants: the table has every file of attention/, in the order of names", "[variants]") {
    std::vector<std::string> files, names;
    for (const auto& entry : std::filesystem::directory_iterator("attention"))
        if (entry.path().extension() == ".cuh") files.push_back(entry.path().stem());
    std::sort(files.begin(), files.end());
    for (const Variant* variant : all_variants()) names.push_back(variant->name);
    CHECK(names == files);
}

TEST_CASE("variants: are found by their names; another name is refused with those there are", "[variants]") {
    for (const Variant* variant : all_variants()) CHECK(&named(variant->name) == variant);
    const Error error = error_of([] { named("casual"); });
    CHECK(error.code == Exit::usage);
    for (const Variant* variant : all_variants()) CHECK(says(error, {variant->name}));
    CHECK(error_of([] { named("causal", {}); }).code == Exit::usage);
}

TEST_CASE("variants: a trainer's own is the one beside causal, or causal", "[variants]") {
    const Variant causal{"causal", "", nullptr, nullptr}, asga{"asga", "", nullptr, nullptr}, dsa{"dsa", "", nullptr, nullptr};
    CHECK(sole_variant({&causal}) == &causal);
    CHECK(sole_variant({&asga, &causal}) == &asga);
    CHECK(sole_variant({&causal, &dsa}) == &dsa);
    CHECK(sole_variant({&asga}) == &asga);
    CHECK(sole_variant({&asga, &causal, &dsa}) == nullptr);
    CHECK(sole_variant({}) == nullptr);
}
