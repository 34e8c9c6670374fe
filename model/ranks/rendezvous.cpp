#include "model/ranks/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/ranks/sockets.h"

namespace {

/// A rank's first message. Rank 0 answers with `magic` at once, and with a Verdict when all have arrived or time is up.
struct Hello {
    char magic[8];
    uint64_t token;   // identifies the job, from its file; 0 for a known address
    int32_t rank, size;
    char machine[64], machine_id[64];
};
struct Verdict {
    int32_t local_rank, local_size;
    char problem[400];   // "" if all have arrived
};
constexpr char MAGIC[8] = "ranks 1";
constexpr int STRANGER_SECONDS = 2;   // rank 0's limit for the first message on a connection: port scanners send none
constexpr int ANSWER_SECONDS = 20;    // limit for rank 0's answer to it
constexpr size_t PIECE = size_t(1) << 20;   // bytes summed at a time, which bounds rank 0's memory

void copy_text(char* to, size_t room, const std::string& text) { std::snprintf(to, room, "%s", text.c_str()); }

void write_address(const std::string& file, int port, uint64_t token) {
    std::string line = machine_id() + " " + std::to_string(port) + " " + std::to_string(token);
    for (const std::string& address : own_addresses()) line += " " + address;
    if (const std::string why = replace_file(file, line + "\n"); !why.empty())
        fail(Exit::usage, file, ": rank 0 cannot write its address there (", why,
             "); --ranks-from file:PATH needs a path in a folder that every rank can read and rank 0 can write");
}

uint64_t random_token() {
    std::random_device random;
    return uint64_t(random()) << 32 | random();
}

}   // namespace

std::string ranks_named(const std::vector<int>& ranks) {
    const size_t shown = ranks.size() <= 12 ? ranks.size() : 10;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < shown; i++) text += (i ? ", " : "") + std::to_string(ranks[i]);
    return shown == ranks.size() ? text : text + " and " + std::to_string(ranks.size() - shown) + " more";
}

RendezvousPoint parse_rendezvous_point(const std::string& text) {
    RendezvousPoint where;
    if (text.rfind("file:", 0) == 0 && text.size() > 5) {
        where.file = text.substr(5);
        return where;
    }
    const size_t colon = text.rfind(':');
    if (text.rfind("tcp:", 0) == 0 && colon > 4) {
        where.host = text.substr(4, colon - 4);
        if (where.host.front() == '[' && where.host.back() == ']') where.host = where.host.substr(1, where.host.size() - 2);
        where.port = std::atoi(text.c_str() + colon + 1);
        if (where.port > 0 && where.port < 65536) return where;
    }
    fail(Exit::usage, text, " is not a valid rendezvous; --ranks-from takes auto, mpi, tcp, tcp:HOST:PORT or file:PATH");
}

// ------------------------------------------------------------------------------------------------------------------ rendezvous

Star::Star(const RendezvousPoint& where, int rank_, int size_, int seconds) : sockets_(size_, -1), machines_(size_) {
    rank = rank_, size = size_;
    if (size < 1 || rank < 0 || rank >= size)
        fail(Exit::usage, "rank ", rank, " is not one of ", size, " ranks, which count from 0");
    if (size == 1) return;
    try {
        rank == 0 ? wait_for_others(where, seconds) : connect_to_first(where, seconds);
    } catch (...) {
        for (int s : sockets_) close_socket(s);   // the destructor does not run if the constructor throws
        throw;
    }
}

Star::~Star() {
    for (int s : sockets_) close_socket(s);
}

std::vector<int> Star::missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < size; r++)
        if (sockets_[r] < 0) ranks.push_back(r);
    return ranks;
}

void Star::wait_for_others(const RendezvousPoint& where, int seconds) {
    const bool by_file = !where.file.empty();
    const uint64_t token = by_file ? random_token() : 0;
    machines_[0] = {machine_name(), machine_id()};
    const Listener listener(where.port);
    if (by_file) write_address(where.file, listener.port(), token);
    const Deadline deadline(seconds);
    std::string problem;
    while (problem.empty() && !missing().empty() && !deadline.over()) {
        const int connection = listener.accept(deadline);
        if (connection >= 0) problem = admit(connection, token);
    }
    if (by_file) std::remove(where.file.c_str());
    const std::vector<int> absent = missing();
    if (problem.empty() && !absent.empty()) {
        std::ostringstream text;
        text << ranks_named(absent) << " of " << size << " did not reach " << where.text()
             << " within " << seconds << " s";
        problem = text.str();
    }
    give_verdict(problem);
}

