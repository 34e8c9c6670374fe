// Fibers: many stacks on one OS thread, and the switch from one to another.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "error.h"
#include "sanitizers.h"

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#define EMULATOR_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emulator {

inline constexpr size_t STACK_BYTES = SANITIZED ? 256 << 10 : 64 << 10;

/// A resumable point of execution: a fiber, or the OS thread's own stack.
struct Context {
    void* stack_pointer = nullptr;   // at the last switch
    char* stack = nullptr;           // lowest byte of its stack, and the size
    size_t stack_bytes = STACK_BYTES;
    void* tsan_fiber = nullptr;      // ThreadSanitizer's name for it
};

#if EMULATOR_USES_UCONTEXT

/// POSIX's own switch. It reads the signal mask from the operating system each time, which makes it twenty times slower.
inline void switch_stack(void** from, void* to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

inline void* first_frame(char* stack, size_t, void (*entry)()) {
    auto* context = reinterpret_cast<ucontext_t*>(stack);   // the low end of the stack, which the fiber reaches last
    getcontext(context);
    context->uc_stack.ss_sp = stack + sizeof(ucontext_t);
    context->uc_stack.ss_size = STACK_BYTES - sizeof(ucontext_t);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

#else

#if defined(__clang__)
#define EMULATOR_BARE __attribute__((naked, noinline, disable_sanitizer_instrumentation))
#else
#define EMULATOR_BARE __attribute__((naked, noinline, noipa, no_sanitize("address", "thread", "undefined")))
#endif

/// Saves the registers that a called function must preserve, stores the stack pointer in *from and continues at `to`.
/// It ends in a jump, not in `ret`: the processor predicts the target of a `ret` from earlier calls. That would always be wrong here,
/// and each switch would take four times as long.
EMULATOR_BARE inline void switch_stack(void** /*from: rdi*/, void* /*to: rsi*/) {
    asm volatile(
        "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15;"
        "movq %rsp, (%rdi);"
        "movq %rsi, %rsp;"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp;"
        "popq %rcx; jmp *%rcx");
}

/// A stack that looks as if entry() had been interrupted before its first instruction. `spread` moves the top a little, so that
/// the stacks of a block's threads do not all compete for the same lines of the cache.
inline void* first_frame(char* stack, size_t spread, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES - 64 - spread * 320 % 4096 / 64 * 64);
    *--top = nullptr;   // entry's return address: ends every backtrace. The stack pointer is now 8 modulo 16, as after a call.
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    return top;
}

#endif

/// Continues with `to`; returns when something switches to `from`. A context that ends for good needs no fake stack.
EMULATOR_PLAIN inline void switch_context(Context& from, const Context& to, [[maybe_unused]] bool for_good = false) {
#if EMULATOR_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack, to.stack, to.stack_bytes);
#endif
#if EMULATOR_TSAN
    __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
    switch_stack(&from.stack_pointer, to.stack_pointer);
#if EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

/// The first call of a new fiber. Sets the stack of `origin`, which only AddressSanitizer can tell.
EMULATOR_PLAIN inline void arrive_on_new_fiber([[maybe_unused]] Context& origin) {
#if EMULATOR_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (origin.stack) return;   // later fibers may be entered from other fibers
    origin.stack = static_cast<char*>(const_cast<void*>(bottom));
    origin.stack_bytes = bytes;
#endif
}

/// Reusable stacks of one OS thread.
class Stacks {
public:
    char* take() {
        if (free_.empty()) return map();
        char* stack = free_.back();
        free_.pop_back();
        return stack;
    }
    void give_back(char* stack) { free_.push_back(stack); }

    ~Stacks() {
        for (char* stack : all_) {
            permit(stack, STACK_BYTES);   // the addresses may be allocated again
            munmap(stack - guard(), STACK_BYTES + guard());
        }
    }

private:
    static size_t guard() { return size_t(sysconf(_SC_PAGESIZE)); }

    char* map() {
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* memory = mmap(nullptr, STACK_BYTES + guard(), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) throw Error("not enough memory for the stacks of the emulated threads");
        mprotect(memory, guard(), PROT_NONE);   // a stack overflow ends the program instead of overwriting another stack
        all_.push_back(static_cast<char*>(memory) + guard());
        return all_.back();
    }

    std::vector<char*> free_, all_;
};

}   // namespace emulator
