// The emulated CUDA runtime: memory, streams, events. A program with the right waits gives the right numbers under every
// seed; one that forgets a wait gives wrong ones under some.
#include <cstring>

#include "tests/catch.h"
#include "tests/emulator/streams.h"

namespace {

// ---- errors

TEST_CASE("emulated runtime: a GPU that breaks does nothing more, and every call says so, at the latest when it waits", "[emulator]") {
    for (const uint64_t seed : SEEDS)
        for (const auto error : {cudaErrorLaunchFailure, cudaErrorUnknown}) {
            WithOptions options(seed);
            Stream stream;
            Event event;
            Numbers<int> x(std::vector<int>(SIZE, 7));
            check(cudaDeviceSynchronize());
            emulator::Runtime& runtime = emulator::runtime();
            emulator::options().breaking_work = runtime.works + 2;
            emulator::options().breaks_with = error;
            std::string message;
            try {
                for (int n = 1; n <= 3; n++) add(stream, x.data(), n);
                check(cudaStreamSynchronize(stream));
            } catch (const Error& caught) {
                message = caught.what();
                CHECK(caught.code == Exit::rank);
            }
            CHECK(contains(message, std::string("the GPU reports: ") + cudaGetErrorString(error)));
            std::vector<int> host(SIZE);
            int* more = nullptr;
            for (int n : {1, 2}) CHECK((cudaGetLastError() == error && n));
            CHECK(cudaMemcpy(host.data(), x.data(), sizeof(int) * SIZE, cudaMemcpyDeviceToHost) == error);
            CHECK((cudaMalloc(&more, 4) == error && !more));
            CHECK((cudaEventRecord(event, stream) == error && cudaEventSynchronize(event) == error && cudaEventQuery(event) == error));
            CHECK((cudaStreamSynchronize(stream) == error && cudaDeviceSynchronize() == error && cudaStreamQuery(stream) == error));
            CHECK_THROWS_AS(add(stream, x.data(), 1), Error);
            cudaDeviceSynchronize();   // under some seeds what was given last is still to be dropped
            runtime.broken = cudaSuccess;
            cudaGetLastError();
            CHECK(holds(x, 8));   // what came before was done
        }
}

// ---- memory

TEST_CASE("emulated runtime: what other programs hold is not free, and a GPU has the name that it is given", "[emulator]") {
    WithOptions options(0);
    size_t before = 0, free = 0, total = 0;
    check(cudaMemGetInfo(&before, &total));
    emulator::options().taken_bytes = 1000, emulator::options().name = "other";
    check(cudaMemGetInfo(&free, &total));
    CHECK(free == before - 1000);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    CHECK(std::string(properties.name) == "other");
}

TEST_CASE("emulated runtime: there is as much memory as EMULATED_GPU_BYTES says, on each device", "[emulator]") {
    WithOptions options(0);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    const size_t taken = total - free;   // by what other tests of this program keep
    emulator::options().device_bytes = taken + 10000;
    emulator::options().devices = 2;
    int count = 0;
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
    CHECK(count == 2);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    char *first, *second, *third;
    check(cudaMalloc(&first, 6000));
    CHECK(cudaMalloc(&second, 6000) == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_THROWS_AS(check(cudaMalloc(&second, 6000)), Error);
    cudaGetLastError();   // not for the next test
    check(cudaMemGetInfo(&free, &total));
    CHECK(free == 4000);
    CHECK(total == taken + 10000);
    check(cudaMalloc(&second, 4000));
    check(cudaSetDevice(1));
    check(cudaMalloc(&third, taken + 10000));
    check(cudaSetDevice(0));
    for (char* data : {first, second, third}) check(cudaFree(data));
    check(cudaMemGetInfo(&free, &total));
    CHECK(free == 10000);
}

TEST_CASE("emulated runtime: a machine without a GPU says so", "[emulator]") {
    WithOptions options(0);
    emulator::options().devices = 0;
    int count = 1;
    char* data;
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
    CHECK(count == 0);
    CHECK(cudaMalloc(&data, 1) == cudaErrorNoDevice);
    CHECK(cudaGetDeviceProperties(&properties, 0) == cudaErrorInvalidDevice);
    cudaGetLastError();
}

TEST_CASE("emulated runtime: copies in the wrong direction or past the end are errors", "[emulator]") {
    WithOptions options(0);
    Numbers<int> device(SIZE);
    std::vector<int> host(SIZE + 1);
    const size_t bytes = SIZE * sizeof(int);
    auto says = [&](void* to, const void* from, size_t count, cudaMemcpyKind kind) {
        return complaint([&] { cudaMemcpy(to, from, count, kind); });
    };
    CHECK(says(device.data(), host.data(), bytes, cudaMemcpyHostToDevice) == "");
    CHECK(contains(says(host.data(), device.data(), bytes, cudaMemcpyHostToDevice), "the destination of the copy is not memory"));
    CHECK(contains(says(device.data(), device.data(), bytes, cudaMemcpyDeviceToHost), "the destination of the copy is memory of"));
    CHECK(contains(says(device.data(), host.data(), bytes + 4, cudaMemcpyHostToDevice), "writes bytes 0 to 1028 of the 1024"));
    CHECK(contains(says(host.data(), device.data() + 1, bytes, cudaMemcpyDeviceToHost), "reads bytes 4 to 1028 of the 1024"));
    CHECK(contains(complaint([&] { cudaMemset(device.data() + 200, 0, 1000); }), "writes bytes 800 to 1800"));
    CHECK(contains(complaint([&] { cudaFree(host.data()); }), "frees memory that is not allocated"));
    CHECK(contains(complaint([&] { cudaFree(device.data() + 1); }), "frees memory that is not allocated"));
    int* freed = nullptr;
    check(cudaMalloc(&freed, bytes));
    check(cudaFree(freed));
    CHECK(contains(says(freed, host.data(), bytes, cudaMemcpyHostToDevice), "the destination of the copy is not memory"));
}

// ---- what the host sees, and when

TEST_CASE("emulated runtime: a result is there after the wait, and often not before", "[emulator]") {
    auto read = [](bool wait) {
        Stream stream;
        Pinned result;
        Numbers<int> x(std::vector<int>(SIZE, 1));
        std::memset(result.data, 0, SIZE * sizeof(int));
        add(stream, x.data(), 41);
        check(cudaMemcpyAsync(result.data, x.data(), SIZE * sizeof(int), cudaMemcpyDeviceToHost, stream));
        if (wait) check(cudaStreamSynchronize(stream));
        return result.data[SIZE - 1] == 42;
    };
    CHECK(seeds_where([&] { return read(true); }) == ALL);
    CHECK(seeds_where([&] { return read(false); }) < ALL);
}

TEST_CASE("emulated runtime: a pinned buffer may be filled again only after its copy, a pageable one at once", "[emulator]") {
    auto reuse = [](int* buffer, bool wait) {
        Stream stream;
        Event copied;
        Numbers<int> x(SIZE);
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

TEST_CASE("emulated runtime: who asks an event again and again sees it happen", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Stream stream;
        Event start, end, never;
        Numbers<int> x(std::vector<int>(SIZE, 0));
        check(cudaEventRecord(start, stream));
        for (int n = 0; n < 10; n++) add(stream, x.data(), 1);
        check(cudaEventRecord(end, stream));
        int asked = 0;
        while (cudaEventQuery(end) == cudaErrorNotReady && asked < 100) asked++;
        CHECK(asked < 100);
        if (seed == 1) CHECK(asked == 12);
        float milliseconds = -1;
        CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
        CHECK(milliseconds >= 0);
        CHECK(cudaEventQuery(never) == cudaSuccess);   // nothing was recorded
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {}
        CHECK(holds(x, 10));
        cudaGetLastError();
    }
}

// ---- one stream and another

TEST_CASE("emulated runtime: a stream waits for another one's event, or reads what is not there yet", "[emulator]") {
    auto hand_over = [](bool wait) {
        Stream first, second;
        Event ready;
        Numbers<int> x(std::vector<int>(SIZE, 0)), y(std::vector<int>(SIZE, 0));
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
    };
    CHECK(seeds_where([&] { return hand_over(true); }) == ALL);
    CHECK(seeds_where([&] { return hand_over(false); }) < ALL);
}

TEST_CASE("emulated runtime: a stream may run ahead and overwrite what another still reads", "[emulator]") {
    auto overwrite = [](bool wait) {
        Stream compute, loader;
        Event read;
        Numbers<int> batch(std::vector<int>(SIZE, 1)), result(std::vector<int>(SIZE, 0));
        copy(compute, result.data(), batch.data());
        check(cudaEventRecord(read, compute));
        if (wait) check(cudaStreamWaitEvent(loader, read));
        set(loader, batch.data(), 2);
        check(cudaStreamSynchronize(loader));
        return holds(result, 1);
    };
    CHECK(seeds_where([&] { return overwrite(true); }) == ALL);
    CHECK(seeds_where([&] { return overwrite(false); }) < ALL);
}

TEST_CASE("emulated runtime: stream 0 takes turns with blocking streams only", "[emulator]") {
    auto turns = [](unsigned flags) {
        Stream stream(flags);
        Numbers<int> x(std::vector<int>(SIZE, 0));
        set(nullptr, x.data(), 1);
        add(stream, x.data(), 1);
        set(nullptr, x.data(), x.data() ? 7 : 0);
        add(stream, x.data(), 3);
        check(cudaStreamSynchronize(stream));
        return holds(x, 10);
    };
    CHECK(seeds_where([&] { return turns(cudaStreamDefault); }) == ALL);
    CHECK(seeds_where([&] { return turns(cudaStreamNonBlocking); }) < ALL);
}

TEST_CASE("emulated runtime: host functions run in the order of their stream", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Stream stream;
        std::vector<int> seen;
        for (int n = 0; n < 3; n++)
            check(cudaLaunchHostFunc(stream, [](void* list) { static_cast<std::vector<int>*>(list)->push_back(1); }, &seen));
        if (seed == 1) CHECK(seen.empty());
        check(cudaDeviceSynchronize());
        CHECK(seen.size() == 3);
    }
    Stream stream;
    auto calls_cuda = [](void*) { cudaLaunchHostFunc(nullptr, [](void*) {}, nullptr); };
    auto action = [&] { cudaLaunchHostFunc(stream, calls_cuda, nullptr); };
    CHECK(contains(complaint(action), "may not be called by work of a stream"));
}

TEST_CASE("emulated runtime: after an error the queues are empty, and streams that were destroyed are not used", "[emulator]") {
    WithOptions options(1);
    Stream stream;
    Numbers<int> x(std::vector<int>(SIZE, 0));
    auto out_of_step = [&] {
        launch(GPU{stream}, +[](int) { if (threadIdx.x < 5) __syncthreads(); }, Grid(1), 32, 0, 0);
        add(stream, x.data(), 1);
    };
    CHECK(contains(complaint(out_of_step), "wait for each other for ever"));
    check(cudaStreamSynchronize(stream));
    CHECK(holds(x, 0));
    cudaStream_t gone = nullptr;
    check(cudaStreamCreate(&gone));
    check(cudaStreamDestroy(gone));
    CHECK(contains(complaint([&] { add(gone, x.data(), 1); }), "uses a stream that was destroyed"));
}

}   // namespace
