// Items of multiple choice with random tokens, whose answers share their contexts, and what each answer scores by itself.
#pragma once
#include <cmath>
#include <random>
#include <vector>

#include "data/evaluation.h"
#include "model/run/shared_contexts.cuh"
#include "tests/whole_model.h"

/// A context of so many tokens, and answers of so many each.
struct ItemLengths {
    int context;
    std::vector<int> answers;
};

/// Answers of one token and of several, and one item for itself as long as a row of 67 tokens.
inline const std::vector<ItemLengths> MIXED_ITEMS = {{13, {1, 3}}, {64, {2, 1, 4}}, {1, {1, 1}}, {1, {5, 67}}};

inline std::vector<EvaluationItem> random_items(const std::vector<ItemLengths>& lengths, int vocabulary) {
    std::mt19937 generator(7);
    const auto more = [&](std::vector<int32_t> ids, int count) {
        for (int n = 0; n < count; n++) ids.push_back(int32_t(generator() % vocabulary));
        return ids;
    };
    std::vector<EvaluationItem> items;
    for (const ItemLengths& item : lengths) {
        const std::vector<int32_t> context = more({}, item.context);
        items.push_back({});
        for (const int length : item.answers) items.back().answers.push_back({more(context, length), item.context, 1});
    }
    return items;
}

/// An answer's log-likelihood from logits (length, V), of which row n predicts its token n.
template <class X>
double log_likelihood(const Answer& answer, const X* logits, int V) {
    double sum = 0;
    for (int n = 0; n < answer.length(); n++) {
        const X* row = logits + size_t(n) * V;
        double total = 0;
        for (int v = 0; v < V; v++) total += std::exp(double(row[v]));
        sum += row[answer.tokens[size_t(answer.begin + n)]] - std::log(total);
    }
    return sum;
}

/// One log-likelihood per answer, from the logits of a pass of its own.
template <class X>
std::vector<double> one_by_one(Trial<X>& trial, const std::vector<EvaluationItem>& items) {
    const int V = trial.gpt.net.config.V;
    std::vector<double> found;
    for (const EvaluationItem& item : items)
        for (const Answer& answer : item.answers) {
            const int T = int(answer.tokens.size()) - 1;
            trial.gpt.forward(CPU{}, trial.feed.put(CPU{}, answer.tokens.data(), nullptr, 1, T));
            found.push_back(log_likelihood(answer, trial.gpt.logits(CPU{}, 0, T) + size_t(answer.begin - 1) * V, V));
        }
    return found;
}
