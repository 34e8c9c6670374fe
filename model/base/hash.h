// XXH3, a fast 64-bit hash that detects damage (it does not protect against an adversary).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

uint64_t xxh3(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t xxh3(std::span<const std::byte> bytes) { return xxh3(bytes.data(), bytes.size()); }
inline uint64_t xxh3(std::string_view text) { return xxh3(text.data(), text.size()); }

/// The same hash over bytes added in pieces.
class Hasher {
public:
    Hasher();
    void add(const void* data, size_t bytes);
    uint64_t digest() const;

private:
    alignas(64) std::byte state_[640];   // xxhash's state, whose type is private to hash.cpp
};

/// XXH64 (seed 0), the hash of shards in manifests, over bytes added in pieces.
class FileHasher {
public:
    FileHasher();
    void add(const void* data, size_t bytes);
    uint64_t digest() const;

private:
    alignas(8) std::byte state_[88];
};

/// 16 hexadecimal digits, as hashes are printed and stored.
std::string hexadecimal(uint64_t value);
