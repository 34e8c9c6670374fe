// GCC 12 wrongly reports inlined AVX-512 intrinsics as uninitialised, so all of xxhash is confined to this file.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "model/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static XXH3_state_t* as_state(std::byte* bytes) { return reinterpret_cast<XXH3_state_t*>(bytes); }

uint64_t xxh3(const void* data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

Hasher::Hasher() {
    static_assert(sizeof(XXH3_state_t) <= sizeof(state_) && alignof(XXH3_state_t) <= 64);
    XXH3_INITSTATE(as_state(state_));   // resetting reads a field of the state
    XXH3_64bits_reset(as_state(state_));
}

void Hasher::add(const void* data, size_t bytes) { XXH3_64bits_update(as_state(state_), data, bytes); }

uint64_t Hasher::digest() const { return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_)); }

static XXH64_state_t* as_state64(std::byte* bytes) { return reinterpret_cast<XXH64_state_t*>(bytes); }

FileHasher::FileHasher() {
    static_assert(sizeof(XXH64_state_t) <= sizeof(state_));
    XXH64_reset(as_state64(state_), 0);
}

void FileHasher::add(const void* data, size_t bytes) { XXH64_update(as_state64(state_), data, bytes); }

uint64_t FileHasher::digest() const { return XXH64_digest(reinterpret_cast<const XXH64_state_t*>(state_)); }

std::string hexadecimal(uint64_t value) {
    std::string digits(16, '0');
    for (int i = 15; i >= 0; i--, value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
    return digits;
}
