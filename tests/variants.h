// Tests of every attention variant: they run on the objects that the programs are linked with.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "attention/layer_of.h"
#include "tests/catch.h"

/// Small values that make a setting matter within two hundred tokens. A range that begins above some of them has its lowest value for
/// them, and one of a few whole numbers (forms by number) its highest too. Blocks have one tile or two; numbers of tokens are a tile, too.
inline std::vector<double> small_values(const Setting& setting) {
    if (setting.step == TILE) return {TILE, 2 * TILE};
    std::vector<double> candidates = setting.step == REAL ? std::vector<double>{0, 0.1, 0.5, 2} : std::vector<double>{0, 1, 4, 20};
    if (setting.step == WHOLE && setting.of_sequence) candidates.push_back(TILE);
    std::vector<double> values;
    for (double candidate : candidates)
        if (candidate >= setting.lowest && candidate <= setting.highest) values.push_back(candidate);
    const bool has_lowest = !values.empty() && values.front() == setting.lowest;
    if (values.size() < candidates.size() && !has_lowest) values.insert(values.begin(), setting.lowest);
    if (setting.step == WHOLE && setting.highest < 4 && values.back() < setting.highest) values.push_back(setting.highest);
    return values;
}

/// A test case with the name of one of the variants in front of its own.
class CaseOfVariant : public Catch::ITestInvoker {
public:
    using Body = void (*)(const Variant&);
    CaseOfVariant(Body body, const Variant& variant) : body_(body), variant_(variant) {}
    void invoke() const override { body_(variant_); }

private:
    Body body_;
    const Variant& variant_;
};

inline bool register_for(const std::vector<const Variant*>& variants, CaseOfVariant::Body body, const std::string& what,
                         const std::string& tags, const Catch::SourceLineInfo& place) {
    for (const Variant* variant : variants) {
        const std::string name = variant->name + what;
#if __has_include(<catch2/catch_all.hpp>)   // version 3
        Catch::AutoReg(Catch::Detail::make_unique<CaseOfVariant>(body, *variant), place, {}, {name, tags});
#else
        Catch::AutoReg(new CaseOfVariant(body, *variant), place, {}, {name, tags});
#endif
    }
    return true;
}

/// VARIANT_CASE(" model: gradients", "[model]") { ... variant ... }: one test case for each of all_variants().
#define VARIANT_CASE(what, tags) CASE_OF_EVERY_VARIANT(INTERNAL_CATCH_UNIQUE_NAME(variant_case), all_variants(), what, tags)
/// The same for each of all_variants_on_gpu().
#define GPU_VARIANT_CASE(what, tags) \
    CASE_OF_EVERY_VARIANT(INTERNAL_CATCH_UNIQUE_NAME(variant_case), all_variants_on_gpu(), what, tags)
#define CASE_OF_EVERY_VARIANT(function, variants, what, tags)                                                                \
    static void function(const Variant& variant);                                                                            \
    static const bool CASE_REGISTERED(function) = register_for(variants, function, what, tags, CATCH_INTERNAL_LINEINFO);     \
    static void function(const Variant& variant)
#define CASE_REGISTERED(function) CASE_REGISTERED_(function)
#define CASE_REGISTERED_(function) function##_registered
