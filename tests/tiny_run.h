// A run with little to save, and what tests of its checkpoints ask.
#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "tests/errors.h"
#include "tests/shards.h"

namespace fs = std::filesystem;

namespace of_checkpoints {

/// A model in name only: a few tensors of different shapes, padding between two of them.
inline TensorList some_tensors() {
    TensorList list;
    list.add("model.embed_tokens.weight", {16, 4}, normal(0.02), Decay::yes);
    list.add("model.layers.0.self_attn.q_proj.weight", {3, 5}, normal(0.02), Decay::yes);
    list.align();
    list.add("model.norm.weight", {4}, ones(), Decay::no);
    return list;
}

struct TinyRun {
    Config config = preset("qwen-tiny");
    TensorList list = some_tensors();
    std::vector<float> weights = std::vector<float>(list.size()), exp_avg = weights, exp_avg_sq = weights;
    TrainerState state;

    TinyRun() {
        initialise(list, 1, weights.data());
        initialise(list, 2, exp_avg.data());
        initialise(list, 3, exp_avg_sq.data());
        state.tokens = 12345, state.seed = UINT64_MAX, state.data_rows = 77, state.options_json = R"({"--lr":0.1})";
        state.last_loss = 1.0 / 3, state.last_val_loss = std::nan("");
    }
    fs::path save(const fs::path& out_dir, int64_t step) { return save(out_dir, step, open_tokenizer("bytes").get()); }
    fs::path save(const fs::path& out_dir, int64_t step, const Tokenizer* tokenizer, const fs::path& from = {},
                  const RunFacts& facts = {}) {
        state.step = step;
        return save_checkpoint(out_dir, config, list, weights.data(), exp_avg.data(), exp_avg_sq.data(), state, tokenizer, from, facts);
    }
};

/// A run and a folder for it, for TEST_CASE_METHOD.
struct RunFolder {
    TemporaryFolder folder;
    TinyRun run;
    std::vector<std::string> complaints;   // of all calls of latest()

    /// The path that latest_checkpoint() finds, "" for none. Catch2 prints strings better than paths.
    std::string latest(const fs::path& out_dir) { return latest_checkpoint(out_dir, complaints).value_or("").string(); }
};

inline std::string sentence_of(const std::function<void()>& action) { return refusal(Exit::checkpoint, action); }

inline bool contains(const std::string& text, const std::string& part) {
    INFO(text << " should contain " << part);
    CHECK(text.find(part) != std::string::npos);
    return text.find(part) != std::string::npos;
}

}   // namespace of_checkpoints
using namespace of_checkpoints;
