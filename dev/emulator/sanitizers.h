// Annotations that let AddressSanitizer and ThreadSanitizer understand fibers, forbidden memory and barriers. In a build without them
// every function here is empty.
#pragma once
#include <cstddef>

#if defined(__has_feature)   // clang
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define EMULATOR_TSAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)   // g++
#define EMULATOR_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define EMULATOR_TSAN 1
#endif

#if EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif

// Functions during which the fiber changes, and functions that never return: ThreadSanitizer counts calls and returns per fiber, even
// under clang's no_sanitize("thread").
#if defined(__clang__)
#define EMULATOR_PLAIN __attribute__((disable_sanitizer_instrumentation))
#elif EMULATOR_TSAN
#define EMULATOR_PLAIN __attribute__((no_sanitize("thread")))
#else
#define EMULATOR_PLAIN
#endif
// Functions that read forbidden memory on purpose.
#define EMULATOR_MAY_READ_ALL __attribute__((no_sanitize("address"), noinline))

namespace emulator {

#if EMULATOR_TSAN
inline constexpr bool FINDS_RACES = true;
#else
inline constexpr bool FINDS_RACES = false;
#endif
#if EMULATOR_ASAN || EMULATOR_TSAN
inline constexpr bool SANITIZED = true;
#else
inline constexpr bool SANITIZED = false;
#endif

/// From now on AddressSanitizer stops the program at the line that touches these bytes.
inline void forbid([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) {
#if EMULATOR_ASAN
    __asan_poison_memory_region(begin, bytes);
#endif
}
inline void permit([[maybe_unused]] void* begin, [[maybe_unused]] size_t bytes) {
#if EMULATOR_ASAN
    __asan_unpoison_memory_region(begin, bytes);
#endif
}

/// For ThreadSanitizer: all accesses before release(sign) on one fiber precede those after a later acquire(sign) on another.
inline void release([[maybe_unused]] char& sign) {
#if EMULATOR_TSAN
    __tsan_release(&sign);
#endif
}
inline void acquire([[maybe_unused]] char& sign) {
#if EMULATOR_TSAN
    __tsan_acquire(&sign);
#endif
}

/// Until the end of the scope, memory accesses are the emulator's and not races of the kernel.
struct Quiet {
#if EMULATOR_TSAN
    Quiet() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Quiet() {
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    }
#else
    Quiet() {}
#endif
    Quiet(const Quiet&) = delete;
};

}   // namespace emulator
