// A checkpoint is a Hugging Face folder (config.json, model.safetensors, tokenizer files) to which our own files are added:
// optimizer.safetensors, trainer_state.json, and manifest.json with the size and hash of every file and tensor.
//
// A folder under its final name, step_00000123, is always complete: everything is written into step_00000123.tmp, forced to the
// disk, read back and compared, and renamed last. All failures are Exit::checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/config.h"
#include "model/tensors.h"

/// What a run needs besides weights and moments to go on as if it had never stopped.
struct TrainerState {
    int64_t step = 0;            // optimiser steps done
    int64_t tokens = 0;          // tokens trained on
    uint64_t seed = 0;           // of initialisation and shuffling: the random state is a function of (seed, step)
    int64_t data_rows = 0;       // rows of T tokens consumed by all ranks together: the position in the data
    std::string options_json;    // the resolved options of the run, kept as they are
    double last_loss = 0;        // NaN where there was none
    double last_val_loss = 0;    // NaN where there was none
};

// ------------------------------------------------------------------------------------------------------------------ saving

/// Writes out_dir/step_<state.step> and returns its path. `weights` and both moments are flat buffers laid out by `list`.
/// Free space is checked first. An existing checkpoint of the same step is exchanged for the new one in one operation.
/// Leftovers (*.tmp) of runs that died while saving are removed. Checkpoints of LATER steps belong to a run that this one has
/// left behind (it started anew, or further back); they are kept as step_<N>.superseded, where resuming does not look.
/// Tokenizer files: those of `tokenizer`, to which config.json then refers by name, so that the folder can be moved. Of
/// `tokenizer_from` (the folder the model came from) those that belong to the same tokenizer, or all when `tokenizer` is null.
/// On failure the unfinished folder is removed and every earlier checkpoint is as it was.
std::filesystem::path save_checkpoint(const std::filesystem::path& out_dir, const Config& config, const TensorList& list,
                                      const float* weights, const float* exp_avg, const float* exp_avg_sq,
                                      const TrainerState& state, const Tokenizer* tokenizer,
                                      const std::filesystem::path& tokenizer_from = {});

/// Deletes all but the `keep` checkpoints of the highest steps; keep < 1 keeps all. Call it after save_checkpoint returned.
/// A folder loses its name before its files, so that a half-deleted one is never taken for a checkpoint. What cannot be
/// deleted stays: that must not stop a run.
void prune_checkpoints(const std::filesystem::path& out_dir, int keep);

// ----------------------------------------------------------------------------------------------------------------- finding

/// Reads every byte and compares it with the manifest; names the file, and in safetensors files the tensor, that is damaged.
void verify_checkpoint(const std::filesystem::path& folder);

/// The checkpoint of the highest step that verify_checkpoint accepts. For each one that it refuses, a sentence is appended to
/// `complaints` and the one before is tried. Nothing when there is none (or no out_dir).
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& out_dir, std::vector<std::string>& complaints);

// ----------------------------------------------------------------------------------------------------------------- loading
// Loading checks names, shapes and numbers, not hashes, for folders of other programs have none; verify ours before.

Config load_config(const std::filesystem::path& folder);

struct LoadReport {
    std::vector<std::string> initialised;   // tensors that the folder lacks
};

/// Fills `weights` (list.size() numbers) from model.safetensors, or from the parts that model.safetensors.index.json names, in
/// F32, BF16, F16 or F64. Tensors that the folder lacks are initialised from `seed`; a folder with config.json alone gives a
/// fresh model. Refused: a tensor that the model does not know, another shape, NaN and infinity.
LoadReport load_weights(const std::filesystem::path& folder, const TensorList& list, uint64_t seed, float* weights);

/// trainer_state.json and those moments that are not null, which must be there in full.
TrainerState load_state(const std::filesystem::path& folder, const TensorList& list, float* exp_avg, float* exp_avg_sq);
