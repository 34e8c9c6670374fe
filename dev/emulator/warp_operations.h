// Shuffles and votes of a warp.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "meetings.h"

namespace emulator {

/// A lane's argument and result of a shuffle.
struct Shuffle {
    uint64_t value = 0;
    int source = 0;        // the lane whose value is read
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

/// A lane's vote, and the votes of all participants, one bit each.
struct Vote {
    bool yes;
    uint32_t all = 0;
};
inline void collect_votes(void** arguments, uint32_t mask) {
    uint32_t all = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1) all |= uint32_t(static_cast<Vote*>(arguments[lane])->yes) << lane;
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1) static_cast<Vote*>(arguments[lane])->all = all;
}

inline uint32_t vote(const char* operation, uint32_t mask, bool yes, const Location& at) {
    Vote mine{yes};
    meet_in_warp(operation, mask, &mine, collect_votes, at);
    return mine.all;
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

inline unsigned __ballot_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__ballot_sync", mask, yes, at);
}
inline int __any_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__any_sync", mask, yes, at) != 0;
}
