// Multiple choice: a model answers an item by the likelihood of each answer after the item's context. If all items have the same
// answers, the task is a classification and the answers are its labels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

/// One answer with its context, as tokens.
struct Answer {
    std::vector<int32_t> tokens;   // context, then answer
    int begin = 0;                 // tokens[begin ..] are the answer; at least one token comes before
    int characters = 0;            // of the answer's text (code points, without the leading space); 0 if there is no text

    int length() const { return int(tokens.size()) - begin; }
};

struct EvaluationItem {
    std::vector<Answer> answers;   // at least two
    int gold = 0;                  // index of the correct answer
    int64_t line = 0;              // in a .jsonl file, from 1
};

/// A file of items, and its name in output and log.
struct EvaluationFile {
    std::string path, name;
};

struct EvaluationTask {
    std::string name;                     // the file's
    std::vector<EvaluationItem> items;
    std::vector<std::string> labels;      // the answers that all items of a classification share; else empty
};

/// The files that paths and globs match. A file's name is its stem, or its path if several have the same stem (arc/test.jsonl,
/// piqa/test.jsonl). Exit::data if nothing matches, Exit::usage if a file is given twice.
std::vector<EvaluationFile> find_evaluation_files(const std::vector<std::string>& globs);

/// Reads the first `limit` items of a file (0: all): .jsonl, which needs a tokenizer, or .bin in llm.c's layout; data/README.md describes
/// both. Context and answer are tokenized together and split where the context alone ends; spaces between them belong to the answer, as
/// in lm-evaluation-harness. Exit::data, naming file and line (or item), for malformed items, ids outside the vocabulary, and items longer
/// than `context` tokens; Exit::usage for other extensions, and for .jsonl without a tokenizer.
EvaluationTask read_evaluation(const EvaluationFile& file, const Tokenizer* tokenizer, int vocabulary, int context, int64_t limit);

/// Accuracies and their standard errors, sqrt(p (1 - p) / (n - 1)). The selected answer of an item has the greatest
///   sum              of its tokens' log-likelihoods ("acc" of lm-evaluation-harness)
///   token mean       the sum divided by its tokens
///   character mean   the sum divided by its characters ("acc_norm")
/// or the first of several with equal values.
struct EvaluationScores {
    int64_t items = 0;
    double sum = 0, token_mean = 0, character_mean = 0;          // accuracies; character_mean is NaN without characters
    double sum_error = 0, token_mean_error = 0, character_mean_error = 0;
    double macro_f1 = 0;                                         // of `sum`, over the labels; NaN unless the task is a classification
    std::vector<int> chosen;                                     // by sum, per item
};

/// Precondition: `log_likelihoods` has one value per answer, item by item.
EvaluationScores score(const EvaluationTask& task, const std::vector<float>& log_likelihoods);
