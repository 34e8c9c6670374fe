// Numbers of one type as those of another.
#pragma once
#include <type_traits>
#include <vector>

#include "model/device/device.h"

template <class To, class From>
std::vector<To> converted(const std::vector<From>& from) {
    if constexpr (std::is_same_v<To, From>) {
        return from;
    } else {
        std::vector<To> to;
        for (From x : from) to.push_back(narrowed<To>(Wide<To>(widened(x))));
        return to;
    }
}

/// The numbers that an array of X can hold in place of `numbers`.
template <class X, class Y = double>
std::vector<Y> rounded(const std::vector<Y>& numbers) {
    return converted<Y>(converted<X>(numbers));
}
