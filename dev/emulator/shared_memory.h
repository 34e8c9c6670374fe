// The shared memory of a block: exactly the bytes of the launch, between two forbidden zones.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "error.h"
#include "options.h"
#include "sanitizers.h"

namespace emulator {

inline constexpr size_t MAX_SHARED = 227 << 10;   // maximum bytes per block on compute capability 9.0

/// Maximum bytes per block on the emulated GPU.
inline size_t max_shared() {
    const int capability = options().capability;
    return capability >= 90 ? MAX_SHARED : capability == 80 ? 163 << 10 : 99 << 10;
}

/// Guard bytes around an allocation. They hold poison: reads give NaN or nonsense. In a build with
/// AddressSanitizer the first access ends the program; in others a write is found when the zone is checked.
class Zone {
public:
    static constexpr size_t BYTES = 1024;

    Zone() = default;
    explicit Zone(char* begin) : begin_(begin), filling_(poison()) { repair(); }
    void repair() {
        permit(begin_, BYTES);
        std::memset(begin_, filling_, BYTES);
        forbid(begin_, BYTES);
    }

    /// Position of the first byte written, or -1.
    EMULATOR_MAY_READ_ALL int written() const {
        const char first = char(filling_);
        for (size_t i = 0; i < BYTES; i += 8) {
            uint64_t eight;
            __builtin_memcpy(&eight, begin_ + i, 8);
            if (eight == 0x0101010101010101ull * filling_) continue;
            while (begin_[i] == first) i++;
            return int(i);
        }
        return -1;
    }

private:
    char* begin_ = nullptr;
    unsigned char filling_ = 0;
};

class SharedMemory {
public:
    /// Fresh, unwritten memory for a block.
    void start(size_t bytes) {
        forbid(memory_, sizeof memory_);
        bytes_ = bytes;
        before_ = Zone(begin() - Zone::BYTES);
        after_ = Zone(begin() + bytes);
        permit(begin(), bytes);
        std::memset(begin(), poison(), bytes);
        std::fill_n(writers.begin(), (RESERVED + bytes + 15) / 16, Writer{});
    }

    /// The thread that wrote 16 bytes past the asynchronous proxy, from 1 on, and the number of its proxy fences until then.
    struct Writer {
        int thread = 0;
        unsigned fences = 0;
    };
    static constexpr uint32_t RESERVED = 1024;   // at the start of the window of shared memory, by the system
    std::array<Writer, (RESERVED + MAX_SHARED) / 16> writers;   // by address / 16

    char* begin() { return memory_ + Zone::BYTES; }
    bool contains(const void* address, size_t bytes) {
        const char* first = static_cast<const char*>(address);
        return first >= begin() && first + bytes <= begin() + bytes_;
    }

    /// The damage to the zones; empty if there is none.
    std::string damage() const {
        const int after = after_.written(), before = before_.written();
        if (after >= 0) return join("a thread wrote to byte ", bytes_ + size_t(after), " of ", bytes_, " bytes of shared memory");
        if (before >= 0) return join("a thread wrote ", Zone::BYTES - size_t(before), " bytes before the start of shared memory");
        return "";
    }

    ~SharedMemory() { permit(memory_, sizeof memory_); }   // the heap may reuse these bytes

private:
    alignas(1024) char memory_[Zone::BYTES + MAX_SHARED + Zone::BYTES];
    size_t bytes_ = 0;
    Zone before_, after_;
};

}   // namespace emulator
