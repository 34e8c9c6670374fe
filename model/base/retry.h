// System calls that a signal may interrupt.
#pragma once
#include <cerrno>

#include <unistd.h>

/// Repeats a system call while it fails with EINTR. (Not for close(), which has closed the descriptor all the same.)
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

/// Closes a descriptor; false if that reports a failed write (in errno). Interrupted, it is closed nevertheless.
inline bool close_file(int descriptor) { return ::close(descriptor) == 0 || errno == EINTR; }
