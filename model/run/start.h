// What a run starts from: what the command line said, the data, and the checkpoint or folder that its weights come from.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/evaluation.h"
#include "data/stream.h"
#include "data/tokenizers/tokenizer.h"
#include "model/operations/adamw.cuh"
#include "model/config.h"
#include "model/device/memory.h"

struct Variant;

/// Everything that can be chosen on the command line; model/train_options.cpp names and explains each.
struct Options {
    std::string device = "auto", precision = "auto", model = "qwen-7m", out, train_data, val_data, checkpoint, prompt, show_mask;
    std::vector<std::string> eval_data;
    std::string eval_out;
    std::string rounding = "nearest", ranks_from = "auto";
    int batch_size = 8, seq_len = 512, val_batches = 20, sample_tokens = 128, keep_checkpoints = 2;
    int threads = 0, zero_stage = 0, recompute = 0, watchdog_seconds = 300;
    int64_t total_batch_tokens = 0, steps = 1000, warmup_steps = -1, val_every = 100, sample_every = 200, checkpoint_every = 200;
    int64_t monitor_every = 0, eval_every = 0, eval_items = 0;
    double epochs = 0, min_lr_frac = 0.1;
    AdamW adamw;
    bool shuffle = true, resume = false, dry_run = false, plot = true, allow_new_tensors = false, evaluate = false;
    uint64_t seed = 1;
    std::map<std::string, double> settings;   // of the variant, by config.json key; only those given
    bool model_given = false;                 // on the command line
    std::string resolved;                     // all of them, as a file for --config
};

/// Fills `o` from the command line of a training program. False when only --help was asked for; Exit::usage for what cannot be.
bool parse_train_options(int argc, char** argv, const Variant& variant, Options& o);

/// The data and how a step is cut out of it.
struct Data {
    std::unique_ptr<TokenStream> train, val;   // train is null with --evaluate, val without validation
    std::unique_ptr<Tokenizer> tokenizer;      // null when unknown
    std::vector<EvaluationTask> tasks;         // of --eval-data
    int64_t tokens_per_step = 0, steps = 0, warmup_steps = 0;
    int micro_steps = 1;
};

/// Without --train-data: the bundled text, for training and for validation, but where --evaluate scores --eval-data. Tells
/// `config` which tokenizer made the shards. Exit::data where shards, tokenizer and model do not belong together, or are too short;
/// Exit::usage where the sizes of a step do not.
Data open_data(const Options& o, int ranks, Config& config);

/// A checkpoint to go on from, a folder of weights to start from, or nothing but a shape.
struct Origin {
    Config config;
    std::optional<std::filesystem::path> resume_from, weights_from;
    std::optional<std::filesystem::path> folder() const { return resume_from ? resume_from : weights_from; }
};

/// What --checkpoint, --resume and --model say, for a program of `variant` with these `settings`; the options' values of them go
/// before those of the folder. Exit::checkpoint where a checkpoint is damaged or another variant's, Exit::usage for another shape
/// and for settings out of range. Notes and warnings are printed by the rank that `speaks`.
Origin find_origin(const Options& o, const std::string& variant, const std::vector<Setting>& settings, bool speaks);

/// Fails with Exit::out_of_memory before anything is allocated when the plan does not fit: `available` bytes are for `sharers`
/// ranks.
void require_memory(const std::vector<MemoryUse>& plan, const Options& o, size_t available, int sharers);
