// A micro-step makes hundreds of launches, always the same ones: on a GPU they are recorded once as a CUDA graph and replayed.
//     if (graphs.replays(device, batch, write)) continue;
//     ... the launches ...
//     graphs.end(device);
#pragma once
#include "model/device/device.h"

template <class Device>
class StepGraphs;

/// The CPU has nothing to record.
template <>
class StepGraphs<CPU> {
public:
    bool replays(CPU, const void* /*batch*/, Write) { return false; }
    void end(CPU) {}
    template <class Work>
    void run(CPU, const void* /*batch*/, Write, Work work) {
        work();
    }
};

#ifdef WITH_GPU
#include <map>
#include <utility>

/// One graph per (batch buffer, Write): everything else about a micro-step's launches is constant.
template <>
class StepGraphs<GPU> {
public:
    ~StepGraphs() {
        for (auto& [key, graph] : graphs_)
            if (graph) cudaGraphExecDestroy(graph);
    }

    /// Replays the launches of this key. False if there is no graph yet: the caller makes the launches, then calls end(), whatever
    /// happens between. The first time they run directly, so that libraries can initialise; the second time they are recorded.
    bool replays(GPU device, const void* batch, Write write) {
        const auto [at, fresh] = graphs_.emplace(std::pair(batch, write), nullptr);
        if (fresh) return false;
        if (at->second) return check(cudaGraphLaunch(at->second, device.stream)), true;
        check(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
        recorded_ = &at->second;
        return false;
    }
    void end(GPU device) {
        if (!recorded_) return;
        cudaGraph_t graph;
        check(cudaStreamEndCapture(device.stream, &graph));
        check(cudaGraphInstantiate(recorded_, graph, 0));
        check(cudaGraphDestroy(graph));
        check(cudaGraphLaunch(*std::exchange(recorded_, nullptr), device.stream));
    }

    /// The same around launches in one function.
    template <class Work>
    void run(GPU device, const void* batch, Write write, Work work) {
        if (replays(device, batch, write)) return;
        work();
        end(device);
    }

private:
    std::map<std::pair<const void*, Write>, cudaGraphExec_t> graphs_;
    cudaGraphExec_t* recorded_ = nullptr;   // while launches are recorded
};
#endif
