// Items of multiple choice with random tokens, whose answers share their contexts.
#pragma once
#include <random>
#include <vector>

#include "data/evaluation.h"

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

inline std::vector<const EvaluationItem*> addresses(const std::vector<EvaluationItem>& items) {
    std::vector<const EvaluationItem*> all;
    for (const EvaluationItem& item : items) all.push_back(&item);
    return all;
}
