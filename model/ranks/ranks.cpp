#include "model/ranks/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <unistd.h>

#include "model/base/error.h"
#include "model/ranks/rendezvous.h"
#include "model/tensors.h"

#ifdef USE_MPI
#include <mpi.h>
#endif

// -------------------------------------------------------------------------------------------------------- what launchers tell

/// The first of the variables that is set, or null.
static const char* from_environment(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const char* value = std::getenv(name)) return value;
    return nullptr;
}

/// Open MPI, MPICH and Intel MPI (Hydra), Slurm with PMI.
static const char* mpi_rank() { return from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}); }
static const char* mpi_size() { return from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

/// torchrun, and what starts PyTorch jobs on Kubernetes and elsewhere.
static bool torch_launched() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

std::string process_name(const std::string& program) {
    const char* rank = mpi_rank() ? mpi_rank() : torch_launched() ? std::getenv("RANK") : nullptr;
    return rank ? program + " [rank " + rank + "]" : program;
}

/// torchrun's own agent often keeps MASTER_PORT for itself, and says so; then the port above it is ours.
static MeetingPoint meeting_point_of_torch() {
    const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
    if (!host)
        fail(Exit::usage, "MASTER_ADDR is not set: where is rank 0? Set it, or give --ranks-from tcp:HOST:PORT");
    const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    MeetingPoint where;
    where.host = host;
    where.port = (port ? std::atoi(port) : 29500) + (agent && std::string(agent) == "True");
    return where;
}

static int number(const char* variable) {
    const std::string text = std::getenv(variable);
    char* end;
    const long n = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end || n < 0 || n > 1 << 20) fail(Exit::usage, variable, " is \"", text, "\", not a number of ranks");
    return int(n);
}

/// This rank's number and how many there are, as the environment says.
static std::pair<int, int> rank_and_size(const std::string& from) {
    for (const auto& [rank, size] : {std::pair("RANK", "WORLD_SIZE"), {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}})
        if (std::getenv(rank) && std::getenv(size)) return {number(rank), number(size)};
    fail(Exit::usage, "--ranks-from ", from, " needs this rank's number and how many there are: set RANK and WORLD_SIZE");
}

/// Null for a job of one.
static std::unique_ptr<Network> join_without_mpi(const std::string& from, int seconds) {
    MeetingPoint where;
    if (from != "tcp") where = parse_meeting_point(from);
    const auto [rank, size] = rank_and_size(from);
    if (size == 1 && rank == 0) return nullptr;
    if (from == "tcp") where = meeting_point_of_torch();
    auto star = std::make_unique<Star>(where, rank, size, seconds > 0 ? seconds : 300);
    if (std::getenv("LOCAL_RANK")) star->local_rank = number("LOCAL_RANK");
    if (std::getenv("LOCAL_WORLD_SIZE")) star->local_size = number("LOCAL_WORLD_SIZE");
    return star;
}

// ------------------------------------------------------------------------------------------------------------------------ MPI

#ifdef USE_MPI
static void check(int status, const char* what) {
    if (status != MPI_SUCCESS) fail(Exit::rank, "MPI failed in ", what, " (", status, "): another rank has probably died");
}

/// MPI counts are ints: long buffers go in pieces.
template <class X, class Collective>
static void in_pieces(X* x, size_t n, Collective collective) {
    const size_t most = size_t(1) << 28;
    for (size_t at = 0; at < n; at += most) collective(x + at, int(std::min(most, n - at)));
}

class Mpi : public Network {
public:
    Mpi() {
        int level;
        check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init");
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        MPI_Comm node;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_rank(node, &local_rank);
        MPI_Comm_size(node, &local_size);
        MPI_Comm_free(&node);
        const char* expected = mpi_size();
        if (expected && std::atoi(expected) != size)
            fail(Exit::usage, "the launcher started ", expected, " ranks, but MPI knows of ", size,
                 ": mpirun belongs to another MPI than the one this program was built with");
    }

    const char* name() const override { return "MPI"; }

