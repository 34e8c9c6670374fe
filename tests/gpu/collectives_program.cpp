// One rank of a job that tests collectives; tests/collectives.sh starts several and looks at exit codes and messages.
//     collectives_program WHAT [RANK]
// WATCHDOG in the environment is the watchdog's limit in seconds.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include <unistd.h>

#include "model/base/options.h"
#include "model/ranks/collectives.cuh"
#include "model/run/machine.cuh"
#include "tests/gpu/device_array.h"

namespace {

constexpr int THREADS = 128;

template <class X>
__global__ void fill_kernel(X* x, int n, X value) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = value + X(i % 7);
}

template <class X>
void run_fill(const GPU& device, X* x, int n, X value) {
    launch(device, fill_kernel<X>, Grid(blocks_for(size_t(n), THREADS)), THREADS, 0, x, n, value);
}
void run_copy(const GPU& device, float* to, const float* from, size_t n) {
    check(cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, device.stream));
}

void require(bool true_, const std::string& what) {
    if (!true_) fail(Exit::data, "wrong: ", what);
}

/// A rank, its GPU and a stream that does not take turns with others.
struct Job {
    Ranks ranks;
    GPU device;
    Job() {
        const char* const limit = std::getenv("WATCHDOG");
        ranks.start_watchdog(limit ? std::atoi(limit) : 60);
        int gpus = 0;
        check(cudaGetDeviceCount(&gpus));
        check(cudaSetDevice(ranks.local_rank() % gpus));
        check(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
        ranks.at("testing", 1);
    }
    ~Job() { cudaStreamDestroy(device.stream); }
    double sum_of_ranks() const { return ranks.size() * (ranks.size() - 1) / 2; }
};

void require_equal(Job& job, const DeviceArray<float>& seen, const std::vector<double>& expected, const std::string& what) {
    check(cudaStreamSynchronize(job.device.stream));
    const std::string wrong = difference(seen.numbers(), expected, {0, 0});
    require(wrong.empty(), what + ": " + wrong);
}

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
        run_fill(job.device, loss.data(), 1, 0.25 + job.ranks.rank());
        collectives.start_sum(job.device, loss.data(), 1);
        collectives.finish(job.device);
        run_copy(job.device, seen.data(), x.data(), x.size());
        std::vector<double> expected(x.size());
        for (size_t i = 0; i < expected.size(); i++)
            expected[i] = job.ranks.size() * (10.0 * round + double(i / n) + double(i % n % 7)) + job.sum_of_ranks();
        require_equal(job, seen, expected, "sum in round " + std::to_string(round));
        require(loss.numbers()[0] == 0.25 * job.ranks.size() + job.sum_of_ranks(), "sum of one double");
    }
}

/// ZeRO-1 in small, for n numbers: all ranks write all gradients, bucket after bucket from the last on, and each gets the sum of
/// its own parts; then it writes its parts of the weights, and all read the whole. The second round writes where the first one has
/// been.
void shards(Job& job, size_t n, size_t bucket) {
    const int ranks = job.ranks.size(), me = job.ranks.rank();
    const Shards cut(n, me, ranks, bucket);
    const std::string of = " of " + std::to_string(n) + " in buckets of " + std::to_string(bucket);
    DeviceArray<float> x(cut.size(), NAN), seen(cut.size(), NAN);
    Collectives<GPU> collectives(job.device, job.ranks);
    auto number = [&](double first, size_t i, const Span& within) { return first + double((i - within.begin) % 7); };
    for (double round : {100.0, 200.0}) {
        std::vector<double> sums(cut.size()), whole(cut.size());
        for (size_t k = cut.buckets(); k-- > 0;) {
            const Span all = cut.bucket(k), own = cut.own(k);
            run_fill(job.device, x.data() + all.begin, int(all.size()), float(round + me));
            collectives.start_reduce_scatter(job.device, x.data() + all.begin, cut.part_size(k));
            for (size_t i = all.begin; i < all.end; i++)   // another rank's part is no sum
                sums[i] = i >= own.begin && i < own.end ? ranks * number(round, i, all) + job.sum_of_ranks() : number(round + me, i, all);
        }
        collectives.finish(job.device);
        run_copy(job.device, seen.data(), x.data(), cut.size());
        require_equal(job, seen, sums, "sum of parts" + of);
        for (size_t k = 0; k < cut.buckets(); k++) {
            run_fill(job.device, x.data() + cut.own(k).begin, int(cut.part_size(k)), float(round + 50 + me));
            for (int r = 0; r < ranks; r++)
                for (size_t i = cut.part(k, r).begin; i < cut.part(k, r).end; i++) whole[i] = number(round + 50 + r, i, cut.part(k, r));
        }
        collectives.all_gather(job.device, x.data(), cut);
        run_copy(job.device, seen.data(), x.data(), cut.size());
        require_equal(job, seen, whole, "gather" + of);
    }
}

