// A policy made for the tests: causal attention beside which a statistic watches the data.
//     mean_h <- mean_h - rate (mean_h - average of x_th over the step's tokens t)          the running mean of the first NH channels
// With the setting watcher_only it is all that this run changes besides q_norm and k_norm: the rest is frozen.
#pragma once
#include "attention/core/layer.h"

#ifdef WITH_GPU
/// Thread h: head h.
template <class X>
__global__ void watcher_backward_kernel(float* dmean, const X* mean, const X* x, int tokens, int C, int NH, float dloss) {
    const int h = threadIdx.x;
    if (h >= NH) return;
    float sum = 0;
    for (int t = 0; t < tokens; t++) sum += to_float(mean[h]) - to_float(x[size_t(t) * C + h]);
    dmean[h] += dloss * sum;
}
#endif

struct Watcher : Policy {
    static constexpr const char* name = "watcher";
    static constexpr bool reads_x = true;
    static constexpr double RATE = 0.125;
    Slot mean;   // (NH)
    int NH;
    bool only;

    Watcher(const Config& config, int layer) : Policy(config, layer), NH(config.NH), only(config.setting("watcher_only") != 0) {}

    static std::vector<Setting> settings() { return {{"--watcher-only", "watcher_only", 0, 0, 1, true, "freeze what is not watched"}}; }

    void declare(TensorList& list, const std::string& prefix) {
        mean = list.add_statistic(prefix + "watcher.mean", {NH}, constant(0.5), RATE);
    }
    bool trains(const std::string& tensor) const {
        return !only || tensor.find("watcher.") != std::string::npos || tensor.find("_norm.weight") != std::string::npos;
    }

    template <class X>
    void preprocess_backward(CPU, const LayerInputs<X>& in, const X* weights, const Extras<X>&, ExtraGradients<X>& g) const {
        for (int h = 0; h < in.NH; h++) {
            X sum = 0;
            for (int t = 0; t < in.B * in.T; t++) sum += weights[mean.offset + h] - in.x[size_t(t) * in.C + h];
            g.dweights[mean.offset + h] += g.dloss * sum;
        }
    }
#ifdef WITH_GPU
    template <class X>
    void preprocess_backward(GPU device, const LayerInputs<X>& in, const X* weights, const Extras<X>&, ExtraGradients<X>& g) const {
        launch(device, watcher_backward_kernel<X>, 1, WARP, 0, g.dweights + mean.offset, weights + mean.offset, in.x, in.B * in.T,
               in.C, in.NH, g.dloss);
    }
#endif
};
