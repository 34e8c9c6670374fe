// A micro-step makes hundreds of launches, always the same ones: on a GPU they are recorded once as a CUDA graph and replayed.
#pragma once
#include "model/device/device.h"

template <class Device>
class StepGraphs;

/// The CPU has nothing to record.
template <>
class StepGraphs<CPU> {
public:
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

    /// Makes the launches of work(). The first time of a key they run directly, so that libraries can initialise; the second time they are
    /// recorded, and from then on replayed.
    template <class Work>
    void run(GPU device, const void* batch, Write write, Work work) {
        const auto [at, fresh] = graphs_.emplace(std::pair(batch, write), nullptr);
        if (fresh) return work();
        if (!at->second) at->second = recorded(device, work);
        check(cudaGraphLaunch(at->second, device.stream));
    }

private:
    template <class Work>
    static cudaGraphExec_t recorded(GPU device, Work work) {
        check(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
        work();
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        check(cudaStreamEndCapture(device.stream, &graph));
        check(cudaGraphInstantiate(&executable, graph, 0));
        check(cudaGraphDestroy(graph));
        return executable;
    }

    std::map<std::pair<const void*, Write>, cudaGraphExec_t> graphs_;
};
#endif
