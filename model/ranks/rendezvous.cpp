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

#include "model/base/error.h"
#include "model/ranks/sockets.h"

namespace {

/// What a rank says first. Rank 0 answers `magic` at once and a Verdict when all have come or time is up.
struct Hello {
    char magic[8];
    uint64_t token;   // of the job, from its file; 0 where ranks meet at a known address
    int32_t rank, size;
    char machine[64], machine_id[64];
};
struct Verdict {
    int32_t local_rank, local_size;
    char problem[400];   // "" when all have come
};
constexpr char MAGIC[8] = "ranks 1";
constexpr int STRANGER_SECONDS = 2;   // rank 0 waits no longer for the first words on a connection: port scanners say nothing
constexpr int ANSWER_SECONDS = 20;    // for rank 0's answer to them
constexpr size_t PIECE = size_t(1) << 20;   // bytes of a sum at a time: rank 0 needs no more memory than that

void copy_text(char* to, size_t room, const std::string& text) { std::snprintf(to, room, "%s", text.c_str()); }

/// "1, 3, 4"; of many only the first.
std::string list_of(const std::vector<int>& ranks) {
    const size_t shown = ranks.size() <= 12 ? ranks.size() : 10;
    std::string text;
    for (size_t i = 0; i < shown; i++) text += (i ? ", " : "") + std::to_string(ranks[i]);
    return shown == ranks.size() ? text : text + " and " + std::to_string(ranks.size() - shown) + " more";
}

/// Written under another name first, so that nobody reads half of it.
void write_address(const std::string& file, int port, uint64_t token) {
    const std::string unfinished = file + ".new";
    std::ofstream out(unfinished, std::ios::trunc);
    out << machine_id() << ' ' << port << ' ' << token;
    for (const std::string& address : own_addresses()) out << ' ' << address;
    out << '\n';
    out.close();
    if (!out || std::rename(unfinished.c_str(), file.c_str()) != 0)
        fail(Exit::usage, file, ": rank 0 cannot write its address there (", last_os_error(),
             "); --ranks-from file:PATH needs a path in a folder that every rank can read and rank 0 can write");
}

uint64_t random_token() {
    std::random_device random;
    return uint64_t(random()) << 32 | random();
}

}   // namespace

MeetingPoint parse_meeting_point(const std::string& text) {
    MeetingPoint where;
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
    fail(Exit::usage, text, " is not a place where ranks can meet; --ranks-from takes auto, mpi, tcp, tcp:HOST:PORT or file:PATH");
}

// ----------------------------------------------------------------------------------------------------------------- the meeting

Star::Star(const MeetingPoint& where, int rank_, int size_, int seconds) : sockets_(size_, -1), machines_(size_) {
    rank = rank_, size = size_;
    if (size < 1 || rank < 0 || rank >= size)
        fail(Exit::usage, "rank ", rank, " is not one of ", size, " ranks, which count from 0");
    if (size == 1) return;
    try {
        rank == 0 ? wait_for_others(where, seconds) : find_first(where, seconds);
    } catch (...) {
        for (int s : sockets_) close_socket(s);   // there is no destructor for what was never constructed
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

void Star::wait_for_others(const MeetingPoint& where, int seconds) {
    const bool by_file = !where.file.empty();
    const uint64_t token = by_file ? random_token() : 0;
    machines_[0] = {machine_name(), machine_id()};
    const Listener door(where.port);
    if (by_file) write_address(where.file, door.port(), token);
    const Deadline deadline(seconds);
    std::string problem;
    while (problem.empty() && !missing().empty() && !deadline.over()) {
        const int visitor = door.accept(deadline);
        if (visitor >= 0) problem = admit(visitor, token);
    }
    if (by_file) std::remove(where.file.c_str());
    const std::vector<int> absent = missing();
    if (problem.empty() && !absent.empty()) {
        std::ostringstream text;
        text << (absent.size() == 1 ? "rank " : "ranks ") << list_of(absent) << " of " << size << " never came to " << where.text()
             << " within " << seconds << " s";
        problem = text.str();
    }
    give_verdict(problem);
}

/// Strangers are sent away without a word. A rank that cannot be right is a problem for the whole job, returned as a sentence.
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
        problem << "rank " << r << " of " << hello.size << " on " << machine.name << " came to a job of " << size << " ranks";
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

/// Tells every rank that came its place on its machine, or what keeps the job from starting.
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
        else if (sockets_[r] >= 0) send_all(sockets_[r], &verdict, sizeof verdict);   // one that has gone is missed soon enough
    }
    if (!problem.empty()) fail(Exit::rank, problem);
}

void Star::find_first(const MeetingPoint& where, int seconds) {
    const Deadline deadline(seconds);
    std::string problem = "no time";
    while (sockets_[0] < 0 && !deadline.over()) {
        problem = where.file.empty() ? knock(where.host, where.port, 0) : knock_as_told_by(where.file);
        if (sockets_[0] < 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (sockets_[0] < 0)
        fail(Exit::rank, "rank ", rank, " of ", size, " found no rank 0 at ", where.text(), " within ", seconds, " s (", problem,
             ")");

    Verdict verdict;
    const Deadline patience(seconds + ANSWER_SECONDS);   // rank 0 was there before this rank: its own time is up earlier
    if (!receive_all(sockets_[0], &verdict, sizeof verdict, &patience))
        fail(Exit::rank, "rank 0 at ", where.text(), " left before all ranks had come; its own message says why");
    verdict.problem[sizeof verdict.problem - 1] = 0;
    if (verdict.problem[0]) fail(Exit::rank, verdict.problem);
    local_rank = verdict.local_rank, local_size = verdict.local_size;
}

/// Introduces this rank to whoever listens there. "" when that was rank 0 of this job, else why not.
std::string Star::knock(const std::string& host, int port, uint64_t token) {
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

std::string Star::knock_as_told_by(const std::string& file) {
    std::ifstream in(file);
    std::string machine, address, problem = "the file is not whole";
    int port;
    uint64_t token;
    if (!(in >> machine >> port >> token)) return "there is no such file";
    if (machine == machine_id()) problem = knock("127.0.0.1", port, token);   // needs no network
    while (sockets_[0] < 0 && in >> address) problem = knock(address, port, token);
    return problem;
}

// ---------------------------------------------------------------------------------------------------------------- the exchange

std::string Star::who(int r) const {
    return "rank " + std::to_string(r) + (machines_[r].name.empty() ? "" : " on " + machines_[r].name);
}

void Star::send(int to, const void* data, size_t bytes) {
    if (!send_all(sockets_[to], data, bytes)) fail(Exit::rank, who(to), " has left the job: it died, or its own message says why");
}
void Star::receive(int from, void* data, size_t bytes) {
    if (!receive_all(sockets_[from], data, bytes)) fail(Exit::rank, who(from), " has left the job: it died, or its own message says why");
}

/// Rank 0 adds the others' numbers to its own in the order of the ranks and sends the result to all.
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
    } catch (const Error&) {   // this rank's work is done, whatever became of the others
    }
}

std::string Star::lost() const {
    for (int r = 0; r < size; r++)
        if (sockets_[r] >= 0 && is_closed(sockets_[r])) return who(r) + " has left the job";
    return "";
}
