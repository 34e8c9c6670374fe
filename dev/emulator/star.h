// Data exchange of the emulated NCCL: stream sockets of one machine between rank 0 and every other rank.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "model/base/error.h"

namespace emulator::nccl {

/// Every rank makes the same calls in the same order; all get the same bits. Exit::rank if the connection to a rank is lost.
class Star {
public:
    const int rank, size;

    /// Connects to the other ranks at `name`, an address of this machine that is unique to the job (unix(7), abstract).
    Star(const std::string& name, int rank_, int size_, int seconds) : rank(rank_), size(size_), sockets_(size_t(size_), -1) {
        if (rank == 0) accept_ranks(name);
        else connect_to_first(name, seconds);
    }
    ~Star() {
        for (int s : sockets_)
            if (s >= 0) close(s);
    }
    Star(const Star&) = delete;
    Star& operator=(const Star&) = delete;

    /// Every rank's `bytes` bytes at x, one after the other: rank 0 collects them and sends all to each.
    std::vector<std::byte> of_all(const void* x, size_t bytes) {
        std::vector<std::byte> all(bytes * size_t(size));
        if (rank != 0) {
            send(0, x, bytes);
            receive(0, all.data(), all.size());
            return all;
        }
        std::copy_n(static_cast<const std::byte*>(x), bytes, all.data());
        for (int r = 1; r < size; r++) receive(r, all.data() + bytes * size_t(r), bytes);
        for (int r = 1; r < size; r++) send(r, all.data(), all.size());
        return all;
    }

    /// The sums of x (n) over the ranks, in their order.
    template <class X>
    std::vector<X> sums(const X* x, size_t n) {
        const std::vector<std::byte> all = of_all(x, n * sizeof(X));
        const X* number = reinterpret_cast<const X*>(all.data());
        std::vector<X> total(number, number + n);
        for (int r = 1; r < size; r++)
            for (size_t i = 0; i < n; i++) total[i] += number[size_t(r) * n + i];
        return total;
    }

    /// Waits for the others before leaving the job.
    void leave() {
        try {
            of_all("", 1);
        } catch (const Error&) {   // this rank is done even if others failed
        }
    }

private:
    static sockaddr_un address_of(const std::string& name) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof address.sun_path - 1));   // a zero first: abstract
        return address;
    }

    void accept_ranks(const std::string& name) {
        const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_un address = address_of(name);
        if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(listener, size) != 0)
            fail(Exit::rank, "the emulated NCCL cannot listen at ", name, ": ", last_os_error());
        for (int n = 1; n < size; n++) {
            const int s = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            int32_t other = 0;
            if (s < 0 || recv(s, &other, sizeof other, MSG_WAITALL) != sizeof other || other < 1 || other >= size)
                fail(Exit::rank, "the emulated NCCL got an unknown connection at ", name);
            sockets_[size_t(other)] = s;
        }
        close(listener);
    }

    void connect_to_first(const std::string& name, int seconds) {
        const sockaddr_un address = address_of(name);
        const int s = sockets_[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
        while (connect(s, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
            if (std::chrono::steady_clock::now() > end) fail(Exit::rank, "the emulated NCCL found no rank 0 at ", name);
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        const int32_t me = rank;
        send(0, &me, sizeof me);
    }

    void send(int to, const void* data, size_t bytes) {
        for (const char* at = static_cast<const char*>(data); bytes > 0;) {
            const ssize_t n = ::send(sockets_[size_t(to)], at, bytes, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) fail(Exit::rank, "lost the connection to rank ", to);
            at += n, bytes -= size_t(n);
        }
    }
    void receive(int from, void* data, size_t bytes) {
        for (char* at = static_cast<char*>(data); bytes > 0;) {
            const ssize_t n = recv(sockets_[size_t(from)], at, bytes, 0);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) fail(Exit::rank, "lost the connection to rank ", from);
            at += n, bytes -= size_t(n);
        }
    }

    std::vector<int> sockets_;   // (size) on rank 0: to every other rank; elsewhere only to rank 0; -1: none
};

}   // namespace emulator::nccl
