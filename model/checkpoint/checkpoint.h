// A checkpoint is a Hugging Face folder (config.json, model.safetensors, tokenizer files) plus our own optimizer.state, trainer_state.json,
// and manifest.json with the size and hash of every file and tensor. optimizer.state is a safetensors file of the moments; its name
// keeps it from loaders that take every *.safetensors of a folder for weights.
//
// A folder with its final name, step_00000123, is always complete: everything is written to step_00000123.tmp, synced, read back
// and verified, and renamed last. All failures are Exit::checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/base/disk.h"
#include "model/config.h"
#include "model/tensors.h"

/// The state, beside weights and moments, with which a run resumes exactly.
struct TrainerState {
    int64_t step = 0;            // optimiser steps done
    int64_t tokens = 0;          // tokens trained on
    uint64_t seed = 0;           // of initialisation and shuffling: the random state is a function of (seed, step)
    int64_t data_rows = 0;       // rows of T tokens consumed by all ranks: the position in the data
    std::string train_data;      // identity and order of the data (describe_data()); older checkpoints lack it
    std::string options_json;    // the run's resolved options, verbatim
    double last_loss = 0;        // NaN if there was none
    double last_val_loss = 0;    // NaN if there was none
};

/// Facts of a model card that are not elsewhere in the checkpoint.
struct RunFacts {
    std::string pattern;                // Qwen::pattern
    std::string train_data, val_data;   // size, name and fingerprint of each; "" if there are none
};

/// A checkpoint's README.md: a model card in Hugging Face's form.
std::string model_card(const Config& config, const TensorList& list, const float* weights, const TrainerState& state,
                       const RunFacts& facts);

// ------------------------------------------------------------------------------------------------------------------ saving

/// Precondition: `weights` and both moments are flat buffers laid out by `list`. Second moments of Muon's matrices are not saved.
/// Writes and returns out_dir/step_<state.step>. An existing checkpoint of the same step is atomically exchanged for the new one.
/// Leftovers (*.tmp) of runs that died while saving are removed. Checkpoints of later steps are set aside.
/// Tokenizer files: those of `tokenizer`, which config.json then refers to by name, so that the folder can be moved; and those of
/// `tokenizer_from` (the folder the model came from) that belong to the same tokenizer, or all if `tokenizer` is null.
/// README.md is a model card, for people to edit: the manifest does not list it. Models that transformers does not compute itself carry
/// modeling_files().
/// On failure the unfinished folder is removed and all earlier checkpoints are unchanged. `on_piece` is called after each piece that is
/// written, synced or verified, and `on_written` before the folder gets its name, which it may prevent by throwing.
std::filesystem::path save_checkpoint(const std::filesystem::path& out_dir, const Config& config, const TensorList& list,
                                      const float* weights, const float* exp_avg, const float* exp_avg_sq, const TrainerState& state,
                                      const Tokenizer* tokenizer, const std::filesystem::path& tokenizer_from = {},
                                      const RunFacts& facts = {}, const OnPiece& on_piece = {},
                                      const std::function<void()>& on_written = {});

/// Moves the checkpoints of steps after `step` into out_dir/superseded, which --resume ignores. They belong to a run that is abandoned by a
/// fresh one (step < 0: its log and options are linked there, too) or by one from an earlier step. Earlier contents of superseded/ are
/// deleted if there are any to move. The move is atomic by one rename: after an interruption before it, undo_interrupted() restores all
/// checkpoints. Returns their number. Precondition: out_dir is locked.
int set_later_ones_aside(const std::filesystem::path& out_dir, int64_t step);

/// Whether a kill has interrupted that move, so that latest_checkpoint() would not see all checkpoints.
bool aside_interrupted(const std::filesystem::path& out_dir);

/// Moves those checkpoints back. Precondition: out_dir is locked.
void undo_interrupted(const std::filesystem::path& out_dir);

bool is_set_aside(const std::filesystem::path& folder, const std::filesystem::path& out_dir);

/// Removes unfinished files of killed runs in out_dir. Best effort.
void remove_leftovers(const std::filesystem::path& out_dir);

/// Call after save_checkpoint() has returned. Deletes all but the `keep` checkpoints with the highest steps; keep < 1 keeps all.
/// Folders are renamed before they are deleted, so that a half-deleted one is never taken for a checkpoint. Failures are ignored:
/// they must not stop a run.
void prune_checkpoints(const std::filesystem::path& out_dir, int keep);

// ----------------------------------------------------------------------------------------------------------------- finding

/// Verifies every byte against the manifest; errors name the damaged file and, in safetensors files, the tensor.
void verify_checkpoint(const std::filesystem::path& folder, const OnPiece& on_piece = {});

/// The same for one file of a folder, if the folder has our manifest and it lists the file.
void verify_file(const std::filesystem::path& folder, const std::filesystem::path& name);

/// Exit::usage if the file to write of `option` ("" for none) is inside a checkpoint's folder, or is the log or the options of its run.
void require_outside(const char* option, const std::filesystem::path& file, const std::filesystem::path& checkpoint);

/// Exit::checkpoint, naming the newest checkpoint, if `folder` is the output folder of a run.
void require_no_run(const std::filesystem::path& folder);

/// The checkpoint with the highest step that verify_checkpoint() accepts, or nothing if there is none. For each refused one, a
/// sentence is appended to `complaints` and the previous one is tried. One that cannot be read now is Exit::checkpoint.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& out_dir, std::vector<std::string>& complaints);

// ----------------------------------------------------------------------------------------------------------------- loading
// Loading checks names, shapes and values; hashes of weights in our own folders only, since others lack them.

Config load_config(const std::filesystem::path& folder);

/// Whether the folder has more than a config.json: weights, in one file or in parts.
bool has_weights(const std::filesystem::path& folder);

/// Fills `weights` (list.size()), and `matrices` (list.bf16_size()) with what is stored as bf16, from model.safetensors, or from the
/// parts named by model.safetensors.index.json, in F32, BF16, F16 or F64. Missing tensors of a mechanism are initialised from `seed`; in a
/// folder with only config.json all are. Refuses missing and unknown base tensors, other shapes, NaN and infinity, also those that
/// rounding makes, and a tied model's head that is stored with other numbers. Returns the names of the tensors that were initialised.
std::vector<std::string> load_weights(const std::filesystem::path& folder, const TensorList& list, uint64_t seed, float* weights,
                                      StoredBf16* matrices = nullptr);

/// The file of the moments in a checkpoint's folder: optimizer.state, or as before 2026-11-27 optimizer.safetensors.
std::filesystem::path moments_file(const std::filesystem::path& folder);

inline const std::string MOMENTUM_PREFIX = "momentum_buffer.";

/// The name in optimizer.state of a tensor's moment, "exp_avg." or "exp_avg_sq.", as torch's optimisers name it: Muon's matrices have a
/// momentum_buffer, and no second moment, which is "".
std::string name_of_moment(const std::string& prefix, const Tensor& tensor);

/// Loads trainer_state.json and each moment that is not null, which must be complete and of the list's optimiser; where a tensor has
/// none, zeros.
TrainerState load_state(const std::filesystem::path& folder, const TensorList& list, float* exp_avg, float* exp_avg_sq);