/// Silently closes connections that are not from this job. If a rank's claim is impossible, failing the job, returns a sentence.
std::string Star::admit(int socket, uint64_t token) {
    Hello hello;
    const Deadline patience(STRANGER_SECONDS);
    if (!receive_all(socket, &hello, sizeof hello, &patience) || std::memcmp(hello.magic, MAGIC, sizeof MAGIC) != 0 ||
        hello.token != token || !send_all(socket, MAGIC, sizeof MAGIC)) {
        close_socket(socket);
        return "";
    }
    std::ostringstream problem;
    const int r = hello.rank;
    hello.machine[sizeof hello.machine - 1] = hello.machine_id[sizeof hello.machine_id - 1] = 0;
    const Machine machine{hello.machine, hello.machine_id};
    if (hello.size != size || r < 1 || r >= size) {
        problem << "rank " << r << " of " << hello.size << " on " << machine.name << " joined a job of " << size << " ranks";
        close_socket(socket);
        return problem.str();
    }
    if (sockets_[r] >= 0 && !is_closed(sockets_[r])) {
        problem << "two processes say that they are rank " << r << ": one on " << machines_[r].name << ", one on " << machine.name;
        close_socket(socket);
        return problem.str();
    }
    close_socket(sockets_[r]);
    sockets_[r] = socket;
    machines_[r] = machine;
    return "";
}

/// Tells every rank that arrived its local rank, or why the job cannot start; in the latter case Exit::rank.
void Star::give_verdict(const std::string& problem) {
    for (int r = 0; r < size; r++) {
        Verdict verdict{};
        copy_text(verdict.problem, sizeof verdict.problem, problem);
        for (int other = 0; other < size; other++) {
            if (machines_[other].id != machines_[r].id) continue;
            verdict.local_size++;
            verdict.local_rank += other < r;
        }
        if (r == 0) local_rank = verdict.local_rank, local_size = verdict.local_size;
        else if (sockets_[r] >= 0) send_all(sockets_[r], &verdict, sizeof verdict);   // a rank that has died is noticed later
    }
    if (!problem.empty()) fail(Exit::rank, problem);
}

