// Items of multiple choice with random tokens, whose answers share their contexts, and what each answer scores by itself.
#pragma once
#include <random>
#include <vector>

#include "data/evaluation.h"
#include "model/run/log_likelihoods.cuh"
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

/// One log-likelihood per answer, each by a pass of its own.
template <class X>
std::vector<double> one_by_one(Trial<X>& trial, const std::vector<EvaluationItem>& items) {
    std::vector<double> found;
    for (const EvaluationItem& item : items)
        for (const Answer& answer : item.answers) found.push_back(log_likelihoods(CPU{}, trial.gpt, trial.feed, {&answer}).front());
    return found;
}

inline std::vector<const EvaluationItem*> addresses(const std::vector<EvaluationItem>& items) {
    std::vector<const EvaluationItem*> all;
    for (const EvaluationItem& item : items) all.push_back(&item);
    return all;
}
