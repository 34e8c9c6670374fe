// One rank of a job that tests collectives; tests/collectives.sh starts several and looks at exit codes and messages.
//     collectives_program WHAT [RANK]
// In the environment RANKS_FROM says where ranks meet (as --ranks-from does), WATCHDOG after how many seconds it bites.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include <unistd.h>

#include "model/ranks/collectives.cuh"
#include "tests/gpu/device_array.h"

namespace {

constexpr int THREADS = 128;

__global__ void fill_kernel(float* x, int n, float value) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = value + float(i % 7);
}
__global__ void fill_double_kernel(double* x, double value) {
    if (threadIdx.x == 0) *x = value;
}
__global__ void copy_kernel(float* to, const float* from, int n) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) to[i] = from[i];
}

void run_fill(const GPU& device, float* x, int n, float value) {
    launch(device, fill_kernel, Grid(blocks_for(size_t(n), THREADS)), THREADS, 0, x, n, value);
}
void run_copy(const GPU& device, float* to, const float* from, int n) {
    launch(device, copy_kernel, Grid(blocks_for(size_t(n), THREADS)), THREADS, 0, to, from, n);
}

void require(bool true_, const std::string& what) {
    if (!true_) fail(Exit::data, "wrong: ", what);
}

/// A rank, its GPU and a stream that does not take turns with others.
struct Job {
    Ranks ranks;
    GPU device;
    Job() : ranks(std::atoi(environment("WATCHDOG", "60")), environment("RANKS_FROM", "auto")) {
        int gpus = 0;
        check(cudaGetDeviceCount(&gpus));
        check(cudaSetDevice(ranks.local_rank() % gpus));
        check(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
        ranks.at("testing", 1);
    }
    ~Job() { cudaStreamDestroy(device.stream); }
    static const char* environment(const char* name, const char* otherwise) {
        const char* value = std::getenv(name);
        return value ? value : otherwise;
    }
    double sum_of_ranks() const { return ranks.size() * (ranks.size() - 1) / 2; }
};

/// A backward pass in small: every slice is written on the stream, handed over, and the next is begun; then all is read. The second
/// and third round write where the sums before have been.
void sums(Job& job, size_t together) {
    const int n = 1000, slices = 5;
    DeviceArray<float> x(size_t(n) * slices, NAN), seen(x.size(), NAN);
    DeviceArray<double> loss(1, NAN);
    Collectives<GPU> collectives(job.device, job.ranks, together);
    for (int round = 0; round < 3; round++) {
        for (int slice = slices - 1; slice >= 0; slice--) {
            run_fill(job.device, x.data() + slice * n, n, float(10 * round + slice + job.ranks.rank()));
            const int half = n / 2 * (slice % 2);   // some slices in two parts, the lower first
            if (half) collectives.start_sum(job.device, x.data() + slice * n, half);
            collectives.start_sum(job.device, x.data() + slice * n + half, size_t(n - half));
        }
        launch(job.device, fill_double_kernel, Grid(1), 32, 0, loss.data(), 0.25 + job.ranks.rank());
        collectives.start_sum(job.device, loss.data(), 1);
        collectives.finish(job.device);
        run_copy(job.device, seen.data(), x.data(), n * slices);
        std::vector<double> expected(x.size());
        for (size_t i = 0; i < expected.size(); i++)
            expected[i] = job.ranks.size() * (10.0 * round + double(i / n) + double(i % n % 7)) + job.sum_of_ranks();
        check(cudaStreamSynchronize(job.device.stream));
        const std::string wrong = difference(seen.numbers(), expected, {0, 0});
        require(wrong.empty(), "sum in round " + std::to_string(round) + ": " + wrong);
        require(loss.numbers()[0] == 0.25 * job.ranks.size() + job.sum_of_ranks(), "sum of one double");
    }
}

/// ZeRO-1: every rank writes its shard of n numbers, all read the whole.
void gather(Job& job, size_t n) {
    const int ranks = job.ranks.size(), me = job.ranks.rank();
    const int begin = int(shard_begin(n, me, ranks)), end = int(shard_begin(n, me + 1, ranks));
    DeviceArray<float> x(n, NAN), seen(n, NAN);
    Collectives<GPU> collectives(job.device, job.ranks);
    for (float round : {100.0f, 200.0f}) {
        if (end > begin) run_fill(job.device, x.data() + begin, end - begin, round + float(me));
        collectives.all_gather(job.device, x.data(), n);
        run_copy(job.device, seen.data(), x.data(), int(n));
        std::vector<double> expected(n);
        for (int r = 0; r < ranks; r++)
            for (size_t first = shard_begin(n, r, ranks), i = first; i < shard_begin(n, r + 1, ranks); i++)
                expected[i] = double(round) + r + double((i - first) % 7);
        check(cudaStreamSynchronize(job.device.stream));
        const std::string wrong = difference(seen.numbers(), expected, {0, 0});
        require(wrong.empty(), "gather of " + std::to_string(n) + ": " + wrong);
    }
}

/// What hosts exchange among themselves, over MPI or TCP.
void host(Job& job) {
    Ranks& ranks = job.ranks;
    const int P = ranks.size(), me = ranks.rank();
    require(ranks.sum(0.5 + me) == 0.5 * P + job.sum_of_ranks(), "sum of one number");
    require(ranks.any(me == P - 1) && !ranks.any(false), "any");
    std::vector<float> many(600001);   // more than one piece of TCP's sum
    for (size_t i = 0; i < many.size(); i++) many[i] = float(i % 1000) + float(me);
    ranks.sum(many.data(), many.size());
    for (size_t i = 0; i < many.size(); i++) require(many[i] == float(P * double(i % 1000) + job.sum_of_ranks()), "sum of many");
    for (int from = 0; from < P; from++) {
        std::vector<int> sent(300000, me);
        ranks.broadcast(sent.data(), sent.size() * sizeof(int), from);
        require(sent == std::vector<int>(sent.size(), from), "broadcast");
    }
    for (size_t n : {size_t(1), size_t(16), size_t(100), size_t(5000)}) {
        std::vector<float> whole(n, -1), expected(n);
        std::iota(expected.begin(), expected.end(), 0.0f);
        const size_t begin = shard_begin(n, me, P), end = shard_begin(n, me + 1, P);
        ranks.gather_shards(expected.data() + begin, whole.data(), n);
        require(!ranks.first() || whole == expected, "shards gathered");
        std::fill(whole.begin(), whole.end(), -1.0f);
        std::copy(expected.begin() + long(begin), expected.begin() + long(end), whole.begin() + long(begin));
        ranks.all_gather(whole.data(), n, sizeof(float));
        require(whole == expected, "shards exchanged");
    }
    ranks.barrier();
}

/// Every rank must see the NaN of one, and say so with the same exit code.
void not_a_number(Job& job) {
    Collectives<GPU> collectives(job.device, job.ranks);
    DeviceArray<float> x(100, 1.0);
    if (job.ranks.rank() == job.ranks.size() - 1) run_fill(job.device, x.data() + 7, 1, NAN);
    collectives.start_sum(job.device, x.data(), x.size());
    collectives.finish(job.device);
    check(cudaStreamSynchronize(job.device.stream));
    if (std::isnan(x.numbers()[7])) fail(Exit::not_finite, "rank ", job.ranks.rank(), " sees it");
}

/// Sums step after step, until `who` stops in the middle of it in its own way.
void until(Job& job, int who, void (*ends)()) {
    Collectives<GPU> collectives(job.device, job.ranks);
    DeviceArray<float> x(5000, 1.0);
    for (int step = 1; step <= 3; step++) {
        job.ranks.at("computing gradients", step);
        if (step == 3 && job.ranks.rank() == who) ends();
        run_fill(job.device, x.data(), int(x.size()), 1.0f);
        collectives.start_sum(job.device, x.data(), x.size());
        collectives.finish(job.device);
        check(cudaStreamSynchronize(job.device.stream));
    }
}

/// Rank 1 makes another call than the others.
void unequal_calls(Job& job) {
    Collectives<GPU> collectives(job.device, job.ranks);
    DeviceArray<float> x(100, 1.0);
    collectives.start_sum(job.device, x.data(), job.ranks.rank() == 1 ? 50 : 100);
    collectives.finish(job.device);
    check(cudaStreamSynchronize(job.device.stream));
}

void run(const std::string& what, int who) {
    Job job;
    if (what == "name") {
        Collectives<GPU> collectives(job.device, job.ranks);
        const Ranks& r = job.ranks;
        std::printf("rank %d of %d, %d of %d here: %s\n", r.rank(), r.size(), r.local_rank(), r.local_size(),
                    collectives.name().c_str());
    }
    if (what == "all") {
        host(job);
        for (size_t together : {1, 1500, 1 << 22}) sums(job, together);
        for (size_t n : {5, 16, 33, 100, 5003}) gather(job, n);
        if (job.ranks.first()) std::puts("all sums and gathers are right");
    }
    if (what == "nan") not_a_number(job);
    if (what == "die") until(job, who, [] { raise(SIGKILL); });
    if (what == "hang") until(job, who, [] { for (;;) sleep(1); });
    if (what == "fail") until(job, who, [] { fail(Exit::data, "a rank's own reason"); });
    if (what == "unequal") unequal_calls(job);
}

}   // namespace

int main(int, char** argv) {
    try {
        run(argv[1], argv[2] ? std::atoi(argv[2]) : -1);
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", process_name("collectives").c_str(), error.what());
        return int(error.code);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", process_name("collectives").c_str(), error.what());
        return 1;
    }
}