/// The same through memory of the host that has no room for all at once.
void in_pieces(Job& job) {
    const size_t ranks = size_t(job.ranks.size()), me = size_t(job.ranks.rank()), n = 700;
    HostExchange exchange(job.ranks, 1000);
    DeviceArray<float> x(n * ranks, NAN);
    run_fill(job.device, x.data(), int(x.size()), float(me));
    exchange.sum(job.device.stream, x.data(), n * ranks);
    exchange.reduce_scatter(job.device.stream, x.data(), n);
    std::vector<double> expected(x.size());
    for (size_t i = 0; i < expected.size(); i++) expected[i] = double(ranks) * double(i % 7) + job.sum_of_ranks();
    for (size_t i = n * me; i < n * (me + 1); i++) expected[i] *= double(ranks);
    require_equal(job, x, expected, "sums in pieces");
    const Parts bytes{reinterpret_cast<std::byte*>(x.data()), n * sizeof(float)};
    exchange.all_gather(job.device.stream, std::vector<Parts>(1, bytes));
    for (size_t i = 0; i < expected.size(); i++) expected[i] = double(ranks) * (double(ranks) * double(i % 7) + job.sum_of_ranks());
    require_equal(job, x, expected, "gather in pieces");
}

/// What hosts exchange among themselves.
void host(Job& job) {
    Ranks& ranks = job.ranks;
    const int P = ranks.size(), me = ranks.rank();
    require(ranks.sum(0.5 + me) == 0.5 * P + job.sum_of_ranks(), "sum of one number");
    require(ranks.any(me == P - 1) && !ranks.any(false), "any");
    std::vector<float> many(600001);
    for (size_t i = 0; i < many.size(); i++) many[i] = float(i % 1000) + float(me);
    ranks.sum(many.data(), many.size());
    for (size_t i = 0; i < many.size(); i++) require(many[i] == float(P * double(i % 1000) + job.sum_of_ranks()), "sum of many");
    for (int from = 0; from < P; from++) {
        std::vector<int> sent(300000, me);
        ranks.broadcast(sent.data(), sent.size() * sizeof(int), from);
        require(sent == std::vector<int>(sent.size(), from), "broadcast");
    }
    for (size_t n : {size_t(1), size_t(100), size_t(5000), size_t(700000)}) {
        const Shards shards(n, me, P, 1000000 / P);   // more than one piece of MPI's
        std::vector<float> whole(shards.size(), -1), expected(shards.size()), held(shards.owned());
        std::iota(expected.begin(), expected.end(), 0.0f);
        for (size_t k = 0; k < shards.buckets(); k++)
            std::copy_n(expected.data() + shards.own(k).begin, shards.part_size(k), held.data() + shards.held(k));
        ranks.gather_shards(held.data(), whole.data(), shards);
        require(!ranks.first() || whole == expected, "shards gathered");
    }
    for (size_t n : {size_t(1), size_t(5000), size_t(600001)}) {
        const size_t begin = n * size_t(me), end = begin + n;
        std::vector<float> x(n * size_t(P)), expected = x;
        for (size_t i = 0; i < x.size(); i++) {
            x[i] = float(i % 1000) + float(me);
            expected[i] = i >= begin && i < end ? float(P * double(i % 1000) + job.sum_of_ranks()) : x[i];
        }
        ranks.reduce_scatter(x.data(), n);
        require(x == expected, "sum of parts");
        std::fill(x.begin(), x.end(), -1.0f);
        std::fill(x.begin() + long(begin), x.begin() + long(end), float(me));
        for (size_t i = 0; i < x.size(); i++) expected[i] = float(i / n);
        ranks.all_gather(x.data(), n * sizeof(float));
        require(x == expected, "parts gathered");
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
    if (what == "all") {
        host(job);
        for (size_t together : {1, 1500, 1 << 22}) sums(job, together);
        for (size_t n : {5, 100, 5003}) shards(job, n, Shards::BUCKET);
        for (size_t bucket : {16, 3000}) shards(job, 5003, bucket);
        in_pieces(job);
        if (job.ranks.first()) std::puts("all sums and gathers are right");
    }
    if (what == "shards") {
        shards(job, 5003, 3000);
        if (job.ranks.first()) std::puts("all parts are right");
    }
    if (what == "nan") not_a_number(job);
    if (what == "die") until(job, who, [] { raise(SIGKILL); });
    if (what == "hang") until(job, who, [] { for (;;) sleep(1); });
    if (what == "fail") until(job, who, [] { fail(Exit::data, "a rank's own reason"); });
    if (what == "unequal") unequal_calls(job);
}

}   // namespace

int main(int, char** argv) {
    return run_program(process_name("collectives"), [&] { run(argv[1], argv[2] ? std::atoi(argv[2]) : -1); });
}
