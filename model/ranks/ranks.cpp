#include "model/ranks/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <initializer_list>

#include <unistd.h>

#include "model/base/process.h"
#include "model/tensors.h"

#ifdef USE_MPI
#include <mpi.h>
#endif

// -------------------------------------------------------------------------------------------------------- launcher environment

static const char* from_environment(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const char* value = std::getenv(name)) return value;
    return nullptr;
}

/// Open MPI, MPICH and Intel MPI (Hydra), Slurm with PMI.
static const char* mpi_rank() { return from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}); }
static const char* mpi_size() { return from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

static int count_in(const char* variable) {
    const char* const value = std::getenv(variable);
    return value ? std::atoi(value) : 0;
}

std::string process_name(const std::string& program) {
    const char* rank = mpi_rank();
    return rank ? program + " [rank " + rank + "]" : program;
}

std::string machine_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    if (!boot.empty()) return boot;
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

/// Precondition: no MPI launcher started this process. Refuses several independent processes, which would overwrite each other's files.
static void require_alone() {
    const int torch = std::getenv("RANK") ? count_in("WORLD_SIZE") : 0;
    const int slurm = std::getenv("SLURM_STEP_ID") && std::getenv("SLURM_PROCID") ? count_in("SLURM_STEP_NUM_TASKS") : 0;
    if (torch > 1)
        fail(Exit::usage, "WORLD_SIZE is ", torch, ", but ranks communicate through MPI, not torchrun; start them with mpirun -np ", torch);
    if (slurm > 1)
        fail(Exit::usage, "srun started ", slurm, " tasks without MPI; start them with srun --mpi=pmix, or with mpirun -np ", slurm);
}

// ------------------------------------------------------------------------------------------------------------------------ MPI

#ifdef USE_MPI
static void check(int status, const char* what) {
    if (status != MPI_SUCCESS)
        fail(Exit::rank, "MPI failed in ", what, " (", status,
             "): lost connection to another rank (it probably crashed or exited; see its output)");
}

/// Splits long buffers, as MPI counts are ints.
template <class X, class Collective>
static void in_pieces(X* x, size_t n, Collective collective) {
    const size_t most = size_t(1) << 28;
    for (size_t at = 0; at < n; at += most) collective(x + at, int(std::min(most, n - at)));
}

template <class X>
static void sum_over_ranks(X* x, size_t n, MPI_Datatype type) {
    in_pieces(x, n, [=](X* at, int count) {
        check(MPI_Allreduce(MPI_IN_PLACE, at, count, type, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    });
}

void Ranks::sum(float* x, size_t n) {
    if (size_ > 1) sum_over_ranks(x, n, MPI_FLOAT);
}

void Ranks::sum(double* x, size_t n) {
    if (size_ > 1) sum_over_ranks(x, n, MPI_DOUBLE);
}

/// Copies a piece of every part at a time to a temporary buffer: MPI counts are ints, and MPI's own buffers are as large as what it
/// is given.
void Ranks::reduce_scatter(float* x, size_t n) {
    if (size_ == 1) return;
    const size_t most = std::max<size_t>(1, (size_t(1) << 20) / size_), longest = std::min(n, most);
    std::vector<float> pieces(longest * size_);
    for (size_t at = 0; at < n; at += most) {
        const size_t count = std::min(most, n - at);
        for (int r = 0; r < size_; r++) std::copy_n(x + n * r + at, count, &pieces[count * r]);
        check(MPI_Reduce_scatter_block(pieces.data(), x + n * rank_ + at, int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
              "MPI_Reduce_scatter_block");
    }
}

void Ranks::all_gather(void* x, size_t bytes) {
    if (size_ == 1) return;
    in_pieces(static_cast<std::byte*>(x), bytes, [&](std::byte* at, int count) {
        MPI_Datatype piece, part;   // `count` bytes with the stride of a part
        check(MPI_Type_contiguous(count, MPI_BYTE, &piece), "MPI_Type_contiguous");
        check(MPI_Type_create_resized(piece, 0, MPI_Aint(bytes), &part), "MPI_Type_create_resized");
        check(MPI_Type_commit(&part), "MPI_Type_commit");
        check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, at, 1, part, MPI_COMM_WORLD), "MPI_Allgather");
        MPI_Type_free(&part), MPI_Type_free(&piece);
    });
}

void Ranks::broadcast(void* x, size_t bytes, int from) {
    if (size_ == 1) return;
    in_pieces(static_cast<std::byte*>(x), bytes, [&](std::byte* at, int count) {
        check(MPI_Bcast(at, count, MPI_BYTE, from, MPI_COMM_WORLD), "MPI_Bcast");
    });
}

void Ranks::gather_shards(const float* mine, float* whole, const Shards& shards) {
    for (size_t k = 0; k < shards.buckets(); k++) {
        const int n = int(shards.part_size(k));
        float* const bucket = first() ? whole + shards.bucket(k).begin : nullptr;
        check(MPI_Gather(mine + shards.held(k), n, MPI_FLOAT, bucket, n, MPI_FLOAT, 0, MPI_COMM_WORLD), "MPI_Gather");
    }
}

Ranks::Ranks() {
    if (!mpi_rank()) {
        require_alone();
        return;
    }
    int level;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init");
    launched_ = true, beats_from_threads_ = level >= MPI_THREAD_SERIALIZED;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    const char* expected = mpi_size();
    if (expected && std::atoi(expected) != size_)
        fail(Exit::usage, "the launcher started ", expected, " ranks, but MPI has ", size_,
             ": mpirun is of another MPI; use that of the MPI this program was built with");
    share_signs_of_life();
}

/// Where memory cannot be shared, this rank sees only itself.
void Ranks::share_signs_of_life() {
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank_);
    MPI_Comm_size(machine, &local_size_);
    MPI_Comm_set_errhandler(machine, MPI_ERRORS_RETURN);
    MPI_Win window;
    SignOfLife* mine = nullptr;
    const int status = MPI_Win_allocate_shared(sizeof(SignOfLife), 1, MPI_INFO_NULL, machine, &mine, &window);
    if (status == MPI_SUCCESS) {
        MPI_Aint bytes;
        int unit;
        MPI_Win_shared_query(window, 0, &bytes, &unit, &signs_);   // the parts of all ranks are contiguous
        signs_count_ = local_size_;
        new (mine) SignOfLife{rank_, 0, 0, 0, ""};
        MPI_Barrier(machine);
    }
    MPI_Comm_free(&machine);   // the window keeps what it needs until MPI_Finalize()
}

Ranks::~Ranks() {
    over_ = true;
    if (watchdog_.joinable()) watchdog_.join();
    if (launched_ && std::uncaught_exceptions() == 0) MPI_Finalize();
}
#else
void Ranks::sum(float*, size_t) {}
void Ranks::sum(double*, size_t) {}
void Ranks::reduce_scatter(float*, size_t) {}
void Ranks::all_gather(void*, size_t) {}
void Ranks::broadcast(void*, size_t, int) {}
void Ranks::gather_shards(const float*, float*, const Shards&) {}

/// A launched job of one rank needs no MPI.
Ranks::Ranks() {
    const char* size = mpi_size();
    if (size && std::atoi(size) > 1)
        fail(Exit::usage, "started as one of ", size,
             " ranks, but this program was built without MPI: install libopenmpi-dev and openmpi-bin, then build again");
    if (!mpi_rank()) require_alone();
    launched_ = mpi_rank() != nullptr;
}
Ranks::~Ranks() = default;
#endif

// ----------------------------------------------------------------------------------------------------------------- collectives

std::string Ranks::broadcast(std::string text, int from) {
    uint64_t length = text.size();
    broadcast(&length, sizeof length, from);
    text.resize(length);
    broadcast(text.data(), length, from);
    return text;
}

void Ranks::fail_together(Exit code, const std::string& sentence) {
    if (first()) throw Error(code, sentence);
    std::this_thread::sleep_for(std::chrono::seconds(2));   // the launcher ends this rank once rank 0 has printed the sentence and exited
    throw Error(code, "");
}

// ------------------------------------------------------------------------------------------------------- work of rank 0 alone

namespace {
/// Rank 0's message to the waiting ranks: this, or the Exit with which its work has ended.
constexpr int32_t WORKING = -1;
constexpr auto BETWEEN_SIGNS = std::chrono::milliseconds(1000), POLL = std::chrono::milliseconds(10);
constexpr int ALONE_SECONDS = 3600;   // rank 0's limit within first_does(): one call of fsync() may flush a whole checkpoint
}   // namespace

void Ranks::send_signs_until_done(const std::atomic<bool>& done) {
    auto sent = std::chrono::steady_clock::now();
    while (!done) {
        std::this_thread::sleep_for(POLL);
        if (std::chrono::steady_clock::now() - sent < BETWEEN_SIGNS) continue;
        int32_t sign = WORKING;
        broadcast(&sign, sizeof sign);
        sent = std::chrono::steady_clock::now();
    }
}

void Ranks::first_does(const char* doing, int64_t step, const std::function<void()>& work) {
    if (size_ == 1) return work();
    const bool watched = beats_ > 0;   // before the first at() there is no limit
    int32_t sign = WORKING;
    while (!first()) {
        if (watched) at(doing, step);
        broadcast(&sign, sizeof sign);
        if (sign == int32_t(Exit::done)) return;
        if (sign != WORKING) fail_together(Exit(sign), "");
    }
    if (watched) at(doing, step);
    std::atomic<bool> done{false};
    works_alone_ = true;
    std::thread signs;
    if (beats_from_threads_) signs = std::thread([&] { send_signs_until_done(done); });
    std::exception_ptr problem;
    sign = int32_t(Exit::done);
    try {
        work();
    } catch (const Error& error) {
        problem = std::current_exception(), sign = int32_t(error.code);
    } catch (...) {
        problem = std::current_exception(), sign = 1;
    }
    if (watched) at(doing, step);   // first: the usual limit holds again from here
    done = true, works_alone_ = false;
    if (signs.joinable()) signs.join();
    broadcast(&sign, sizeof sign);
    if (problem) std::rethrow_exception(problem);
}

// -------------------------------------------------------------------------------------------------------------------- watchdog

static int64_t nanoseconds_now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Ranks::start_watchdog(int seconds) {
    if (size_ > 1) watchdog_ = std::thread(&Ranks::watch, this, seconds);
}

void Ranks::at(const char* doing, int64_t step) {
    doing_ = doing;
    step_ = step;
    beats_++;
    note_progress();
    SignOfLife& own = own_sign();
    std::strncpy(own.doing, doing, sizeof own.doing - 1);
    own.step = step;
    own.at = nanoseconds_now();
}

void Ranks::watch_for(std::function<std::string()> problem) {
    const std::lock_guard lock(problem_mutex_);
    problem_ = std::move(problem);
}

std::string Ranks::problem() {
    const std::lock_guard lock(problem_mutex_);
    return problem_ ? problem_() : "";
}

/// Exits without running destructors: the main thread is still running, perhaps forever.
void Ranks::give_up(const std::string& why) {
    std::fprintf(stderr, "rank %d of %d %s; it was in step %lld, %s%s.\n", rank_, size_, why.c_str(), static_cast<long long>(step_),
                 doing_.load(), slowest().c_str());
    _exit(static_cast<int>(Exit::rank));
}

/// A clause on the rank of this machine that the others wait for: a stopped or dead one, or else the one with the oldest heartbeat, because
/// every wait begins with a heartbeat. "" if that is this rank.
std::string Ranks::slowest() const {
    constexpr int64_t SECOND = 1'000'000'000;
    const int64_t now = nanoseconds_now();
    const auto first = [&](const SignOfLife& a, const SignOfLife& b) {
        const bool a_stopped = now - a.runs > 2 * SECOND, b_stopped = now - b.runs > 2 * SECOND;
        return a_stopped != b_stopped ? a_stopped : a.at < b.at;
    };
    const SignOfLife& last = *std::min_element(signs_, signs_ + signs_count_, first);
    if (signs_count_ == 1 || last.rank == rank_ || last.at == 0) return "";
    const bool stopped = now - last.runs > 2 * SECOND;
    return "; rank " + std::to_string(last.rank) + " is stuck: " + (stopped ? "its process is stopped or dead, " : "") +
           "its last heartbeat was " + std::to_string((now - last.at) / SECOND) + " s ago, in step " + std::to_string(last.step) + ", " + last.doing;
}

/// The thread of start_watchdog(); polls ten times a second. Time is counted in polls rather than by the clock, so that a stopped process
/// (SIGSTOP) does not count its own pause. A problem must persist for three seconds, in which the main thread can report its cause.
void Ranks::watch(int seconds) {
    const int polls_per_second = 10;
    int64_t seen = -1;
    for (int quiet = 0, wrong = 0; !over_; quiet++) {
        own_sign().runs = nanoseconds_now();
        const std::string what = problem();
        wrong = what.empty() ? 0 : wrong + 1;
        if (wrong > 3 * polls_per_second) give_up("gives up: " + what);
        const int limit = works_alone_ ? std::max(seconds, ALONE_SECONDS) : seconds;   // before beats_: first_does() ends with a beat
        if (beats_ != seen || beats_ == 0) seen = beats_, quiet = 0;
        if (seconds > 0 && quiet > limit * polls_per_second)
            give_up("made no progress for " + std::to_string(limit) +
                    " s (another rank is stopped, dead or far slower; --watchdog-seconds sets the limit)");
        std::this_thread::sleep_for(std::chrono::milliseconds(1000 / polls_per_second));
    }
}
