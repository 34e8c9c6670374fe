// How the hosts of a job talk to each other: MPI (ranks.cpp) or, where there is none, TCP connections between rank 0 and every
// other rank. Such a star is enough for what hosts exchange: a number or two per step, the moments of a checkpoint, NCCL's id. Sums
// of gradients between GPUs do not come this way (collectives.cuh).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Every rank makes the same calls in the same order; all get the same bits.
class Network {
public:
    virtual ~Network() = default;
    virtual const char* name() const = 0;

    /// In place, x (n) = sum of x over the ranks.
    virtual void sum(float* x, size_t n) = 0;
    virtual void sum(double* x, size_t n) = 0;

    /// x of rank `from` on every rank.
    virtual void broadcast(void* x, size_t bytes, int from) = 0;

    /// x of rank `from`, not 0, at x of rank 0. Only these two call it.
    virtual void to_first(void* x, size_t bytes, int from) = 0;

    /// Waits until all ranks have come here; then none minds that others end.
    virtual void leave() = 0;

    /// Which rank has ended without leaving, as a sentence, else "". Another thread may call it at any time.
    virtual std::string lost() const { return ""; }

    int rank = 0, size = 1, local_rank = 0, local_size = 1;   // local: among those on this machine
};

/// Where the ranks find rank 0: at host:port, or at the address that it writes into a file which all of them can read.
struct MeetingPoint {
    std::string file;
    std::string host;
    int port = 0;
    std::string text() const { return file.empty() ? host + ":" + std::to_string(port) : file; }
};

/// From "file:PATH" or "tcp:HOST:PORT"; Exit::usage when it is neither.
MeetingPoint parse_meeting_point(const std::string& text);

class Star : public Network {
public:
    /// Meets the other ranks. After `seconds`: Exit::rank on every rank that came, with the numbers of those that did not.
    Star(const MeetingPoint& where, int rank, int size, int seconds);
    ~Star() override;
    Star(const Star&) = delete;
    Star& operator=(const Star&) = delete;

    const char* name() const override { return "TCP"; }
    void sum(float* x, size_t n) override { sum_in_pieces(x, n); }
    void sum(double* x, size_t n) override { sum_in_pieces(x, n); }
    void broadcast(void* x, size_t bytes, int from) override;
    void to_first(void* x, size_t bytes, int from) override;
    void leave() override;
    std::string lost() const override;

private:
    void wait_for_others(const MeetingPoint& where, int seconds);
    std::string admit(int socket, uint64_t token);
    void give_verdict(const std::string& problem);
    void find_first(const MeetingPoint& where, int seconds);
    std::string knock(const std::string& host, int port, uint64_t token);
    std::string knock_as_told_by(const std::string& file);
    std::vector<int> missing() const;
    std::string who(int rank) const;

    template <class X>
    void sum_in_pieces(X* x, size_t n);
    void send(int to, const void* data, size_t bytes);
    void receive(int from, void* data, size_t bytes);

    struct Machine {
        std::string name, id;
    };
    std::vector<int> sockets_;        // (size) on rank 0 one to every other rank, elsewhere one to rank 0; -1: none
    std::vector<Machine> machines_;   // (size) on rank 0: where the ranks run
};