    void sum(float* x, size_t n) override {
        in_pieces(x, n, [](float* at, int count) {
            check(MPI_Allreduce(MPI_IN_PLACE, at, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
        });
    }
    void sum(double* x, size_t n) override {
        in_pieces(x, n, [](double* at, int count) {
            check(MPI_Allreduce(MPI_IN_PLACE, at, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
        });
    }
    void broadcast(void* x, size_t bytes, int from) override {
        in_pieces(static_cast<std::byte*>(x), bytes, [&](std::byte* at, int count) {
            check(MPI_Bcast(at, count, MPI_BYTE, from, MPI_COMM_WORLD), "MPI_Bcast");
        });
    }
    void to_first(void* x, size_t bytes, int from) override {
        in_pieces(static_cast<std::byte*>(x), bytes, [&](std::byte* at, int count) {
            if (rank == from) check(MPI_Send(at, count, MPI_BYTE, 0, 0, MPI_COMM_WORLD), "MPI_Send");
            else check(MPI_Recv(at, count, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
        });
    }
    void leave() override { MPI_Finalize(); }
};

static std::unique_ptr<Network> join_with_mpi() { return std::make_unique<Mpi>(); }
#else
/// A launcher of one rank needs no MPI.
static std::unique_ptr<Network> join_with_mpi() {
    const char* size = mpi_size();
    if (size && std::atoi(size) > 1)
        fail(Exit::usage, "started as one of ", size,
             " ranks, but this program was built without MPI: install libopenmpi-dev, then make configure and build again; "
             "or let the ranks meet without it (--ranks-from)");
    return nullptr;
}
#endif

// ----------------------------------------------------------------------------------------------------------------------- ranks

Ranks::Ranks(int watchdog_seconds, const std::string& from) {
    if (from == "mpi" || (from == "auto" && mpi_rank())) network_ = join_with_mpi();
    else if (from != "auto" || torch_launched()) network_ = join_without_mpi(from == "auto" ? "tcp" : from, watchdog_seconds);
    if (!network_) return;
    rank_ = network_->rank, size_ = network_->size;
    local_rank_ = network_->local_rank, local_size_ = network_->local_size;
    if (size_ > 1) watchdog_ = std::thread(&Ranks::watch, this, watchdog_seconds);
}

Ranks::~Ranks() {
    over_ = true;
    if (watchdog_.joinable()) watchdog_.join();
    if (network_ && std::uncaught_exceptions() == 0) network_->leave();
}

const char* Ranks::network() const { return size_ > 1 ? network_->name() : "none"; }

void Ranks::sum(float* x, size_t n) {
    if (size_ > 1) network_->sum(x, n);
}

double Ranks::sum(double x) {
    if (size_ > 1) network_->sum(&x, 1);
    return x;
}

void Ranks::gather_shards(const float* mine, float* whole, size_t n) {
    const size_t begin = shard_begin(n, rank_, size_), end = shard_begin(n, rank_ + 1, size_);
    if (!first()) return network_->to_first(const_cast<float*>(mine), (end - begin) * sizeof(float), rank_);   // which is only read
    std::copy(mine, mine + (end - begin), whole + begin);
    for (int r = 1; r < size_; r++) {
        const size_t at = shard_begin(n, r, size_);
        network_->to_first(whole + at, (shard_begin(n, r + 1, size_) - at) * sizeof(float), r);
    }
}

void Ranks::all_gather(void* x, size_t n, size_t size) {
    std::byte* bytes = static_cast<std::byte*>(x);
    for (int r = 0; r < size_ && size_ > 1; r++) {
        const size_t begin = shard_begin(n, r, size_) * size, end = shard_begin(n, r + 1, size_) * size;
        network_->broadcast(bytes + begin, end - begin, r);
    }
}

void Ranks::broadcast(void* x, size_t bytes, int from) {
    if (size_ > 1) network_->broadcast(x, bytes, from);
}

// -------------------------------------------------------------------------------------------------------------------- watchdog

void Ranks::at(const char* doing, int64_t step) {
    doing_ = doing;
    step_ = step;
    beats_++;
}

void Ranks::watch_for(std::function<std::string()> problem) {
    const std::lock_guard lock(problem_mutex_);
    problem_ = std::move(problem);
}

std::string Ranks::problem() {
    const std::lock_guard lock(problem_mutex_);
    const std::string found = problem_ ? problem_() : "";
    return found.empty() ? network_->lost() : found;
}

/// Without destructors: the main thread is still at work somewhere, perhaps for ever.
void Ranks::give_up(const std::string& why) {
    std::fprintf(stderr, "rank %d of %d %s; it stood in step %lld, %s.\n", rank_, size_, why.c_str(), static_cast<long long>(step_),
                 doing_.load());
    _exit(static_cast<int>(Exit::rank));
}

/// Runs on a thread of its own and looks ten times a second. A stopped process (SIGSTOP) does not count its own pause: time is
/// counted in looks, not in hours of the day. A problem waits for three seconds, in which the main thread can report its cause.
void Ranks::watch(int seconds) {
    const int looks_per_second = 10;
    int64_t seen = -1;
    for (int quiet = 0, wrong = 0; !over_; quiet++) {
        const std::string what = problem();
        wrong = what.empty() ? 0 : wrong + 1;
        if (wrong > 3 * looks_per_second) give_up("gives up: " + what);
        if (beats_ != seen || beats_ == 0) seen = beats_, quiet = 0;
        if (seconds > 0 && quiet > seconds * looks_per_second)
            give_up("made no progress for " + std::to_string(seconds) +
                    " s (another rank is stopped, dead or far slower; --watchdog-seconds sets the limit)");
        std::this_thread::sleep_for(std::chrono::milliseconds(1000 / looks_per_second));
    }
}
