// TCP sockets with timeouts, as needed by rendezvous.cpp. A socket is a file descriptor; -1 is none.
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
    /// Port 0: any free port. Exit::usage if the port is taken.
    explicit Listener(int port);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    int port() const;

    /// The next connection, or -1 at the deadline.
    int accept(const Deadline& deadline) const;

private:
    int socket_;
};

/// A connection, or -1 with the reason in `problem`.
int connect_to(const std::string& host, int port, const Deadline& deadline, std::string& problem);

/// False if the connection is closed.
bool send_all(int socket, const void* data, size_t bytes);

/// Receives exactly `bytes`; false if the connection is closed or the deadline, if any, has passed.
bool receive_all(int socket, void* data, size_t bytes, const Deadline* deadline = nullptr);

/// Whether the other end has closed the connection.
bool is_closed(int socket);

void close_socket(int socket);

/// Addresses at which other machines may reach this one: those of its interfaces, except loopback and link-local ones.
std::vector<std::string> own_addresses();

/// This machine's host name, for messages.
std::string machine_name();

/// A unique id of this machine: host names repeat if machines are copies of one image.
std::string machine_id();
