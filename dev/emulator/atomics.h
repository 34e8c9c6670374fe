// Atomic operations and fences. They are the processor's own, because blocks run on several OS threads. As on a GPU they order
// nothing else: data published by a flag needs __threadfence() on both sides.
#pragma once
#include <atomic>
#include <type_traits>

#include "block.h"

namespace emulator {

template <class T>
concept AtomicNumber = std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

inline constinit char fence_sign = 0;   // ThreadSanitizer ignores fences: two of them order accesses before and after

/// Ends a polling loop if the block that it waits for has failed.
inline void throw_if_another_failed() {
    if (worker && self && worker->progress->failed) throw Error("another block has failed");
}

template <class T>
T load(const T* from) {
    throw_if_another_failed();
    return std::atomic_ref<T>(*const_cast<T*>(from)).load(std::memory_order_relaxed);
}

/// Replaces *to by change(*to); returns the old value.
template <class T, class Change>
T atomic_change(T* to, Change change) {
    throw_if_another_failed();
    std::atomic_ref<T> number(*to);
    T old = number.load(std::memory_order_relaxed);
    while (!number.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {}
    return old;
}

}   // namespace emulator

template <emulator::AtomicNumber T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
    return emulator::atomic_change(to, [value](T old) { return T(old + value); });
}
template <emulator::AtomicNumber T>
T atomicExch(T* to, std::type_identity_t<T> value) {
    return emulator::atomic_change(to, [value](T) { return value; });
}

inline void __threadfence() {
#if EMULATOR_TSAN
    emulator::acquire(emulator::fence_sign);
    emulator::release(emulator::fence_sign);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
inline void __threadfence_system() { __threadfence(); }
