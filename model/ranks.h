// The processes of one training job. Under mpirun (or srun) every rank trains on its own rows and sums are taken over all of them;
// started alone the program is rank 0 of 1 and needs no MPI. Arrays here are in the host's
// memory; collectives.cuh is for those in the memory of the device that computes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

/// "train_asga", or "train_asga [rank 2]" under a launcher: how this process calls itself in messages.
std::string process_name(const std::string& program);

class Ranks {
public:
    /// Joins the job if a launcher started this process. From the first at() on, a rank that makes no further call of it for
    /// `watchdog_seconds` says where it stood and exits with Exit::rank, which makes the launcher end the others: a dead or
    /// stopped rank never hangs a job. One rank alone has no watchdog.
    explicit Ranks(int watchdog_seconds);

    /// Leaves the job. During an exception it does not wait for the others: the launcher ends them with this process.
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return local_rank_; }   // among those on this machine
    int local_size() const { return local_size_; }   // ranks on this machine
    bool launched() const { return joined_; }        // by mpirun or the like
    bool first() const { return rank_ == 0; }

    /// A sign of life: what this rank is about to do, for the watchdog's message. `doing` must be a string literal.
    void at(const char* doing, int64_t step);

    /// In place, x (n) = sum of x over the ranks. Every rank must call it; all get the same bits.
    void sum(float* x, size_t n);
    double sum(double x);

    /// Whether any rank says yes.
    bool any(bool yes) { return sum(yes ? 1.0 : 0.0) > 0; }

    /// whole (n), on rank 0 only, from each rank's shard (n of the list, this rank's part of it at `mine`).
    void gather_shards(const float* mine, float* whole, size_t n);

    /// Completes x, n elements of `size` bytes, on every rank from each rank's own shard (shard_begin() in tensors.h).
    void all_gather(void* x, size_t n, size_t size);

    /// Rank 0's `bytes` bytes at x on every rank.
    void broadcast(void* x, size_t bytes);

    void barrier();

private:
    void watch(int seconds);

    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
    bool joined_ = false;
    std::atomic<const char*> doing_{"starting"};
    std::atomic<int64_t> step_{0};
    std::atomic<int64_t> beats_{0};
    std::atomic<bool> over_{false};
    std::thread watchdog_;
};
