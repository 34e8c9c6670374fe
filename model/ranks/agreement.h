// Facts that all ranks of a job must share. A difference would change the mathematics while the job still exits with code 0.
#pragma once
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/ranks/ranks.h"

/// A value that must be the same on every rank.
struct Fact {
    std::string name;    // "--lr", "vocab_size of the model", ...
    std::string value;
    Exit code = Exit::usage;   // exit code of a job whose ranks differ in it
};

inline void append(std::vector<Fact>& facts, const std::vector<Fact>& more) { facts.insert(facts.end(), more.begin(), more.end()); }

/// Every rank must call it, with its own facts. Compares one hash per rank. If hashes differ, finds the lowest differing rank and the first
/// fact in which it differs, and ends the job with one sentence that names rank, fact and both values.
void require_agreement(Ranks& ranks, const std::vector<Fact>& facts);

/// Every rank must call it. The lowest rank whose text is not rank 0's; 0 if all are.
int find_unlike_rank(Ranks& ranks, const std::string& text);
