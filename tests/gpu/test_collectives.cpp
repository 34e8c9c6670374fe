// Both ways of exchange with a job of one rank, NCCL's where the program has it; several ranks are tests/collectives.sh's.
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

TEST_CASE("collectives: through host memory, one piece and several") {
    Ranks ranks;
    HostExchange exchange(ranks);
    for (size_t n : {size_t(1), size_t(1000), (size_t(16) << 20) / sizeof(float) + 5}) one_rank(exchange, GPU{}, n);
}

#ifdef USE_NCCL
TEST_CASE("collectives: NCCL with a job of one") {
    Ranks ranks;
    NcclExchange exchange(ranks);
    CHECK(std::getenv("NCCL_ALGO") == std::string("^NVLS,NVLSTree"));   // whose sums may differ from run to run
    for (size_t n : {1, 1000, 100000}) one_rank(exchange, GPU{}, n);
}
#endif
