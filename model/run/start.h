// What a run starts from: the command line's options, the data, and the checkpoint or folder with its weights.
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
#include "model/base/disk.h"
#include "model/batch.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/device/memory.h"
#include "model/operations/adamw.cuh"
#include "model/ranks/agreement.h"
#include "model/run/inference_options.h"

struct Variant;
struct Variants;

/// All command-line options; model/run/train_options.cpp documents each.
struct Options {
    std::string device = "auto", precision = "auto", model = "qwen-7m", out, train_data, val_data;
    std::string qk_norm = "auto", layers, dense_layers, checkpoint, prompt, show_mask;
    std::vector<std::string> eval_data;
    std::string eval_out, eval_log;
    std::string rounding = "nearest";
    int batch_size = 8, seq_len = 512, val_batches = 20, sample_tokens = 128, keep_checkpoints = 2;
    int position_bins = 16;
    int mask_layer = -1, threads = 0, zero_stage = 0, recompute = 0, watchdog_seconds = 300;
    int64_t total_batch_tokens = 0, steps = 1000, warmup_steps = -1, val_every = 100, sample_every = 200, checkpoint_every = 200;
    int64_t monitor_every = 0, eval_every = 0, eval_items = 0, check_ranks_every = -1;
    double epochs = 0, min_lr_frac = 0.1;
    AdamW adamw;
    InferenceOptions inference;
    bool document_mask = false, document_positions = false;
    bool shuffle = true, resume = false, dry_run = false, plot = true, verify_data = false, allow_new_tensors = false, evaluate = false;
    uint64_t seed = 1;
    std::map<std::string, double> settings;   // of the variant, by config.json key; only those given
    bool model_given = false;                 // whether --model was given
    std::string resolved;                     // all options, as a file for --config
};

/// Fills `o` from the command line of a training program. False if --help was given; Exit::usage for invalid options.
bool parse_train_options(int argc, char** argv, const Variant& variant, Options& o);

/// The data and its division into steps.
struct Data {
    std::unique_ptr<TokenStream> train, val;   // train is null with --evaluate, val without validation
    std::unique_ptr<Tokenizer> tokenizer;      // null if unknown
    std::vector<EvaluationTask> tasks;         // of --eval-data
    int64_t tokens_per_step = 0, steps = 0, warmup_steps = 0;
    int micro_steps = 1;
};

/// Without --train-data uses the bundled text for training and validation, unless --evaluate only scores --eval-data. Sets the
/// tokenizer of `config` to the shards'. Exit::data if shards, tokenizer and model do not match or the data is too short;
/// Exit::usage if the sizes of a step do not fit together.
Data open_data(const Options& o, int ranks, Config& config);

/// "12345 tokens in 2 shards, NAME"
std::string tokens_of(const TokenStream& stream);

/// What a checkpoint's model card says of the data, and of the layers.
RunFacts facts_of(const Data& data, const std::string& pattern);

/// What a checkpoint says of the training data: which it is, and in which order it comes, but for the seed.
std::string described_data(const TokenStream& train, bool shuffle);

/// Whether a checkpoint's description is of this data in this order; older checkpoints know its ends alone, or nothing.
bool describes_data(const std::string& described, const TokenStream& train, bool shuffle);

/// Whether a checkpoint lies in the output folder `out`.
bool is_of_run(const std::filesystem::path& folder, const std::string& out);

/// How --document-mask and --document-positions have batches told apart. Precondition: open_data() has completed `config`.
DocumentBorders borders(const Options& o, const Config& config);

/// A checkpoint to resume from, a folder of weights to start from, or just a shape.
struct Origin {
    Config config;
    std::optional<std::filesystem::path> resume_from, weights_from;
    std::optional<std::filesystem::path> folder() const { return resume_from ? resume_from : weights_from; }
};

/// The checkpoint that --checkpoint or --resume selects: every byte of it was verified. None without these options, and with --resume
/// where --out has no checkpoint at all. Every rank must call it; rank 0 chooses and verifies, and the others take its choice. A run that
/// trains locks an --out that is there before it looks into it, since what another run's ranks still do there ends with them.
/// Exit::checkpoint if the checkpoint, or every one of --out, is damaged.
std::optional<std::filesystem::path> choose_checkpoint(const Options& o, Ranks& ranks, FolderLock& lock);

/// The same for a process alone that only reads.
std::optional<std::filesystem::path> chosen_checkpoint(const Options& o);

/// The origin that --model and the chosen checkpoint make, for a program of these variants; values given as options override
/// those of the folder. Exit::checkpoint if a checkpoint is another variant's or one of other layers; Exit::usage for
/// another shape, for settings out of range and for --qk-norm where the model cannot have it so. The rank that `prints` prints
/// notes and warnings.
Origin find_origin(const Options& o, const Variants& variants, const std::optional<std::filesystem::path>& checkpoint, bool prints);

// ---- what the ranks of a job must have in common

/// The program and its options, but for those that do not enter the mathematics (device, threads, output) and paths, whose contents
/// are compared instead.
std::vector<Fact> facts_of_options(const Options& o, const char* variant);

/// The model's config, the data, their division into steps, and the manifest of the checkpoint that the run starts from.
std::vector<Fact> facts_of_start(const Origin& origin, const Data& data);

/// Exit::out_of_memory, before anything is allocated, if the plan does not fit: `available` bytes are shared by `sharers` ranks.
/// The plan's last line is what is in use already.
void require_memory(const std::vector<MemoryUse>& plan, const Options& o, size_t available, int sharers);
