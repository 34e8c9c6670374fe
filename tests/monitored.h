// A small model that a monitor looks at.
#pragma once
#include "tests/whole_model.h"

/// What a monitor sees of a model on its tokens, with weights that `change` has set.
template <class Change>
AttentionReport look_at(Trial<double>& trial, Change change) {
    for (const auto& layer : trial.gpt.net.layers) change(layer);
    Monitor<CPU, double> monitor(trial.B + 1, trial.T + 5, trial.gpt.net);   // room for more than is looked at
    monitor.allocate();
    AttentionReport report;
    for (int look = 0; look < 2; look++) {   // the second is not added to the first
        observed_forward(CPU{}, trial.gpt, trial.feed.put(CPU{}, trial.tokens.data(), nullptr, trial.B, trial.T), monitor);
        report = monitor.take_report();
    }
    return report;
}
