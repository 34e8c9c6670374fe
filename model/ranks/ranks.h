// The processes of one training job. Under mpirun (or srun --mpi=pmix) each rank trains on its own rows and gradients are summed over
// all; started alone, the program is rank 0 of 1 and needs no MPI. Arrays here are in host memory; collectives.cuh handles device memory.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "model/base/error.h"

class Shards;

/// "train_asga", or "train_asga [rank 2]" under a launcher: this process's name in messages.
std::string process_name(const std::string& program);

/// A unique id of this machine: host names repeat if machines are copies of one image.
std::string machine_id();

/// A rank's last heartbeat, in memory shared by the ranks of a machine.
struct SignOfLife {
    int rank;
    std::atomic<int64_t> runs;   // time of its watchdog's last run, in nanoseconds; it runs in every process that is not stopped
    std::atomic<int64_t> at;     // time of its last call of at(), on the same clock of the machine; 0: never
    std::atomic<int64_t> step;
    char doing[64];
};

class Ranks {
public:
    /// Joins the job if an MPI launcher started this process. Exit::usage if a launcher started several ranks that cannot communicate:
    /// the program was built without MPI, or the launcher is torchrun or a plain srun.
    Ranks();

    /// Leaves the job. During an exception it does not wait for the other ranks, which the launcher ends with this process.
    ~Ranks();
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    int local_rank() const { return local_rank_; }   // rank among those on this machine
    int local_size() const { return local_size_; }   // ranks on this machine
    bool launched() const { return launched_; }      // by mpirun or the like
    bool first() const { return rank_ == 0; }

    /// Call once. From the next at() on, a rank that does not call it again within `seconds` reports its place and exits with Exit::rank.
    /// The launcher then ends the others, so a dead or stopped rank never hangs a job. 0: no limit.
    void start_watchdog(int seconds);

    /// Heartbeat; `doing` names the next activity in the watchdog's message. Precondition: `doing` is a string literal. Thread-safe.
    void at(const char* doing, int64_t step);
    void at(const char* doing) { at(doing, step_); }

    /// Makes the watchdog poll `problem` ten times a second, because the main thread may be blocked on a GPU that waits for a dead rank.
    /// A problem that persists for three seconds ends this rank. An empty function stops the polling.
    void watch_for(std::function<std::string()> problem);

    /// Every rank must call it. Rank 0 runs `work`, which may take any time but must call no function of this class except at(). The
    /// others wait; rank 0 sends them a heartbeat every second, so that their watchdogs do not fire. Rank 0's own watchdog allows an hour
    /// between two calls of at(). Rank 0 throws the exception of `work`; the others throw an Error without a sentence.
    void first_does(const char* doing, int64_t step, const std::function<void()>& work);

    /// Every rank must call it. Ends the job with one sentence, printed by rank 0.
    [[noreturn]] void fail_together(Exit code, const std::string& sentence);

    /// Every rank must call it; all get the same bits. x (n) = its sum over the ranks, in place.
    void sum(float* x, size_t n);
    void sum(double* x, size_t n);
    double sum(double x) { return sum(&x, 1), x; }

    bool any(bool yes) { return sum(yes ? 1.0 : 0.0) > 0; }

    /// This rank's part (n) of x (size x n) = its sum over the ranks; other parts are unchanged.
    void reduce_scatter(float* x, size_t n);

    /// All-gather: x (size x bytes) on every rank from each rank's own part.
    void all_gather(void* x, size_t bytes);

    /// Every rank must call it. Returns (size) each rank's `mine`, by rank, on every rank.
    template <class X>
    std::vector<X> gathered(const X& mine) {
        std::vector<X> all(static_cast<size_t>(size_));
        all[static_cast<size_t>(rank_)] = mine;
        all_gather(all.data(), sizeof(X));
        return all;
    }

    /// Gathers `whole` (shards.size()), on rank 0 only, from each rank's `mine` (shards.owned()).
    void gather_shards(const float* mine, float* whole, const Shards& shards);

    /// Copies `bytes` bytes at x from rank `from` to every rank.
    void broadcast(void* x, size_t bytes, int from = 0);

    std::string broadcast(std::string text, int from = 0);

    void barrier() { sum(0.0); }

private:
    void share_signs_of_life();
    void send_signs_until_done(const std::atomic<bool>& done);
    SignOfLife& own_sign() const { return signs_[signs_count_ > 1 ? local_rank_ : 0]; }
    std::string slowest() const;
    void watch(int seconds);
    std::string problem();
    [[noreturn]] void give_up(const std::string& why);

    bool launched_ = false;
    int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
    bool beats_from_threads_ = false;   // whether MPI allows calls from other threads, one at a time
    SignOfLife own_{};
    SignOfLife* signs_ = &own_;         // (local_size) heartbeats of this machine's ranks, by local rank
    int signs_count_ = 1;
    std::atomic<const char*> doing_{"starting"};
    std::atomic<int64_t> step_{0};
    std::atomic<int64_t> beats_{0};
    std::atomic<bool> works_alone_{false};   // in first_does(), on rank 0
    std::atomic<bool> over_{false};
    std::mutex problem_mutex_;
    std::function<std::string()> problem_;
    std::thread watchdog_;
};
