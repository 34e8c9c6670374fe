// One rank alone: nothing to add, but the same calls. Both ways of exchange are taken with a job of one, NCCL's where the program
// has it; several ranks are tests/collectives.sh's.
#include "model/ranks/collectives.cuh"

#include "model/run/machine.cuh"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

namespace {

std::vector<double> count_from(double first, size_t n) {
    std::vector<double> numbers(n);
    for (size_t i = 0; i < n; i++) numbers[i] = first + double(i % 1000);
    return numbers;
}

/// A sum over one rank leaves the numbers as they are, whatever way they took.
void one_rank(GpuExchange& exchange, const GPU& device, size_t n) {
    const std::vector<double> numbers = count_from(1, n);
    DeviceArray<float> x(numbers);
    DeviceArray<double> loss(count_from(0.5, 2));
    DeviceArray<bf16> weights(count_from(1, 100));
    exchange.sum(device.stream, x.data(), n);
    exchange.sum(device.stream, loss.data(), loss.size());
    exchange.reduce_scatter(device.stream, x.data(), n);
    const Parts bytes{reinterpret_cast<std::byte*>(weights.data()), weights.size() * sizeof(bf16)};
    exchange.all_gather(device.stream, std::vector<Parts>(1, bytes));
    exchange.join(device.stream);
    CHECK(difference(x.numbers(), numbers, {0, 0}) == "");
    CHECK(difference(loss.numbers(), count_from(0.5, 2), {0, 0}) == "");
    CHECK(difference(weights.numbers(), count_from(1, 100), {0, 0}) == "");
}

}   // namespace

TEST_CASE("collectives: one rank alone exchanges nothing") {
    Ranks ranks;
    GPU device;
    Collectives<GPU> collectives(device, ranks);
    CHECK(collectives.name() == "none");
    DeviceArray<float> x(count_from(1, 100));
    DeviceArray<double> loss(count_from(1, 1));
    collectives.start_sum(device, x.data(), x.size());
    collectives.start_sum(device, loss.data(), 1);
    collectives.finish(device);
    collectives.start_reduce_scatter(device, x.data(), x.size());
    collectives.all_gather(device, x.data(), x.size());
    collectives.all_gather(device, x.data(), Shards(x.size(), 0, 1));
    CHECK(difference(x.numbers(), count_from(1, 100), {0, 0}) == "");
    CHECK(loss.numbers()[0] == 1);
}

TEST_CASE("collectives: through host memory, one piece and several") {
    Ranks ranks;
    HostExchange exchange(ranks, "test");
    for (size_t n : {size_t(1), size_t(1000), (size_t(16) << 20) / sizeof(float) + 5}) one_rank(exchange, GPU{}, n);
}

#ifdef USE_NCCL
TEST_CASE("collectives: NCCL with a job of one") {
    Ranks ranks;
    NcclExchange exchange(ranks);
    CHECK(exchange.name().rfind("NCCL 2.", 0) == 0);
    CHECK(exchange.name().find("NCCL_ALGO=^NVLS") != std::string::npos);   // whose sums may differ from run to run
    for (size_t n : {1, 1000, 100000}) one_rank(exchange, GPU{}, n);
}
#endif

TEST_CASE("collectives: GPUs of one kind have the same name and compute capability, and nearly the same memory") {
    auto kind = [](const char* chip, double gigabytes) {
        GpuKind kind{};
        std::snprintf(kind.chip, sizeof kind.chip, "%s", chip);
        kind.bytes = uint64_t(gigabytes * 1e9);
        return kind;
    };
    const GpuKind one = kind("A, compute capability 9.0", 80);
    CHECK(one.text() == "A, compute capability 9.0, 74.51 GiB");
    CHECK((one.same_as(kind("A, compute capability 9.0", 80.5)) && one.same_as(kind("A, compute capability 9.0", 79.5))));
    CHECK((!one.same_as(kind("A, compute capability 9.0", 40)) && !one.same_as(kind("A, compute capability 9.0", 90))));
    CHECK((!one.same_as(kind("B, compute capability 9.0", 80)) && !one.same_as(kind("A, compute capability 8.0", 80))));
    CHECK(own_gpu_kind().same_as(own_gpu_kind()));
    CHECK((ranks_named({3}) == "rank 3" && ranks_named({0, 2}) == "ranks 0, 2"));
}
