// Shuffles, votes and reductions of a warp.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "meetings.h"

namespace emulator {

/// What a lane brings to a shuffle, and takes away.
struct Shuffle {
    uint64_t value = 0;
    int source = 0;        // the lane whose value it wants
    uint64_t result = 0;
    bool missing = false;  // that lane does not take part
};

inline void shuffle_lanes(void** arguments, uint32_t mask) {
    for (int lane = 0; lane < LANES; lane++) {
        if (!(mask >> lane & 1)) continue;
        Shuffle& mine = *static_cast<Shuffle*>(arguments[lane]);
        mine.missing = !(mask >> mine.source & 1);
        if (!mine.missing) mine.result = static_cast<Shuffle*>(arguments[mine.source])->value;
    }
}

template <class T>
T shuffle(const char* operation, uint32_t mask, T value, int source, const Location& at) {
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
    Shuffle mine;
    mine.source = source;
    std::memcpy(&mine.value, &value, sizeof value);
    meet_in_warp(operation, mask, &mine, shuffle_lanes, at);
    if (mine.missing) fail_at(at, operation, " reads lane ", source, ", which its mask does not contain");
    std::memcpy(&value, &mine.result, sizeof value);
    return value;
}

/// Every lane learns every lane's `value`.
struct Exchange {
    uint32_t value;
    uint32_t all[LANES];
};
inline void exchange_lanes(void** arguments, uint32_t mask) {
    for (int to = 0; to < LANES; to++)
        for (int from = 0; mask >> to & 1 && from < LANES; from++)
            if (mask >> from & 1) static_cast<Exchange*>(arguments[to])->all[from] = static_cast<Exchange*>(arguments[from])->value;
}

/// Joins the values of the lanes in `mask` from left to right.
template <class T, class Join>
T reduce(const char* operation, uint32_t mask, T value, Join join_two, const Location& at) {
    Exchange mine{std::bit_cast<uint32_t>(value), {}};
    meet_in_warp(operation, mask, &mine, exchange_lanes, at);
    int lane = std::countr_zero(mask);
    T result = std::bit_cast<T>(mine.all[lane]);
    while (++lane < LANES)
        if (mask >> lane & 1) result = join_two(result, std::bit_cast<T>(mine.all[lane]));
    return result;
}

inline uint32_t vote(const char* operation, uint32_t mask, bool yes, const Location& at) {
    const uint32_t mine = uint32_t(yes) << self->lane();
    return reduce(operation, mask, mine, [](uint32_t a, uint32_t b) { return a | b; }, at);
}

inline int lane() { return self->lane(); }

}   // namespace emulator

// Groups of `width` lanes shuffle among themselves. A lane whose source lies outside of its group keeps its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, emulator::Location at = emulator::Location::current()) {
    return emulator::shuffle("__shfl_sync", mask, value, (emulator::lane() & -width) | (source & (width - 1)), at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, emulator::Location at = emulator::Location::current()) {
    const int me = emulator::lane(), source = me ^ bits;
    return emulator::shuffle("__shfl_xor_sync", mask, value, (source & -width) > (me & -width) ? me : source, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance, int width = 32, emulator::Location at = emulator::Location::current()) {
    const int me = emulator::lane();
    return emulator::shuffle("__shfl_down_sync", mask, value, (me & (width - 1)) + distance < width ? me + distance : me, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance, int width = 32, emulator::Location at = emulator::Location::current()) {
    const int me = emulator::lane();
    return emulator::shuffle("__shfl_up_sync", mask, value, (me & (width - 1)) >= distance ? me - distance : me, at);
}

inline unsigned __ballot_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__ballot_sync", mask, yes, at);
}
inline int __any_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__any_sync", mask, yes, at) != 0;
}
inline int __all_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__all_sync", mask, yes, at) == mask;
}

template <class T>   // int or unsigned
T __reduce_add_sync(unsigned mask, T value, emulator::Location at = emulator::Location::current()) {
    return emulator::reduce("__reduce_add_sync", mask, value, [](T a, T b) { return T(unsigned(a) + unsigned(b)); }, at);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, emulator::Location at = emulator::Location::current()) {
    return emulator::reduce("__reduce_max_sync", mask, value, [](T a, T b) { return a > b ? a : b; }, at);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, emulator::Location at = emulator::Location::current()) {
    return emulator::reduce("__reduce_min_sync", mask, value, [](T a, T b) { return a < b ? a : b; }, at);
}
