// Shuffles and votes of a warp.
#pragma once
#include <cstdint>

#include "meetings.h"

namespace emulator {

inline int lane() { return self->lane(); }

/// A lane's argument and result of a shuffle.
template <class T>
struct Shuffle {
    T value;
    int source;   // the lane whose value is read
    T result;
};

template <class T>
T shuffle(const char* operation, uint32_t mask, T value, int source, const Location& at) {
    require_all_lanes(operation, mask, at);
    Shuffle<T> mine{value, source & (LANES - 1), value};
    meet_in_warp(operation, mine, at, [](Shuffle<T>** lanes) {
        for (int n = 0; n < LANES; n++) lanes[n]->result = lanes[lanes[n]->source]->value;
    });
    return mine.result;
}

/// A lane's vote, and the votes of all lanes, one bit each.
struct Vote {
    bool yes;
    uint32_t all = 0;
};
inline uint32_t vote(const char* operation, uint32_t mask, bool yes, const Location& at) {
    require_all_lanes(operation, mask, at);
    Vote mine{yes};
    meet_in_warp(operation, mine, at, [](Vote** lanes) {
        uint32_t all = 0;
        for (int n = 0; n < LANES; n++) all |= uint32_t(lanes[n]->yes) << n;
        for (int n = 0; n < LANES; n++) lanes[n]->all = all;
    });
    return mine.all;
}

}   // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, emulator::Location at = emulator::Location::current()) {
    return emulator::shuffle("__shfl_sync", mask, value, source, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, emulator::Location at = emulator::Location::current()) {
    return emulator::shuffle("__shfl_xor_sync", mask, value, emulator::lane() ^ bits, at);
}
inline unsigned __ballot_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__ballot_sync", mask, yes, at);
}
inline int __any_sync(unsigned mask, bool yes, emulator::Location at = emulator::Location::current()) {
    return emulator::vote("__any_sync", mask, yes, at) != 0;
}
