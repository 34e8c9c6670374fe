#include "model/ranks/sockets.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "model/base/error.h"

int Deadline::milliseconds_left() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    return int(std::clamp<int64_t>(left, 0, 1 << 30));
}

/// False at the deadline.
static bool ready(int socket, short events, const Deadline& deadline) {
    pollfd p{socket, events, 0};
    for (;;) {
        const int found = poll(&p, 1, deadline.milliseconds_left());
        if (found > 0) return true;
        if (found == 0 || errno != EINTR) return false;
    }
}

/// Makes the socket blocking, sends small messages at once, and enables keep-alive to detect a vanished machine.
static int set_up(int socket) {
    const int on = 1;
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return socket;
}

// One socket serves IPv6 and IPv4; where the machine has no IPv6, IPv4 alone.
Listener::Listener(int port) {
    const int on = 1, off = 0;
    sockaddr_storage address{};
    socklen_t length = sizeof(sockaddr_in6);
    socket_ = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ >= 0) {
        sockaddr_in6& six = reinterpret_cast<sockaddr_in6&>(address);
        six.sin6_family = AF_INET6, six.sin6_port = htons(uint16_t(port)), six.sin6_addr = in6addr_any;
        setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    } else {
        socket_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_in& four = reinterpret_cast<sockaddr_in&>(address);
        four.sin_family = AF_INET, four.sin_port = htons(uint16_t(port)), four.sin_addr.s_addr = INADDR_ANY;
        length = sizeof(sockaddr_in);
    }
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket_, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(socket_, SOMAXCONN) == 0) return;
    const std::string problem = last_os_error();
    close_socket(socket_);
    fail(Exit::usage, "rank 0 cannot listen on port ", port, " (", problem, "); choose another port");
}
Listener::~Listener() { close_socket(socket_); }

int Listener::port() const {
    sockaddr_in6 address{};   // the port is at the same place in the IPv4 form
    socklen_t length = sizeof address;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin6_port);
}

int Listener::accept(const Deadline& deadline) const {
    if (!ready(socket_, POLLIN, deadline)) return -1;
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    return connection < 0 ? -1 : set_up(connection);
}

int connect_to(const std::string& host, int port, const Deadline& deadline, std::string& problem) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
        problem = gai_strerror(error);
        return -1;
    }
    int connected = -1;
    for (const addrinfo* a = found; a && connected < 0; a = a->ai_next) {
        const int s = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (s < 0) continue;
        int error = connect(s, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
        socklen_t length = sizeof error;
        if (error == EINPROGRESS && !ready(s, POLLOUT, deadline)) error = ETIMEDOUT;
        else if (error == EINPROGRESS) getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error == 0) connected = set_up(s);
        else problem = std::strerror(error), close(s);
    }
    freeaddrinfo(found);
    return connected;
}

bool send_all(int socket, const void* data, size_t bytes) {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
        const ssize_t n = send(socket, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n, bytes -= size_t(n);
    }
    return true;
}

bool receive_all(int socket, void* data, size_t bytes, const Deadline* deadline) {
    for (char* at = static_cast<char*>(data); bytes > 0;) {
        if (deadline && !ready(socket, POLLIN, *deadline)) return false;
        const ssize_t n = recv(socket, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n, bytes -= size_t(n);
    }
    return true;
}

bool is_closed(int socket) {
    pollfd p{socket, POLLRDHUP, 0};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

void close_socket(int socket) {
    if (socket >= 0) close(socket);
}

std::vector<std::string> own_addresses() {
    std::vector<std::string> found;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) return found;
    for (const ifaddrs* a = all; a; a = a->ifa_next) {
        if (!a->ifa_addr || !(a->ifa_flags & IFF_UP) || (a->ifa_flags & IFF_LOOPBACK)) continue;
        const int family = a->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        const auto* six = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr);
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
        char text[NI_MAXHOST];
        const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        if (getnameinfo(a->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) found.push_back(text);
    }
    freeifaddrs(all);
    return found;
}

std::string machine_name() {
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

std::string machine_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return boot.empty() ? machine_name() : boot;
}
