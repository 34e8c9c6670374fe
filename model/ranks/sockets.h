// TCP sockets with time limits, as far as rendezvous.cpp needs them. A socket is its file descriptor, -1 is none.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

struct Deadline {
    std::chrono::steady_clock::time_point end;
    explicit Deadline(int seconds) : end(std::chrono::steady_clock::now() + std::chrono::seconds(seconds)) {}
    int milliseconds_left() const;
    bool over() const { return milliseconds_left() == 0; }
};

/// Listens on all interfaces of this machine.
class Listener {
public:
    /// Port 0: one that is free. Exit::usage when the port is taken.
    explicit Listener(int port);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    int port() const;

    /// The next connection, or -1.
    int accept(const Deadline& deadline) const;

private:
    int socket_;
};

/// A connection, or -1 with the reason in `problem`.
int connect_to(const std::string& host, int port, const Deadline& deadline, std::string& problem);

/// False when the other end is gone.
bool send_all(int socket, const void* data, size_t bytes);

/// Exactly `bytes`; false when the other end is gone, or late where there is a deadline.
bool receive_all(int socket, void* data, size_t bytes, const Deadline* deadline = nullptr);

/// Whether the other end has closed the connection.
bool is_closed(int socket);

void close_socket(int socket);

/// Addresses under which other machines may reach this one: those of its interfaces but for loopback and link-local ones.
std::vector<std::string> own_addresses();

/// This machine's name, for people.
std::string machine_name();

/// What tells this machine from every other: names repeat where machines are copies of one image.
std::string machine_id();
