// The attention variants of a program, and a trainer's own.
#include <algorithm>
#include <string_view>

#include "attention/variant.h"

/// In alphabetical order. A function's variable, since objects register their variants before main(), in any order.
static std::vector<const Variant*>& registered(bool on_gpu) {
    static std::vector<const Variant*> variants[2];
    return variants[on_gpu];
}

static void insert(const Variant& variant, std::vector<const Variant*>& variants) {
    const auto before = [](const Variant* a, const Variant* b) { return std::string_view(a->name) < b->name; };
    variants.insert(std::upper_bound(variants.begin(), variants.end(), &variant, before), &variant);
}

RegisteredOnCpu::RegisteredOnCpu(const Variant& variant) { insert(variant, registered(false)); }
RegisteredOnGpu::RegisteredOnGpu(const Variant& variant) { insert(variant, registered(true)); }

const std::vector<const Variant*>& all_variants() { return registered(false); }
const std::vector<const Variant*>& all_variants_on_gpu() { return registered(true); }

const Variant* sole_variant(std::vector<const Variant*> variants) {
    const auto is_causal = [](const Variant* variant) { return variant->name == std::string_view("causal"); };
    if (variants.size() > 1) std::erase_if(variants, is_causal);
    return variants.size() == 1 ? variants.front() : nullptr;
}