void Star::connect_to_first(const RendezvousPoint& where, int seconds) {
    const Deadline deadline(seconds);
    std::string problem = "no time";
    while (sockets_[0] < 0 && !deadline.over()) {
        problem = where.file.empty() ? try_address(where.host, where.port, 0) : try_addresses_in(where.file);
        if (sockets_[0] < 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (sockets_[0] < 0)
        fail(Exit::rank, "rank ", rank, " of ", size, " found no rank 0 at ", where.text(), " within ", seconds, " s (", problem,
             ")");

    Verdict verdict;
    const Deadline patience(seconds + ANSWER_SECONDS);   // rank 0 started first, so its deadline is earlier
    if (!receive_all(sockets_[0], &verdict, sizeof verdict, &patience))
        fail(Exit::rank, "rank 0 at ", where.text(), " left before all ranks had joined; its own message says why");
    verdict.problem[sizeof verdict.problem - 1] = 0;
    if (verdict.problem[0]) fail(Exit::rank, verdict.problem);
    local_rank = verdict.local_rank, local_size = verdict.local_size;
}

/// Connects and says hello. "" if rank 0 of this job answered, else the problem.
std::string Star::try_address(const std::string& host, int port, uint64_t token) {
    std::string problem;
    const int socket = connect_to(host, port, Deadline(STRANGER_SECONDS), problem);
    if (socket < 0) return problem;
    Hello hello{};
    std::memcpy(hello.magic, MAGIC, sizeof MAGIC);
    hello.token = token, hello.rank = rank, hello.size = size;
    copy_text(hello.machine, sizeof hello.machine, machine_name());
    copy_text(hello.machine_id, sizeof hello.machine_id, machine_id());
    char answer[sizeof MAGIC];
    const Deadline patience(ANSWER_SECONDS);
    if (send_all(socket, &hello, sizeof hello) && receive_all(socket, answer, sizeof answer, &patience) &&
        std::memcmp(answer, MAGIC, sizeof MAGIC) == 0) {
        sockets_[0] = socket;
        return "";
    }
    close_socket(socket);
    return "what answers there is not rank 0 of this job";
}

std::string Star::try_addresses_in(const std::string& file) {
    std::ifstream in(file);
    std::string machine, address, problem = "the file is incomplete";
    int port;
    uint64_t token;
    if (!(in >> machine >> port >> token)) return "there is no such file";
    if (machine == machine_id()) problem = try_address("127.0.0.1", port, token);   // needs no network
    while (sockets_[0] < 0 && in >> address) problem = try_address(address, port, token);
    return problem;
}

// ----------------------------------------------------------------------------------------------------------------- collectives

std::string Star::who(int r) const {
    return "rank " + std::to_string(r) + (machines_[r].name.empty() ? "" : " on " + machines_[r].name);
}

void Star::send(int to, const void* data, size_t bytes) {
    if (!send_all(sockets_[to], data, bytes)) fail(Exit::rank, who(to), " has left the job: it died, or its own message says why");
}
void Star::receive(int from, void* data, size_t bytes) {
    if (!receive_all(sockets_[from], data, bytes)) fail(Exit::rank, who(from), " has left the job: it died, or its own message says why");
}

/// Rank 0 adds the others' values to its own in rank order and sends the result to all.
template <class X>
void Star::sum_in_pieces(X* x, size_t n) {
    const size_t most = PIECE / sizeof(X);
    std::vector<X> others(rank == 0 ? std::min(n, most) : 0);
    for (size_t at = 0; at < n && size > 1; at += most) {
        const size_t count = std::min(most, n - at), bytes = count * sizeof(X);
        if (rank != 0) {
            send(0, x + at, bytes);
            receive(0, x + at, bytes);
            continue;
        }
        for (int r = 1; r < size; r++) {
            receive(r, others.data(), bytes);
            for (size_t i = 0; i < count; i++) x[at + i] += others[i];
        }
        for (int r = 1; r < size; r++) send(r, x + at, bytes);
    }
}

/// Rank 0 sums one part after the other, in rank order, and sends each to its owner, which waits for it before sending the next.
void Star::reduce_scatter(float* x, size_t n) {
    const size_t most = PIECE / sizeof(float);
    std::vector<float> total(rank == 0 ? std::min(n, most) : 0), others(total.size());
    for (int owner = 0; owner < size; owner++)
        for (size_t at = 0; at < n; at += most) {
            float* const part = x + n * owner + at;
            const size_t count = std::min(most, n - at), bytes = count * sizeof(float);
            if (rank != 0) send(0, part, bytes);
            if (rank != 0 && rank == owner) receive(0, part, bytes);
            if (rank != 0) continue;
            std::copy_n(part, count, total.data());
            for (int r = 1; r < size; r++) {
                receive(r, others.data(), bytes);
                for (size_t i = 0; i < count; i++) total[i] += others[i];
            }
            if (owner == 0) std::copy_n(total.data(), count, part);
            else send(owner, total.data(), bytes);
        }
}

void Star::all_gather(void* x, size_t bytes) {
    for (int r = 0; r < size; r++) broadcast(static_cast<std::byte*>(x) + bytes * r, bytes, r);
}

void Star::broadcast(void* x, size_t bytes, int from) {
    if (from != 0) to_first(x, bytes, from);
    if (rank == 0) {
        for (int r = 1; r < size; r++)
            if (r != from) send(r, x, bytes);
    } else if (rank != from) {
        receive(0, x, bytes);
    }
}

void Star::to_first(void* x, size_t bytes, int from) {
    if (rank == from) send(0, x, bytes);
    if (rank == 0) receive(from, x, bytes);
}

void Star::leave() {
    try {
        double goodbye = 0;
        sum(&goodbye, 1);
    } catch (const Error&) {   // this rank is done, whatever happened to the others
    }
}

std::string Star::lost() const {
    for (int r = 0; r < size; r++)
        if (sockets_[r] >= 0 && is_closed(sockets_[r])) return who(r) + " has left the job";
    return "";
}
