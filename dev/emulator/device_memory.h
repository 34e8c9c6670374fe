// Memory from cudaMalloc and cudaMallocHost: exactly the requested bytes, between two forbidden zones, and poisoned, because new
// memory of a GPU holds arbitrary bytes. Under seed 1 the host cannot access device memory: following a pointer to it is a
// segmentation fault, as on a machine with a GPU.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "error.h"
#include "options.h"
#include "shared_memory.h"

namespace emulator {

enum class Memory { device, pinned };

/// A write outside of an allocation.
struct Damage : Error {
    using Error::Error;
};

struct Allocation {
    size_t bytes = 0;
    Memory memory = Memory::device;
    int device = 0;
    Location at;
    mutable Zone before, after;   // repaired when damage is reported, so that it is reported once

    std::string name() const {
        const char* function = memory == Memory::device ? "cudaMalloc" : "cudaMallocHost";
        return join("the ", bytes, " bytes that ", function, " returned at ", place(at));
    }
};

class DeviceMemory {
public:
    /// nullptr if the device, or this machine, has no room.
    void* allocate(size_t bytes, Memory memory, int device, const Location& at) {
        if (memory == Memory::device && bytes > free_bytes(device)) return nullptr;
        Access access(*this);
        static_assert(Zone::BYTES % 256 == 0);   // the alignment that cudaMalloc promises
        void* mapped = mmap(nullptr, with_zones(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return nullptr;
        char* start = static_cast<char*>(mapped);
        char* data = start + Zone::BYTES;
        std::memset(data, poison(), bytes);
        allocations_[data] = {bytes, memory, device, at, Zone(start), Zone(data + bytes)};
        return data;
    }

    void release(void* data, Memory memory, const Location& at) {
        auto found = allocations_.find(static_cast<char*>(data));
        if (found == allocations_.end() || found->second.memory != memory)
            throw Error(join(place(at), ": frees memory that is not allocated: ", data));
        Access access(*this);
        check(found->second);
        unmap(*found);
        allocations_.erase(found);
    }

    /// The allocation that `address` points into, or nullptr for other host memory.
    const Allocation* find(const void* address) const {
        const Entry* entry = entry_of(address);
        return entry ? &entry->second : nullptr;
    }

    /// Throws unless bytes address .. address + bytes are all inside the allocation where they begin.
    void check_range(const void* address, size_t bytes, const char* what, const Location& at) const {
        const Entry* entry = entry_of(address);
        if (!entry) return;
        const size_t offset = size_t(static_cast<const char*>(address) - entry->first);
        if (offset + bytes <= entry->second.bytes) return;
        throw Error(join(place(at), ": ", what, " bytes ", offset, " to ", offset + bytes, " of ", entry->second.name()));
    }

    /// Throws if anything was written outside of an allocation.
    void check_all() const {
        for (const auto& [data, allocation] : allocations_) check(allocation);
    }

    size_t free_bytes(int device) const {
        size_t used = options().taken_bytes;
        for (const auto& [data, allocation] : allocations_)
            if (allocation.memory == Memory::device && allocation.device == device) used += allocation.bytes;
        return options().device_bytes - std::min(options().device_bytes, used);
    }

    /// Makes device memory accessible while one exists.
    class Access {
    public:
        explicit Access(DeviceMemory& memory) : memory_(memory) {
            if (memory_.accesses_++ == 0 && memory_.closed_) memory_.protect(PROT_READ | PROT_WRITE);
        }
        ~Access() {
            if (--memory_.accesses_ == 0 && options().seed == 1) memory_.protect(PROT_NONE);
        }
        Access(const Access&) = delete;

    private:
        DeviceMemory& memory_;
    };

private:
    using Entry = std::pair<char* const, Allocation>;

    static size_t with_zones(size_t bytes) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE));
        return (Zone::BYTES + bytes + Zone::BYTES + page - 1) / page * page;
    }

    void protect(int protection) {
        for (const auto& [data, allocation] : allocations_)
            if (allocation.memory == Memory::device) mprotect(data - Zone::BYTES, with_zones(allocation.bytes), protection);
        closed_ = protection == PROT_NONE;
    }

    static void unmap(const Entry& entry) {
        const size_t bytes = with_zones(entry.second.bytes);
        permit(entry.first - Zone::BYTES, bytes);   // the addresses may be allocated again
        munmap(entry.first - Zone::BYTES, bytes);
    }

    const Entry* entry_of(const void* address) const {
        char* wanted = static_cast<char*>(const_cast<void*>(address));
        auto after = allocations_.upper_bound(wanted);
        if (after == allocations_.begin()) return nullptr;
        const auto& entry = *std::prev(after);
        return wanted < entry.first + entry.second.bytes + Zone::BYTES ? &entry : nullptr;
    }

    static void check(const Allocation& allocation) {
        const int after = allocation.after.written(), before = allocation.before.written();
        if (after < 0 && before < 0) return;
        allocation.after.repair();
        allocation.before.repair();
        if (after >= 0) throw Damage(join("a write to byte ", allocation.bytes + size_t(after), " of ", allocation.name()));
        throw Damage(join("a write ", Zone::BYTES - size_t(before), " bytes before the start of ", allocation.name()));
    }

    std::map<char*, Allocation> allocations_;   // by the address of their first byte
    int accesses_ = 0;
    bool closed_ = false;
};

}   // namespace emulator
