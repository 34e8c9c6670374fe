// Which documents are for training and which for validation, where that depends on how many there are.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/documents.h"

/// Where training ends and validation begins; no limit where another rule divides.
struct Split {
    uint64_t train_documents = ~uint64_t{0};
    uint64_t train_bytes = ~uint64_t{0};     // of the one document where there is only one
};

/// Called with the number of documents so far; may throw.
using OnDocument = std::function<void(uint64_t)>;

/// Reads all inputs, without tokenizing, for a split that leaves the last `val_fraction` (0 to 1) of the documents for validation,
/// or the last part of the bytes of a single document.
Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const OnDocument& on_document);
