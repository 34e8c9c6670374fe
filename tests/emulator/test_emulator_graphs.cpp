// The emulated CUDA runtime: graphs.
#include "tests/catch.h"
#include "tests/emulator/streams.h"

namespace {

/// Captures `work` and returns the executable graph.
template <class Work>
cudaGraphExec_t captured(cudaStream_t stream, Work work) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work();
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    check(cudaGraphDestroy(graph));
    return executable;
}

TEST_CASE("emulated runtime: a graph is recorded once and does its work at every launch", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Stream stream;
        Numbers<int> x(std::vector<int>(SIZE, 0));
        int value = 3;
        cudaGraphExec_t graph = captured(stream, [&] {
            add(stream, x.data(), value);
            add(stream, x.data(), 10);
        });
        CHECK(holds(x, 0));   // recorded, not done
        value = 1000;         // arguments were read when they were recorded
        for (int n = 0; n < 4; n++) check(cudaGraphLaunch(graph, stream));
        check(cudaGraphExecDestroy(graph));
        CHECK(holds(x, 52));
    }
}

TEST_CASE("emulated runtime: a graph tells how many operations were recorded", "[emulator]") {
    Stream stream;
    Numbers<int> x(std::vector<int>(SIZE, 0));
    cudaGraph_t graph;
    size_t nodes = 0;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int n = 0; n < 3; n++) add(stream, x.data(), n);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 3);
    check(cudaGraphDestroy(graph));
}

TEST_CASE("emulated runtime: branches of a graph run in any order that its edges allow", "[emulator]") {
    auto branches = [](bool wait) {
        Stream stream, side;
        Event fork, join;
        Numbers<int> x(std::vector<int>(SIZE, 0)), y(std::vector<int>(SIZE, 0));
        cudaGraphExec_t graph = captured(stream, [&] {
            set(stream, x.data(), 1);
            check(cudaEventRecord(fork, stream));
            check(cudaStreamWaitEvent(side, fork));
            add(side, x.data(), 1);
            check(cudaEventRecord(join, side));
            if (wait) check(cudaStreamWaitEvent(stream, join));
            copy(stream, y.data(), x.data());
            check(cudaStreamWaitEvent(stream, join));
        });
        check(cudaGraphLaunch(graph, stream));
        check(cudaStreamSynchronize(stream));
        check(cudaGraphExecDestroy(graph));
        return holds(y, 2);
    };
    CHECK(seeds_where([&] { return branches(true); }) == ALL);
    CHECK(seeds_where([&] { return branches(false); }) < ALL);
}

TEST_CASE("emulated runtime: what a capture does not allow is an error", "[emulator]") {
    WithOptions options(0);
    Stream stream, side;
    Event fork;
    Numbers<int> x(std::vector<int>(SIZE, 0));
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
    CHECK(contains(complaint([&] { cudaStreamEndCapture(stream, &graph); }), "has not been joined again"));
    CHECK(holds(x, 0));
}

}   // namespace
