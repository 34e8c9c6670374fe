// Multiple choice: items that a model answers by how likely it finds each answer behind the item's context. Classification is the
// case in which every item has the same answers, its labels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

/// One answer behind its context, as the model reads them.
struct Answer {
    std::vector<int32_t> tokens;   // context, then answer
    int begin = 0;                 // tokens[begin ..] are the answer; at least one token comes before
    int characters = 0;            // of the answer's text (code points, without the space in front); 0 when there is no text

    int length() const { return int(tokens.size()) - begin; }
};

struct EvaluationItem {
    std::vector<Answer> answers;   // at least two
    int gold = 0;                  // the right one
    int64_t line = 0;              // of a .jsonl file, from 1
};

/// A file of items, and what output and log call it.
struct EvaluationFile {
    std::string path, name;
};

struct EvaluationTask {
    std::string name;                     // as the file's
    std::vector<EvaluationItem> items;
    std::vector<std::string> labels;      // the answers, where all items have the same: classification; else empty
};

/// The files that paths and globs name, each called as the file without folder and ending; those that would have the same name
/// (arc/test.jsonl, piqa/test.jsonl) are called by their paths. Exit::data where nothing matches, Exit::usage when a file is named
/// twice.
std::vector<EvaluationFile> find_evaluation_files(const std::vector<std::string>& globs);

/// Reads the first `limit` items of a file (0: all).
///   .jsonl   one object a line: {"query", "choices": [...], "gold"}: the answers follow the query, behind a space unless the query
///            ends in white space; or {"context_options": [...], "continuation", "gold"}: one text behind several contexts.
///            Context and answer are tokenized together and divided where the context alone ends, spaces between them counted to
///            the answer, as lm-evaluation-harness does. Needs a tokenizer.
///   .bin     llm.c's layout (magic 20240522; data/README.md), 16 or 32 bits
/// Exit::data names file and line (or item) for what is no such item, an id outside the vocabulary, and an item longer than
/// `context` tokens; Exit::usage other endings, and .jsonl without a tokenizer.
EvaluationTask read_evaluation(const EvaluationFile& file, const Tokenizer* tokenizer, int vocabulary, int context, int64_t limit);

/// How well the answers' log-likelihoods do. Of an item, the answer counts that has the greatest
///   sum              of its tokens' log-likelihoods ("acc" of lm-evaluation-harness)
///   token mean       the same, divided by its tokens
///   character mean   the same, divided by its characters ("acc_norm")
/// The first of several equal ones. Standard errors are sqrt(p (1 - p) / (n - 1)).
struct EvaluationScores {
    int64_t items = 0;
    double sum = 0, token_mean = 0, character_mean = 0;          // accuracies; character_mean is NaN without characters
    double sum_error = 0, token_mean_error = 0, character_mean_error = 0;
    double macro_f1 = 0;                                         // of `sum`, over the labels; NaN unless it is a classification
    std::vector<int> chosen;                                     // by sum, per item
};

/// `log_likelihoods` has one number per answer, item after item.
EvaluationScores score(const EvaluationTask& task, const std::vector<float>& log_likelihoods);
