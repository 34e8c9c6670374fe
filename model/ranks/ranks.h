// The processes of one training job. Under mpirun (or srun), torchrun and the like every rank trains on its own rows and sums are
// taken over all of them; started alone the program is rank 0 of 1 and needs neither. Arrays here are in the host's memory;
// collectives.cuh is for those in the memory of the device that computes.
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

/// "train_asga", or "train_asga [rank 2]" under a launcher: how this process calls itself in messages.
std::string process_name(const std::string& program);

class Ranks {
public:
    /// Joins the job if a launcher started this process. `from` says where this rank learns of the others:
    ///   auto              mpi if an MPI launcher started it, else tcp if WORLD_SIZE is set, else it is alone
    ///   mpi               MPI, whatever started it
    ///   tcp               rank 0 listens on MASTER_ADDR:MASTER_PORT, as torchrun sets them
    ///   tcp:HOST:PORT     rank 0 listens there
    ///   file:PATH         rank 0 writes its address into this file; all ranks can read it
    /// Without MPI a rank's number and theirs are RANK and WORLD_SIZE, or what Slurm or an MPI launcher calls them. Ranks that have
    /// not come within `watchdog_seconds` (300 when that is 0) are named in an Exit::rank on all others.
    ///
    /// From the first at() on, a rank that makes no further call of it for `watchdog_seconds` says where it stood and exits with
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

    /// A sign of life: what this rank is about to do, for the watchdog's message. `doing` must be a string literal.
    void at(const char* doing, int64_t step);
    void at(const char* doing) { at(doing, step_); }

    /// Lets the watchdog ask ten times a second for a problem of which the main thread may not hear: it may be waiting for a GPU
    /// that waits for a dead rank. A sentence that stays for three seconds ends this rank. An empty function ends the asking.
    void watch_for(std::function<std::string()> problem);

    /// In place, x (n) = sum of x over the ranks. Every rank must call it; all get the same bits.
    void sum(float* x, size_t n);
    double sum(double x);

    /// Whether any rank says yes.
    bool any(bool yes) { return sum(yes ? 1.0 : 0.0) > 0; }

    /// whole (n), on rank 0 only, from each rank's shard (n of the list, this rank's part of it at `mine`).
    void gather_shards(const float* mine, float* whole, size_t n);

    /// Completes x, n elements of `size` bytes, on every rank from each rank's own shard (shard_begin() in tensors.h).
    void all_gather(void* x, size_t n, size_t size);

    /// `bytes` bytes at x of rank `from` on every rank.
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
