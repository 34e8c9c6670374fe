// What all ranks of a job must have in common: every difference in it would give other mathematics, with exit code 0.
#pragma once
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/ranks/ranks.h"

/// A value that must be the same on every rank.
struct Fact {
    std::string name;    // "--lr", "vocab_size of the model", ...
    std::string value;
    Exit code = Exit::usage;   // of a job whose ranks differ in it
};

inline void append(std::vector<Fact>& facts, const std::vector<Fact>& more) { facts.insert(facts.end(), more.begin(), more.end()); }

/// Every rank must call it, with facts of its own. Compares one hash per rank; only if these differ does it look for the first fact in
/// which the lowest rank that differs does so, and ends the job with one sentence that names rank, fact and both values.
void require_agreement(Ranks& ranks, const std::vector<Fact>& facts);
