// The start of a run: the command line's options, the data, and the checkpoint or folder with the weights.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/evaluation.h"
#include "data/mixture.h"
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

// The command line's options, in the groups of --help; model/run/train_options.cpp documents each.
struct ModelOptions {
    std::string model = "qwen-7m", qk_norm = "auto", precision = "auto", rounding = "nearest", checkpoint;
    bool model_given = false, resume = false, allow_new_tensors = false;   // model_given: --model is on the command line
    uint64_t seed = 1;
};
struct DataOptions {
    std::string train_data, val_data;
    int batch_size = 8, seq_len = 512;
    int64_t total_batch_tokens = 0;
    bool shuffle = true, document_mask = false, document_positions = false, verify_data = false;
};
struct ScheduleOptions {
    int64_t steps = 1000, warmup_steps = -1;
    double epochs = 0, min_lr_frac = 0.1, cooldown_frac = 0.2;
    std::string schedule = "cosine", optimizer = "adamw";
    AdamW adamw;
};
struct EvaluationOptions {
    int64_t val_every = 100, eval_every = 0, eval_items = 0, sample_every = 200, monitor_every = 0;
    int val_batches = 20, position_bins = 16, sample_tokens = 128;
    bool evaluate = false;
    std::vector<std::string> eval_data;
    std::string eval_out, eval_log, prompt;
};
struct OutputOptions {
    std::string out, show_mask;
    int64_t checkpoint_every = 200;
    int keep_checkpoints = 2;
    bool plot = true, dry_run = false;
};
struct ParallelOptions {
    std::string device = "auto", attention_kernels = "mma";
    int threads = 0, zero_stage = 0, recompute = 0, watchdog_seconds = 300;
    int64_t check_ranks_every = -1;
};
struct AttentionOptions {
    std::string layers, dense_layers;
    std::map<std::string, double> settings;   // given settings of the variant, by config.json key
    InferenceOptions inference;
};

struct Options : ModelOptions, DataOptions, ScheduleOptions, EvaluationOptions, OutputOptions, ParallelOptions, AttentionOptions {
    std::string resolved;   // all of them, as a file for --config
};

/// Fills `o` from the command line of a training program. False if --help was given; Exit::usage for invalid options.
bool parse_train_options(int argc, char** argv, const Variant& variant, Options& o);

struct Data {
    std::unique_ptr<Mixture> train, val;       // train is null with --evaluate, val without validation
    std::unique_ptr<Tokenizer> tokenizer;      // null if unknown
    std::vector<EvaluationTask> tasks;         // of --eval-data
    int64_t tokens_per_step = 0, steps = 0;
    Schedule schedule;
    int micro_steps = 1;
};

/// Opens the data. Without --train-data this is the bundled text for training and validation, unless --evaluate only scores --eval-data.
/// Sets the tokenizer of `config` to that of the shards. Exit::data if shards, tokenizer and model do not match or the data is too short;
/// Exit::usage if the sizes of a step are inconsistent.
Data open_data(const Options& o, int ranks, Config& config);

/// "--lr 0.002 (0.001), --steps 300 (200)": the options of the schedule and the optimiser that differ from those of a checkpoint, with its
/// values. Both are Options::resolved; "" if none differ.
std::string changes_of_schedule(const std::string& now, const std::string& before);

/// "12345 tokens in 2 shards, NAME"
std::string tokens_of(const Mixture& mixture);

/// Facts on the data and the layers for a checkpoint's model card.
RunFacts facts_of(const Data& data, const std::string& pattern);

/// A checkpoint's description of the training data: identity and order, without the seed.
std::string describe_data(const Mixture& train, bool shuffle);

/// Whether a checkpoint lies in the output folder `out`.
bool is_of_run(const std::filesystem::path& folder, const std::string& out);

/// The document borders in batches under --document-mask and --document-positions. Precondition: open_data() has completed `config`.
DocumentBorders borders(const DataOptions& o, const Config& config);

/// A checkpoint to resume from, a folder of weights to start from, or just a shape.
struct Origin {
    Config config;
    std::optional<std::filesystem::path> resume_from, weights_from;
    std::optional<std::filesystem::path> folder() const { return resume_from ? resume_from : weights_from; }
};

/// The checkpoint selected by --checkpoint or --resume, with every byte verified. None without these options, or with --resume if --out
/// has no checkpoints. Every rank must call it; rank 0 selects and verifies, and the others take its choice. A training run first locks an
/// existing --out, so that another run's ranks are finished there. Exit::checkpoint if the checkpoint, or every one in --out, is damaged.
std::optional<std::filesystem::path> choose_checkpoint(const Options& o, Ranks& ranks, Descriptor& lock);

/// The same for a single process that only reads.
std::optional<std::filesystem::path> chosen_checkpoint(const Options& o);

/// The origin from --model and the selected checkpoint, for a program of these variants. Options override values of the folder.
/// Exit::checkpoint if a checkpoint is of another variant or of other layers; Exit::usage for a different shape, for settings out of range
/// and for a --qk-norm that the weights contradict. Notes and warnings appear on the rank with `prints`.
Origin find_origin(const Options& o, const Variants& variants, const std::optional<std::filesystem::path>& checkpoint, bool prints);

// ---- facts that the ranks of a job must share

/// The program and its options. Left out are options without effect on the mathematics (device, threads, output), and paths, whose
/// contents are compared instead.
std::vector<Fact> facts_of_options(const Options& o, const char* variant);

/// The model's config, the data, their division into steps, and the manifest of the checkpoint that the run starts from.
std::vector<Fact> facts_of_start(const Origin& origin, const Data& data);

/// Exit::out_of_memory, before anything is allocated, if the plan does not fit: `available` bytes are shared by `sharers` ranks.
/// The plan's last line is the memory in use already.
void require_memory(const std::vector<MemoryUse>& plan, const Options& o, size_t available, int sharers);
