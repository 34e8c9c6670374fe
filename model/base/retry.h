#pragma once
#include <cerrno>

/// Repeats a system call while it fails with EINTR. (Not for close(), which has closed the descriptor all the same.)
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}
