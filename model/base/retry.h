// System calls that a signal may interrupt.
#pragma once
#include <cerrno>

/// Repeats a system call while it fails with EINTR.
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}
