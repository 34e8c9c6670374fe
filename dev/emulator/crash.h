// Reports a crash inside a kernel (null pointer, stack overflow, integer division by zero, failed assert) with the CUDA thread, and an
// access of the host to device memory as such.
#pragma once
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "block.h"
#include "streams.h"

namespace emulator {

inline constexpr int CRASHES[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
inline struct sigaction actions_before[NSIG];

/// Writes without allocating, because the heap may be corrupt.
inline void report_crash(int signal, siginfo_t* info, void*) {
    char text[400] = "";
    if (worker && self) {
        const Location& at = worker->kernel->at;
        const char* sentence = "signal %d in the kernel launched at %s:%u, block (%u,%u,%u), thread %u\n";
        std::snprintf(text, sizeof text, sentence, signal, at.file_name(), unsigned(at.line()), blockIdx.x, blockIdx.y, blockIdx.z,
                      threadIdx.x);
    } else if (const Allocation* allocation = runtime().memory.find(info->si_addr); signal == SIGSEGV && allocation) {
        const char* sentence = "the host accesses device memory without cudaMemcpy: %zu bytes, allocated at %s:%u\n";
        std::snprintf(text, sizeof text, sentence, allocation->bytes, allocation->at.file_name(), unsigned(allocation->at.line()));
    }
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
    sigaction(signal, &actions_before[signal], nullptr);   // the previous handler (a debugger, the test program) takes over
    raise(signal);
}

/// Installs handlers for the process, and for this OS thread a stack for them: a CUDA thread's may be used up.
inline void name_crashes() {
    if (SANITIZED) return;   // sanitizers have better reports
    static thread_local char own_stack[32 << 10];
    static thread_local bool ready = false;
    if (ready) return;
    ready = true;
    stack_t stack{};
    stack.ss_sp = own_stack;
    stack.ss_size = sizeof own_stack;
    sigaltstack(&stack, nullptr);
    static const bool installed = [] {
        struct sigaction action {};
        action.sa_sigaction = report_crash;
        action.sa_flags = SA_ONSTACK | SA_SIGINFO;
        for (int signal : CRASHES) sigaction(signal, &action, &actions_before[signal]);
        return true;
    }();
    (void)installed;
}

}   // namespace emulator
