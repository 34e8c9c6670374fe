// A policy for the tests: causal attention plus a statistic that tracks the data and a small auxiliary loss.
//     mean_h <- mean_h - rate (mean_h - average of x_th over the step's tokens t)      the running mean of the first NH channels
//     L_aux = lambda sum_h average of (scale_h x_th)^2 / 2
// With the setting watcher_only they are all that a run changes besides the norms: the rest is frozen.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"

/// Element (b, h) of the auxiliary loss.
template <class X>
struct WatcherLoss {
    Wide<X>* auxiliary;
    const X *scale, *x;
    int T, C, NH;
    Wide<X> lambda;
    constexpr void operator()(unsigned b, int h) const {
        Wide<X> sum = 0;
        for (int t = 0; t < T; t++) {
            const Wide<X> y = widened(scale[h]) * widened(x[(size_t(b) * T + t) * C + h]);
            sum += y * y / 2;
        }
        auxiliary[size_t(b) * NH + h] = lambda * sum;
    }
};
/// The gradients of head h.
template <class X>
struct WatcherBackward {
    Wide<X>*dmean, *dscale;
    X* dx;
    const X *mean, *scale, *x;
    int tokens, C;
    Wide<X> dloss, lambda;
    constexpr void operator()(unsigned, int h) const {
        Wide<X> of_mean = 0, of_scale = 0;
        const Wide<X> s = widened(scale[h]);
        for (int t = 0; t < tokens; t++) {
            const size_t at = size_t(t) * C + h;
            const Wide<X> number = widened(x[at]);
            of_mean += widened(mean[h]) - number;
            of_scale += s * number * number;
            dx[at] = narrowed<X>(widened(dx[at]) + dloss * lambda * s * s * number);
        }
        dmean[h] += dloss * of_mean;
        dscale[h] += dloss * lambda * of_scale;
    }
};

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

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& to) const {
        each_element(device, in.B, NH, WatcherLoss<X>{to.auxiliary, weights + scale.offset, in.x, in.T, in.C, NH, Wide<X>(LAMBDA)});
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        each_element(device, 1, NH,
                     WatcherBackward<X>{g.dweights + mean.offset, g.dweights + scale.offset, g.dx, weights + mean.offset,
                                        weights + scale.offset, in.x, in.B * in.T, in.C, g.dloss, Wide<X>(LAMBDA)});
    }
};
