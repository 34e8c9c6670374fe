#include "model/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include <unistd.h>

#include "model/error.h"
#include "model/tensors.h"

#ifdef USE_MPI
#include <mpi.h>
#endif

/// The first of the launchers' variables that is set, or null: Open MPI, MPICH and Intel MPI (Hydra), Slurm with PMI.
static const char* from_launcher(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const char* value = std::getenv(name)) return value;
    return nullptr;
}
static const char* launched_rank() { return from_launcher({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}); }

std::string process_name(const std::string& program) {
    const char* rank = launched_rank();
    return rank ? program + " [rank " + rank + "]" : program;
}

#ifdef USE_MPI
static void check(int status, const char* what) {
    if (status != MPI_SUCCESS) fail(Exit::rank, "MPI failed in ", what, " (", status, "): another rank has probably died");
}

Ranks::Ranks(int watchdog_seconds) {
    if (launched_rank()) {
        int level;
        check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init");
        joined_ = true;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &size_);
        MPI_Comm node;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_rank(node, &local_rank_);
        MPI_Comm_size(node, &local_size_);
        MPI_Comm_free(&node);
        const char* expected = from_launcher({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
        if (expected && std::atoi(expected) != size_)
            fail(Exit::usage, "the launcher started ", expected, " ranks, but MPI knows of ", size_,
                 ": mpirun belongs to another MPI than the one this program was built with");
    }
    if (watchdog_seconds > 0 && size_ > 1) watchdog_ = std::thread(&Ranks::watch, this, watchdog_seconds);
}

/// MPI counts are ints: long buffers go in pieces.
template <class Collective>
static void in_pieces(size_t begin, size_t end, Collective collective) {
    const size_t most = size_t(1) << 28;
    for (size_t at = begin; at < end; at += most) collective(at, int(std::min(most, end - at)));
}

void Ranks::sum(float* x, size_t n) {
    if (size_ == 1) return;
    in_pieces(0, n, [&](size_t at, int count) {
        check(MPI_Allreduce(MPI_IN_PLACE, x + at, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    });
}

double Ranks::sum(double x) {
    if (size_ > 1) check(MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    return x;
}

void Ranks::gather_shards(const float* mine, float* whole, size_t n) {
    const size_t begin = shard_begin(n, rank_, size_), end = shard_begin(n, rank_ + 1, size_);
    auto send = [&](size_t at, int count) {
        check(MPI_Send(mine + (at - begin), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD), "MPI_Send");
    };
    if (!first()) return in_pieces(begin, end, send);
    std::copy(mine, mine + (end - begin), whole + begin);
    for (int r = 1; r < size_; r++)
        in_pieces(shard_begin(n, r, size_), shard_begin(n, r + 1, size_), [&](size_t at, int count) {
            check(MPI_Recv(whole + at, count, MPI_FLOAT, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
        });
}

void Ranks::all_gather(void* x, size_t n, size_t size) {
    std::byte* bytes = static_cast<std::byte*>(x);
    for (int r = 0; r < size_ && size_ > 1; r++)
        in_pieces(shard_begin(n, r, size_) * size, shard_begin(n, r + 1, size_) * size,
                  [&](size_t at, int count) { check(MPI_Bcast(bytes + at, count, MPI_BYTE, r, MPI_COMM_WORLD), "MPI_Bcast"); });
}

void Ranks::broadcast(void* x, size_t bytes) {
    if (size_ > 1) check(MPI_Bcast(x, int(bytes), MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
}

void Ranks::barrier() {
    if (size_ > 1) check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

static void leave() { MPI_Finalize(); }

/// Runs on a thread of its own and looks ten times a second. A stopped process (SIGSTOP) does not count its own pause: time is
/// counted in looks, not in hours of the day.
void Ranks::watch(int seconds) {
    int64_t seen = -1;
    for (int quiet = 0; !over_; quiet++) {
        if (beats_ != seen || beats_ == 0) seen = beats_, quiet = 0;
        if (quiet > seconds * 10) {
            std::fprintf(
                stderr,
                "rank %d of %d made no progress for %d s; it stood in step %lld, %s. Another rank is stopped, dead or far slower. "
                "--watchdog-seconds sets the limit.\n",
                rank_, size_, seconds, static_cast<long long>(step_), doing_.load());
            _exit(static_cast<int>(Exit::rank));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
}
#else
Ranks::Ranks(int) {
    const char* size = from_launcher({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
    if (size && std::atoi(size) > 1)
        fail(Exit::usage, "started as one of ", size,
             " ranks, but this program was built without MPI: install libopenmpi-dev, then make configure and build again");
}
void Ranks::watch(int) {}
void Ranks::sum(float*, size_t) {}
double Ranks::sum(double x) { return x; }
void Ranks::all_gather(void*, size_t, size_t) {}
void Ranks::broadcast(void*, size_t) {}
void Ranks::gather_shards(const float* mine, float* whole, size_t n) { std::copy(mine, mine + n, whole); }
void Ranks::barrier() {}
static void leave() {}
#endif

Ranks::~Ranks() {
    over_ = true;
    if (watchdog_.joinable()) watchdog_.join();
    if (joined_ && std::uncaught_exceptions() == 0) leave();
}

void Ranks::at(const char* doing, int64_t step) {
    doing_ = doing;
    step_ = step;
    beats_++;
}
