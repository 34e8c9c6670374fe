// The processes of one training job. Under mpirun (or srun), torchrun and the like, each rank trains on its own rows and gradients
// are summed over all; started alone, the program is rank 0 of 1 and needs none of them. Arrays here are in host memory;
// collectives.cuh handles device memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

class Network;
class Shards;

/// "train_asga", or "train_asga [rank 2]" under a launcher: this process's name in messages.
std::string process_name(const std::string& program);

class Ranks {
public:
    /// Joins the job if a launcher started this process. `from` selects how the ranks find each other:
    ///   auto              mpi if started by an MPI launcher, else tcp if WORLD_SIZE is set, else alone
    ///   mpi               MPI, whatever started the process
    ///   tcp               rank 0 listens on MASTER_ADDR:MASTER_PORT, as set by torchrun
    ///   tcp:HOST:PORT     rank 0 listens there
    ///   file:PATH         rank 0 writes its address to this file, which all ranks can read
    /// Without MPI, rank and size are RANK and WORLD_SIZE, or the variables of Slurm or an MPI launcher. If ranks have not arrived
    /// within `watchdog_seconds` (300 if that is 0), all others fail with Exit::rank and name them.
    ///
    /// From the first at() on, a rank that does not call it again within `watchdog_seconds` reports where it was and exits with
    /// Exit::rank, which makes the launcher end the others: a dead or stopped rank never hangs a job. 0: no limit.
    explicit Ranks(int watchdog_seconds, const std::string& from = "auto");

    /// Leaves the job. During an exception it does not wait for the others: the launcher ends them with this process.
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return local_rank_; }   // among those on this machine
    int local_size() const { return local_size_; }   // ranks on this machine
    bool launched() const { return network_ != nullptr; }   // by mpirun or the like
    bool first() const { return rank_ == 0; }
    const char* network() const;   // "MPI", "TCP" or "none"

    /// Precondition: `doing` is a string literal. Heartbeat: what this rank is about to do, for the watchdog's message.
    void at(const char* doing, int64_t step);
    void at(const char* doing) { at(doing, step_); }

    /// Makes the watchdog poll `problem` ten times a second, since the main thread may be blocked on a GPU that waits for a dead
    /// rank. A problem that persists for three seconds ends this rank. An empty function stops the polling.
    void watch_for(std::function<std::string()> problem);

    /// Every rank must call it; all get the same bits. In place, x (n) = its sum over the ranks.
    void sum(float* x, size_t n);
    double sum(double x);

    /// Whether any rank says yes.
    bool any(bool yes) { return sum(yes ? 1.0 : 0.0) > 0; }

    /// This rank's part (n) of x (size x n) = its sum over the ranks; other parts are unchanged.
    void reduce_scatter(float* x, size_t n);

    /// x (size x bytes) on every rank, from each rank's own part.
    void all_gather(void* x, size_t bytes);

    /// `whole` (shards.size()), on rank 0 only, from each rank's `mine` (shards.owned()).
    void gather_shards(const float* mine, float* whole, const Shards& shards);

    /// Copies `bytes` bytes at x from rank `from` to every rank.
    void broadcast(void* x, size_t bytes, int from = 0);

    void barrier() { sum(0.0); }

private:
    void watch(int seconds);
    std::string problem();
    [[noreturn]] void give_up(const std::string& why);

    std::unique_ptr<Network> network_;
    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
    std::atomic<const char*> doing_{"starting"};
    std::atomic<int64_t> step_{0};
    std::atomic<int64_t> beats_{0};
    std::atomic<bool> over_{false};
    std::mutex problem_mutex_;
    std::function<std::string()> problem_;
    std::thread watchdog_;
};
