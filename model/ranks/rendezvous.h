// Communication between the hosts of a job: MPI (ranks.cpp) or, without MPI, TCP connections between rank 0 and every other rank. A
// star is enough for what hosts exchange: a value or two per step, the moments of a checkpoint, NCCL's id. Gradients of GPUs do not
// come this way (collectives.cuh) unless ranks share GPUs.
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

    /// In place, x (n) = its sum over the ranks.
    virtual void sum(float* x, size_t n) = 0;
    virtual void sum(double* x, size_t n) = 0;

    /// This rank's part (n) of x (size x n) = its sum over the ranks; other parts are unchanged.
    virtual void reduce_scatter(float* x, size_t n) = 0;

    /// x (size x bytes) on every rank, from each rank's own part.
    virtual void all_gather(void* x, size_t bytes) = 0;

    /// Copies x from rank `from` to every rank.
    virtual void broadcast(void* x, size_t bytes, int from) = 0;

    /// Precondition: from != 0; only ranks `from` and 0 call it. Copies x from rank `from` to rank 0.
    virtual void to_first(void* x, size_t bytes, int from) = 0;

    /// Barrier before leaving the job: afterwards ranks may end without being reported by lost().
    virtual void leave() = 0;

    /// A sentence naming a rank that has ended without leave(), else "". Thread-safe.
    virtual std::string lost() const { return ""; }

    int rank = 0, size = 1, local_rank = 0, local_size = 1;   // local: on this machine
};

/// Where the ranks find rank 0: at host:port, or at the address that it writes to a file that all can read.
struct RendezvousPoint {
    std::string file;
    std::string host;
    int port = 0;
    std::string text() const { return file.empty() ? host + ":" + std::to_string(port) : file; }
};

/// Parses "file:PATH" or "tcp:HOST:PORT"; Exit::usage for anything else.
RendezvousPoint parse_rendezvous_point(const std::string& text);

/// "rank 3", "ranks 1, 3, 4"; long lists are shortened.
std::string ranks_named(const std::vector<int>& ranks);

class Star : public Network {
public:
    /// Connects to the other ranks. Exit::rank on every rank that arrived, naming those that did not, after `seconds`.
    Star(const RendezvousPoint& where, int rank, int size, int seconds);
    ~Star() override;
    Star(const Star&) = delete;
    Star& operator=(const Star&) = delete;

    const char* name() const override { return "TCP"; }
    void sum(float* x, size_t n) override { sum_in_pieces(x, n); }
    void sum(double* x, size_t n) override { sum_in_pieces(x, n); }
    void reduce_scatter(float* x, size_t n) override;
    void all_gather(void* x, size_t bytes) override;
    void broadcast(void* x, size_t bytes, int from) override;
    void to_first(void* x, size_t bytes, int from) override;
    void leave() override;
    std::string lost() const override;

private:
    void wait_for_others(const RendezvousPoint& where, int seconds);
    std::string admit(int socket, uint64_t token);
    void give_verdict(const std::string& problem);
    void connect_to_first(const RendezvousPoint& where, int seconds);
    std::string try_address(const std::string& host, int port, uint64_t token);
    std::string try_addresses_in(const std::string& file);
    std::vector<int> missing() const;
    std::string who(int rank) const;

    template <class X>
    void sum_in_pieces(X* x, size_t n);
    void send(int to, const void* data, size_t bytes);
    void receive(int from, void* data, size_t bytes);

    struct Machine {
        std::string name, id;
    };
    std::vector<int> sockets_;        // (size) on rank 0: to every other rank; elsewhere: only to rank 0; -1: none
    std::vector<Machine> machines_;   // (size) on rank 0: each rank's machine
};
