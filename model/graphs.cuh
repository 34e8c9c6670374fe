// A micro-step has some hundred launches, always the same ones: on a GPU they are recorded once and replayed as one.
#pragma once
#include "model/device.h"

template <class Device>
class StepGraphs;

/// On the CPU there is nothing to record.
template <>
class StepGraphs<CPU> {
public:
    template <class Work>
    void run(CPU, const void* /*batch*/, Write, Work work) {
        work();
    }
};
