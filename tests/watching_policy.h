// A policy for the tests: causal attention plus a statistic that tracks the data and a small auxiliary loss.
//     mean_h <- mean_h - rate (mean_h - average of x_th over the step's tokens t)          the running mean of the first NH
//     channels L_aux = lambda sum_h average of (scale_h x_th)^2 / 2
// With the setting watcher_only they are all that a run changes besides the norms: the rest is frozen.
#pragma once
#include "attention/kernel/layer.h"

#ifdef WITH_GPU
/// Thread h: head h of all sequences.
template <class X>
__global__ void watcher_forward_kernel(float* auxiliary, const X* scale, const X* x, int B, int T, int C, int NH, float lambda) {
    const int h = threadIdx.x;
    if (h >= NH) return;
    for (int b = 0; b < B; b++) {
        float sum = 0;
        for (int t = 0; t < T; t++) {
            const float y = to_float(scale[h]) * to_float(x[(size_t(b) * T + t) * C + h]);
            sum += y * y / 2;
        }
        auxiliary[b * NH + h] = lambda * sum;
    }
}
template <class X>
__global__ void watcher_backward_kernel(float* dmean, float* dscale, X* dx, const X* mean, const X* scale, const X* x, int tokens,
                                        int C, int NH, float dloss, float lambda) {
    const int h = threadIdx.x;
    if (h >= NH) return;
    float of_mean = 0, of_scale = 0;
    const float s = to_float(scale[h]);
    for (int t = 0; t < tokens; t++) {
        const size_t at = size_t(t) * C + h;
        const float number = to_float(x[at]);
        of_mean += to_float(mean[h]) - number;
        of_scale += s * number * number;
        dx[at] = from_float<X>(to_float(dx[at]) + dloss * lambda * s * s * number);
    }
    dmean[h] += dloss * of_mean;
    dscale[h] += dloss * lambda * of_scale;
}
#endif

struct Watcher : Policy {
    static constexpr const char* name = "watcher";
    static constexpr Traits traits{.reads_x = true, .has_auxiliary_loss = true};
    static constexpr double RATE = 0.125, LAMBDA = 0.25;
    Slot mean, scale;   // (NH)
    int NH;
    bool only;

    Watcher(const Config& config, int layer)
        : Policy(config, layer), NH(config.NH), only(config.setting("watcher_only") != 0) {}
    template <class X>
    void naive(const LayerInputs<X>&, const X*, X*) const {}

    static std::vector<Setting> settings() {
        return {{"--watcher-only", "watcher_only", 0, 0, 1, WHOLE, "freeze what is not watched"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        mean = list.add_statistic(prefix + "watcher.mean", {NH}, constant(0.5), RATE);
        scale = list.add(prefix + "watcher.scale", {NH}, ones(), Decay::no);
    }
    bool trains(const std::string& tensor) const {
        return !only || tensor.find("watcher.") != std::string::npos || tensor.find("norm.weight") != std::string::npos;
    }

    template <class X>
    void preprocess(CPU, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        for (int b = 0; b < in.B; b++)
            for (int h = 0; h < NH; h++) {
                X sum = 0;
                for (int t = 0; t < in.T; t++) {
                    const X y = weights[scale.offset + h] * in.x[in.token(b, t) * in.C + h];
                    sum += y * y / 2;
                }
                score_inputs.auxiliary[b * NH + h] = X(LAMBDA) * sum;
            }
    }
    template <class X>
    void preprocess_backward(CPU, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&, ScoreInputGradients<X>& g) const {
        for (int h = 0; h < NH; h++) {
            X of_mean = 0, of_scale = 0;
            const X s = weights[scale.offset + h];
            for (int t = 0; t < in.B * in.T; t++) {
                const size_t at = size_t(t) * in.C + h;
                of_mean += weights[mean.offset + h] - in.x[at];
                of_scale += s * in.x[at] * in.x[at];
                g.dx[at] += g.dloss * X(LAMBDA) * s * s * in.x[at];
            }
            g.dweights[mean.offset + h] += g.dloss * of_mean;
            g.dweights[scale.offset + h] += g.dloss * X(LAMBDA) * of_scale;
        }
    }

#ifdef WITH_GPU
    template <class X>
    void preprocess(GPU device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        launch(device, watcher_forward_kernel<X>, 1, WARP, 0, score_inputs.auxiliary, weights + scale.offset, in.x, in.B, in.T, in.C, NH,
               float(LAMBDA));
    }
    template <class X>
    void preprocess_backward(GPU device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&, ScoreInputGradients<X>& g) const {
        launch(device, watcher_backward_kernel<X>, 1, WARP, 0, g.dweights + mean.offset, g.dweights + scale.offset, g.dx,
               weights + mean.offset, weights + scale.offset, in.x, in.B * in.T, in.C, NH, g.dloss, float(LAMBDA));
    }
#endif
};
