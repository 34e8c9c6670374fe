#include "model/ranks/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include <unistd.h>

#include "model/base/error.h"
#include "model/base/process.h"
#include "model/ranks/rendezvous.h"
#include "model/tensors.h"

#ifdef USE_MPI
#include <mpi.h>
#endif

// -------------------------------------------------------------------------------------------------------- launcher environment

/// The value of the first variable that is set, or null.
static const char* from_environment(std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const char* value = std::getenv(name)) return value;
    return nullptr;
}

/// Open MPI, MPICH and Intel MPI (Hydra), Slurm with PMI.
static const char* mpi_rank() { return from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}); }
static const char* mpi_size() { return from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

/// torchrun and other launchers of PyTorch jobs, e.g. on Kubernetes.
static bool torch_launched() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

std::string process_name(const std::string& program) {
    const char* rank = mpi_rank() ? mpi_rank() : torch_launched() ? std::getenv("RANK") : nullptr;
    return rank ? program + " [rank " + rank + "]" : program;
}

/// torchrun's agent may occupy MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE); then we use the next port.
static RendezvousPoint rendezvous_point_of_torch() {
    const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
    if (!host)
        fail(Exit::usage, "MASTER_ADDR is not set: where is rank 0? Set it, or give --ranks-from tcp:HOST:PORT");
    const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    RendezvousPoint where;
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

/// This rank and the number of ranks, from the environment.
static std::pair<int, int> rank_and_size(const std::string& from) {
    for (const auto& [rank, size] : {std::pair("RANK", "WORLD_SIZE"), {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     {"PMI_RANK", "PMI_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}})
        if (std::getenv(rank) && std::getenv(size)) return {number(rank), number(size)};
    fail(Exit::usage, "--ranks-from ", from, " needs this rank's number and how many there are: set RANK and WORLD_SIZE");
}

/// Null for a job of one rank.
static std::unique_ptr<Network> join_without_mpi(const std::string& from, int seconds) {
    RendezvousPoint where;
    if (from != "tcp") where = parse_rendezvous_point(from);
    const auto [rank, size] = rank_and_size(from);
    if (size == 1 && rank == 0) return nullptr;
    if (from == "tcp") where = rendezvous_point_of_torch();
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

/// Splits long buffers, as MPI counts are ints.
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
                 ": mpirun belongs to a different MPI from the one this program was built with");
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
    /// Copies a piece of every part at a time to a temporary buffer: MPI counts are ints, and MPI's own buffers are as large as
    /// what it is given.
    void reduce_scatter(float* x, size_t n) override {
        const size_t most = std::max<size_t>(1, (size_t(1) << 20) / size), longest = std::min(n, most);
        std::vector<float> pieces(longest * size);
        for (size_t at = 0; at < n; at += most) {
            const size_t count = std::min(most, n - at);
            for (int r = 0; r < size; r++) std::copy_n(x + n * r + at, count, &pieces[count * r]);
            check(MPI_Reduce_scatter_block(pieces.data(), x + n * rank + at, int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                  "MPI_Reduce_scatter_block");
        }
    }
    void all_gather(void* x, size_t bytes) override {
        in_pieces(static_cast<std::byte*>(x), bytes, [&](std::byte* at, int count) {
            MPI_Datatype piece, part;   // `count` bytes with the stride of a part
            check(MPI_Type_contiguous(count, MPI_BYTE, &piece), "MPI_Type_contiguous");
            check(MPI_Type_create_resized(piece, 0, MPI_Aint(bytes), &part), "MPI_Type_create_resized");
            check(MPI_Type_commit(&part), "MPI_Type_commit");
            check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, at, 1, part, MPI_COMM_WORLD), "MPI_Allgather");
            MPI_Type_free(&part), MPI_Type_free(&piece);
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
/// A launched job of one rank needs no MPI.
static std::unique_ptr<Network> join_with_mpi() {
    const char* size = mpi_size();
    if (size && std::atoi(size) > 1)
        fail(Exit::usage, "started as one of ", size,
             " ranks, but this program was built without MPI: install libopenmpi-dev, then make configure and build again; "
             "or let the ranks find each other without it (--ranks-from)");
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

void Ranks::reduce_scatter(float* x, size_t n) {
    if (size_ > 1) network_->reduce_scatter(x, n);
}

void Ranks::all_gather(void* x, size_t bytes) {
    if (size_ > 1) network_->all_gather(x, bytes);
}

void Ranks::gather_shards(const float* mine, float* whole, const Shards& shards) {
    for (size_t k = 0; k < shards.buckets(); k++) {
        const size_t n = shards.part_size(k), bytes = n * sizeof(float);
        const float* const held = mine + shards.held(k);
        if (!first()) network_->to_first(const_cast<float*>(held), bytes, rank_);   // only reads it
        else std::copy_n(held, n, whole + shards.own(k).begin);
        for (int r = 1; first() && r < size_; r++) network_->to_first(whole + shards.part(k, r).begin, bytes, r);
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
    note_progress();
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

/// Exits without running destructors: the main thread is still running, perhaps forever.
void Ranks::give_up(const std::string& why) {
    std::fprintf(stderr, "rank %d of %d %s; it was in step %lld, %s.\n", rank_, size_, why.c_str(), static_cast<long long>(step_),
                 doing_.load());
    _exit(static_cast<int>(Exit::rank));
}

/// The watchdog thread; polls ten times a second. Time is counted in polls rather than by the clock, so that a stopped process
/// (SIGSTOP) does not count its own pause. A problem must persist for three seconds, in which the main thread can report its cause.
void Ranks::watch(int seconds) {
    const int polls_per_second = 10;
    int64_t seen = -1;
    for (int quiet = 0, wrong = 0; !over_; quiet++) {
        const std::string what = problem();
        wrong = what.empty() ? 0 : wrong + 1;
        if (wrong > 3 * polls_per_second) give_up("gives up: " + what);
        if (beats_ != seen || beats_ == 0) seen = beats_, quiet = 0;
        if (seconds > 0 && quiet > seconds * polls_per_second)
            give_up("made no progress for " + std::to_string(seconds) +
                    " s (another rank is stopped, dead or far slower; --watchdog-seconds sets the limit)");
        std::this_thread::sleep_for(std::chrono::milliseconds(1000 / polls_per_second));
    }
}
