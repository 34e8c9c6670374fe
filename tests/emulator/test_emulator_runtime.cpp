// The emulated CUDA runtime: memory, streams, events, graphs. A program with the right waits gives the right numbers under every
// seed; one that forgets a wait gives wrong ones under some.
#include <cstring>

#include "tests/emulator/emulated.h"

namespace {

constexpr int SIZE = 256;

__global__ void set_kernel(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] = value; }
__global__ void add_kernel(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] += value; }
__global__ void copy_kernel(int* to, const int* from) { to[threadIdx.x] = from[threadIdx.x]; }

void set(cudaStream_t stream, int* x, int value) { launch(GPU{stream}, set_kernel, Grid(1), SIZE, 0, x, value); }
void add(cudaStream_t stream, int* x, int value) { launch(GPU{stream}, add_kernel, Grid(1), SIZE, 0, x, value); }
void copy(cudaStream_t stream, int* to, const int* from) { launch(GPU{stream}, copy_kernel, Grid(1), SIZE, 0, to, from); }

struct Stream {
    cudaStream_t stream = nullptr;
    explicit Stream(unsigned flags = cudaStreamNonBlocking) { check(cudaStreamCreateWithFlags(&stream, flags)); }
    ~Stream() { cudaStreamDestroy(stream); }
    Stream(const Stream&) = delete;
    operator cudaStream_t() const { return stream; }
};
struct Event {
    cudaEvent_t event = nullptr;
    Event() { check(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    operator cudaEvent_t() const { return event; }
};
struct Pinned {
    int* data = nullptr;
    Pinned() { check(cudaMallocHost(&data, SIZE * sizeof(int))); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
};

bool holds(const DeviceMemory<int>& x, int value) { return x.host() == std::vector<int>(SIZE, value); }

/// Under how many of the seeds `right` is true.
template <class Action>
size_t seeds_where(Action right) {
    size_t count = 0;
    for (const int seed : SEEDS) {
        Order order(seed);
        count += right();
        cudaDeviceSynchronize();
    }
    return count;
}
const size_t ALL = SEEDS.size();

/// `right(wait)` with its wait under every seed, and without it not under all.
template <class Action>
void check_needs_wait(Action right) {
    CHECK(seeds_where([&] { return right(true); }) == ALL);
    CHECK(seeds_where([&] { return right(false); }) < ALL);
}

// ---- memory

TEST_CASE("emulated runtime: copies in the wrong direction or past the end are errors", "[emulator]") {
    Order order(0);
    DeviceMemory<int> device{std::vector<int>(SIZE)};
    std::vector<int> host(SIZE + 1);
    const size_t bytes = SIZE * sizeof(int);
    auto says = [&](void* to, const void* from, size_t count, cudaMemcpyKind kind) {
        return complaint([&] { cudaMemcpy(to, from, count, kind); });
    };
    CHECK(says(device.data(), host.data(), bytes, cudaMemcpyHostToDevice) == "");
    CHECK(contains(says(host.data(), device.data(), bytes, cudaMemcpyHostToDevice), "the destination of the copy is not device memory"));
    CHECK(contains(says(device.data(), device.data(), bytes, cudaMemcpyDeviceToHost), "the destination of the copy is device memory"));
    CHECK(contains(says(device.data(), host.data(), bytes + 4, cudaMemcpyHostToDevice), "writes bytes 0 to 1028 of the 1024"));
    CHECK(contains(says(host.data(), device.data() + 1, bytes, cudaMemcpyDeviceToHost), "reads bytes 4 to 1028 of the 1024"));
    CHECK(contains(complaint([&] { cudaMemset(device.data() + 200, 0, 1000); }), "writes bytes 800 to 1800"));
    CHECK(contains(complaint([&] { cudaFree(host.data()); }), "frees memory that is not allocated"));
    CHECK(contains(complaint([&] { cudaFree(device.data() + 1); }), "frees memory that is not allocated"));
    int* freed = nullptr;
    check(cudaMalloc(&freed, bytes));
    check(cudaFree(freed));
    CHECK(contains(says(freed, host.data(), bytes, cudaMemcpyHostToDevice), "the destination of the copy is not device memory"));
}

// ---- what the host sees, and when

TEST_CASE("emulated runtime: a result is there after the wait, and often not before", "[emulator]") {
    check_needs_wait([](bool wait) {
        Stream stream;
        Pinned result;
        DeviceMemory<int> x(std::vector<int>(SIZE, 1));
        std::memset(result.data, 0, SIZE * sizeof(int));
        add(stream, x.data(), 41);
        check(cudaMemcpyAsync(result.data, x.data(), SIZE * sizeof(int), cudaMemcpyDeviceToHost, stream));
        if (wait) check(cudaStreamSynchronize(stream));
        return result.data[SIZE - 1] == 42;
    });
}

TEST_CASE("emulated runtime: a pinned buffer may be filled again only after its copy, a pageable one at once", "[emulator]") {
    auto reuse = [](int* buffer, bool wait) {
        Stream stream;
        Event copied;
        DeviceMemory<int> x{std::vector<int>(SIZE)};
        std::fill_n(buffer, SIZE, 1);
        check(cudaMemcpyAsync(x.data(), buffer, SIZE * sizeof(int), cudaMemcpyHostToDevice, stream));
        check(cudaEventRecord(copied, stream));
        if (wait) check(cudaEventSynchronize(copied));
        std::fill_n(buffer, SIZE, 2);
        return holds(x, 1);
    };
    Pinned pinned;
    std::vector<int> pageable(SIZE);
    CHECK(seeds_where([&] { return reuse(pinned.data, true); }) == ALL);
    CHECK(seeds_where([&] { return reuse(pinned.data, false); }) < ALL);
    CHECK(seeds_where([&] { return reuse(pageable.data(), false); }) == ALL);
}

// ---- one stream and another

TEST_CASE("emulated runtime: a stream waits for another one's event, or reads what is not there yet", "[emulator]") {
    check_needs_wait([](bool wait) {
        Stream first, second;
        Event ready;
        DeviceMemory<int> x(std::vector<int>(SIZE, 0)), y(std::vector<int>(SIZE, 0));
        set(first, x.data(), 5);
        check(cudaEventRecord(ready, first));
        set(first, y.data(), 0);   // after the event: no stream has to wait for it
        check(cudaEventSynchronize(ready));
        add(first, x.data(), 1);
        check(cudaEventRecord(ready, first));
        if (wait) check(cudaStreamWaitEvent(second, ready));
        copy(second, y.data(), x.data());
        check(cudaStreamSynchronize(second));
        return holds(y, 6);
    });
}

TEST_CASE("emulated runtime: a stream may run ahead and overwrite what another still reads", "[emulator]") {
    check_needs_wait([](bool wait) {
        Stream compute, loader;
        Event read;
        DeviceMemory<int> batch(std::vector<int>(SIZE, 1)), result(std::vector<int>(SIZE, 0));
        copy(compute, result.data(), batch.data());
        check(cudaEventRecord(read, compute));
        if (wait) check(cudaStreamWaitEvent(loader, read));
        set(loader, batch.data(), 2);
        check(cudaStreamSynchronize(loader));
        return holds(result, 1);
    });
}

TEST_CASE("emulated runtime: stream 0 takes turns with blocking streams only", "[emulator]") {
    auto turns = [](unsigned flags) {
        Stream stream(flags);
        DeviceMemory<int> x(std::vector<int>(SIZE, 0));
        set(nullptr, x.data(), 1);
        add(stream, x.data(), 1);
        set(nullptr, x.data(), 7);
        add(stream, x.data(), 3);
        check(cudaStreamSynchronize(stream));
        return holds(x, 10);
    };
    CHECK(seeds_where([&] { return turns(cudaStreamDefault); }) == ALL);
    CHECK(seeds_where([&] { return turns(cudaStreamNonBlocking); }) < ALL);
}

TEST_CASE("emulated runtime: after an error the queues are empty, and streams that were destroyed are not used", "[emulator]") {
    Order order(1);
    Stream stream;
    DeviceMemory<int> x(std::vector<int>(SIZE, 0));
    auto out_of_step = [&] {
        launch(GPU{stream}, +[](int) { if (threadIdx.x < 5) __syncthreads(); }, Grid(1), 32, 0, 0);
        add(stream, x.data(), 1);
    };
    CHECK(contains(complaint(out_of_step), "deadlock, the threads wait for each other"));
    check(cudaStreamSynchronize(stream));
    CHECK(holds(x, 0));
    cudaStream_t gone = nullptr;
    check(cudaStreamCreate(&gone));
    check(cudaStreamDestroy(gone));
    CHECK(contains(complaint([&] { add(gone, x.data(), 1); }), "uses a stream that was destroyed"));
}

// ---- graphs

TEST_CASE("emulated runtime: branches of a graph run in any order that its edges allow", "[emulator]") {
    check_needs_wait([](bool wait) {
        Stream stream, side;
        Event fork, join;
        DeviceMemory<int> x(std::vector<int>(SIZE, 0)), y(std::vector<int>(SIZE, 0));
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        set(stream, x.data(), 1);
        check(cudaEventRecord(fork, stream));
        check(cudaStreamWaitEvent(side, fork));
        add(side, x.data(), 1);
        check(cudaEventRecord(join, side));
        if (wait) check(cudaStreamWaitEvent(stream, join));
        copy(stream, y.data(), x.data());
        check(cudaStreamWaitEvent(stream, join));
        check(cudaStreamEndCapture(stream, &graph));
        check(cudaGraphInstantiate(&executable, graph, 0));
        check(cudaGraphDestroy(graph));
        check(cudaGraphLaunch(executable, stream));
        check(cudaStreamSynchronize(stream));
        check(cudaGraphExecDestroy(executable));
        return holds(y, 2);
    });
}

TEST_CASE("emulated runtime: what a capture does not allow is an error", "[emulator]") {
    Order order(0);
    Stream stream, side;
    Event fork;
    DeviceMemory<int> x(std::vector<int>(SIZE, 0));
    auto while_capturing = [&](auto action) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        const std::string text = complaint(action);
        cudaGraph_t graph;
        if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
        return text;
    };
    char* data;
    CHECK(contains(while_capturing([&] { cudaDeviceSynchronize(); }), "not allowed while a stream is being captured"));
    CHECK(contains(while_capturing([&] { cudaMalloc(&data, 1); }), "not allowed while a stream is being captured"));
    CHECK(contains(while_capturing([&] { cudaStreamSynchronize(stream); }), "waits for a stream that is being captured"));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    check(cudaEventRecord(fork, stream));
    check(cudaStreamWaitEvent(side, fork));
    add(side, x.data(), 1);
    cudaGraph_t graph;
    CHECK(contains(complaint([&] { cudaStreamEndCapture(stream, &graph); }), "forked from it is joined"));
    CHECK(holds(x, 0));
}

}   // namespace
