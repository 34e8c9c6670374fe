// The attention variants of a program, and a trainer's own.
#include <algorithm>
#include <string_view>

#include "attention/variant.h"
#include "model/base/error.h"

/// In alphabetical order. A function's variable, since objects register their variants before main(), in any order.
static std::vector<const Variant*>& registered(bool on_gpu) {
    static std::vector<const Variant*> variants[2];
    return variants[on_gpu];
}

Registered::Registered(const Variant& variant, bool on_gpu) {
    std::vector<const Variant*>& variants = registered(on_gpu);
    const auto before = [](const Variant* a, const Variant* b) { return std::string_view(a->name) < b->name; };
    variants.insert(std::upper_bound(variants.begin(), variants.end(), &variant, before), &variant);
}

const std::vector<const Variant*>& all_variants() { return registered(false); }
const std::vector<const Variant*>& all_variants_on_gpu() { return registered(true); }

const Variant* sole_variant(std::vector<const Variant*> variants) {
    const auto is_causal = [](const Variant* variant) { return variant->name == std::string_view("causal"); };
    if (variants.size() > 1) std::erase_if(variants, is_causal);
    return variants.size() == 1 ? variants.front() : nullptr;
}

const Variant* Variants::find(const std::string& name) const {
    if (name == own.name) return &own;
    const auto other = std::find_if(others.begin(), others.end(), [&](const Variant* variant) { return variant->name == name; });
    return other == others.end() ? nullptr : *other;
}

std::string Variants::names() const {
    std::string all = own.name;
    for (const Variant* other : others)
        if (other->name != std::string(own.name)) all += std::string(", ") + other->name;
    return all;
}

const Variant& named(const std::string& name, const std::vector<const Variant*>& variants) {
    std::string known;
    for (const Variant* variant : variants) {
        if (variant->name == name) return *variant;
        known += (known.empty() ? "" : ", ") + std::string(variant->name);
    }
    fail(Exit::usage, "unknown attention variant '", name, "'; this program has: ", known);
}
