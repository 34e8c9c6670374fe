// A training run around the loop of train_gpt.cu: what the command line can say, where the run begins, its data, its checkpoints
// and its log.
#pragma once
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "data/evaluation.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/collectives.cuh"
#include "model/disk.h"
#include "model/feed.cuh"
#include "model/gpt.cuh"
#include "model/graphs.cuh"
#include "model/log_likelihoods.cuh"
#include "model/machine.cuh"
#include "model/ranks.h"
#include "model/report.h"
#include "model/summary.h"

/// Everything that can be chosen on the command line; train_gpt.cu names and explains each.
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

/// Cross-entropy on the validation shards.
struct Validation {
    double loss = NAN;            // nats per token
    double bits_per_byte = NAN;   // NaN when the tokenizer is unknown
};

// ---------------------------------------------------------------------------------------------------------------------- data

/// The data and how a step is cut out of it.
struct Data {
    std::unique_ptr<TokenStream> train, val;   // train is null with --evaluate, val without validation
    std::unique_ptr<Tokenizer> tokenizer;      // null when unknown
    std::vector<EvaluationTask> tasks;         // of --eval-data
    int64_t tokens_per_step = 0, steps = 0, warmup_steps = 0;
    int micro_steps = 1;
};

/// `path` for glob(): its own * ? [ and backslash stand for themselves.
inline std::string without_wildcards(const std::string& path) {
    std::string escaped;
    for (char c : path) {
        if (std::string("*?[\\").find(c) != std::string::npos) escaped += '\\';
        escaped += c;
    }
    return escaped;
}

/// Without --train-data: the bundled text, for training and for validation. Tells `config` which tokenizer made the shards.
inline Data open_data(const Options& o, int ranks, Config& config) {
    if (int64_t(o.batch_size) * o.seq_len > (1 << 28))
        fail(Exit::usage, "--batch-size ", o.batch_size, " x --seq-len ", o.seq_len,
             " is more than 2^28 tokens in one micro-step; use --total-batch-tokens");
    const std::vector<EvaluationFile> evaluation_files = find_evaluation_files(o.eval_data);
    std::error_code unknown;   // --eval-out need not be there yet
    for (const EvaluationFile& file : evaluation_files)
        if (std::filesystem::equivalent(file.path, o.eval_out, unknown))
            fail(Exit::usage, "--eval-out ", o.eval_out, " is one of --eval-data");
    Data data;
    const std::string bundled = without_wildcards(program_folder()) + "/data/bundled/sotu_";
    const bool own_text = o.val_data.empty() && o.train_data.empty() && (!o.evaluate || config.tokenizer == "bytes");
    const std::string val = own_text ? bundled + "val_*.bin" : o.val_data;
    if (!o.evaluate)
        data.train = std::make_unique<TokenStream>(o.train_data.empty() ? bundled + "train_*.bin" : o.train_data, config.V);
    if (!val.empty() && o.val_every) data.val = std::make_unique<TokenStream>(val, config.V);
    const int64_t micro_batch = int64_t(o.batch_size) * o.seq_len * ranks;
    const int64_t fewest = o.evaluate ? 1 : int64_t(o.batch_size) * ranks;   // rows; all ranks need not have one to evaluate
    if (data.val && windows(*data.val, o.seq_len) < fewest)
        fail(Exit::data, data.val->name(), ": ", data.val->size(), " tokens are less than one validation batch of ",
             fewest * o.seq_len, " tokens and the one behind it; lower --batch-size or --seq-len, or set --val-every 0");
    if (data.train && !config.tokenizer.empty() && !data.train->tokenizer().empty() &&
        !same_tokenizer(data.train->tokenizer(), config.tokenizer))
        fail(Exit::data, data.train->name(), ": was made with the tokenizer ", data.train->tokenizer(), ", and the model's is ",
             config.tokenizer, "; make shards with it (./tokenize --tokenizer) and give them as --train-data and --val-data");
    std::string made_by = data.train ? data.train->tokenizer() : config.tokenizer;   // "" where nothing says
    if (data.val && !made_by.empty() && !data.val->tokenizer().empty() && !same_tokenizer(data.val->tokenizer(), made_by))
        fail(Exit::data, data.val->name(), ": was made with the tokenizer ", data.val->tokenizer(), ", and ",
             data.train ? data.train->name() : "the model", " with ", made_by);
    if (!data.train && made_by.empty() && data.val) made_by = data.val->tokenizer();
    if (!made_by.empty()) config.tokenizer = made_by;
    if (!config.tokenizer.empty()) data.tokenizer = open_tokenizer(config.tokenizer, config.V);
    if (data.tokenizer) config.end_of_text = int(data.tokenizer->end_of_text());
    for (const EvaluationFile& file : evaluation_files)
        data.tasks.push_back(read_evaluation(file, data.tokenizer.get(), config.V, o.seq_len, o.eval_items));
    if (!data.train) return data;

    data.tokens_per_step = o.total_batch_tokens ? o.total_batch_tokens : micro_batch;
    if (data.tokens_per_step % micro_batch)
        fail(Exit::usage, "--total-batch-tokens ", data.tokens_per_step,
             " is not a multiple of batch-size x seq-len x ranks = ", o.batch_size, " x ", o.seq_len, " x ", ranks, " = ",
             micro_batch);
    data.micro_steps = int(data.tokens_per_step / micro_batch);
    const double steps_of_epochs = std::ceil(o.epochs * double(data.train->size()) / double(data.tokens_per_step));
    data.steps = o.epochs > 0 ? std::max<int64_t>(1, std::llround(steps_of_epochs)) : o.steps;
    data.warmup_steps = o.warmup_steps >= 0 ? o.warmup_steps : data.steps / 20;
    return data;
}

// ------------------------------------------------------------------------------------------------------------- where it begins

/// A checkpoint to go on from, a folder of weights to start from, or nothing but a shape.
struct Origin {
    Config config;
    std::optional<std::filesystem::path> resume_from, weights_from;
    std::optional<std::filesystem::path> folder() const { return resume_from ? resume_from : weights_from; }
};

/// The newest sound checkpoint of --out, or none when there has never been one. Damaged ones are named on stderr.
inline std::optional<std::filesystem::path> find_checkpoint(const std::string& out, bool speaks) {
    std::vector<std::string> complaints;
    const auto found = latest_checkpoint(out, complaints);
    for (const std::string& complaint : complaints)
        if (speaks) std::cerr << "warning: " << complaint << "\n";
    if (!found && !complaints.empty())
        fail(Exit::checkpoint, out, ": no sound checkpoint is left to resume from; give another --out to start anew");
    if (!found && speaks) std::cerr << "note: no checkpoint in " << out << "; starting at step 0\n";
    return found;
}

/// A run goes on with the shape that it has: another --model is a mistake.
inline void require_shape(const Origin& origin, const Config& wanted, const std::string& name) {
    const Config& c = origin.config;
    const bool same = c.V == wanted.V && c.C == wanted.C && c.L == wanted.L && c.NH == wanted.NH && c.NKV == wanted.NKV &&
                      c.HS == wanted.HS && c.F == wanted.F;
    if (!same)
        fail(Exit::usage, "--model ", name, " has another shape than ", origin.resume_from->string(),
             "; leave --model out, or give another --out to start anew");
}

/// A folder that names another variant is taken for its weights alone, and only when the user says so: the variant's own tensors
/// then start anew, and so do the moments and the count of steps.
inline void require_variant(Origin& origin, const std::string& variant, bool allow_new_tensors, bool speaks) {
    if (!origin.folder() || !origin.config.names_variant || origin.config.variant == variant) return;
    const std::string folder = origin.folder()->string(), other = origin.config.variant;
    if (!allow_new_tensors)
        fail(Exit::checkpoint, folder, ": is a checkpoint of ", other, ", and this program trains ", variant, "; use ./train_",
             other, ", or give --allow-new-tensors to start ", variant, " from its weights");
    if (speaks)
        std::cout << "note: " << folder << " is a checkpoint of " << other << "; " << variant << " starts from its weights\n";
    origin.weights_from = origin.folder();
    origin.resume_from.reset();
}

inline Origin find_origin(const Options& o, const std::string& variant, bool speaks) {
    Origin origin;
    if (!o.checkpoint.empty()) {
        if (!std::filesystem::exists(std::filesystem::path(o.checkpoint) / "manifest.json"))
            fail(Exit::checkpoint, o.checkpoint,
                 ": is no checkpoint of this program (it has no manifest.json); give one of a run's step_* folders, or start from "
                 "it with --model");
        verify_checkpoint(o.checkpoint);
        origin.resume_from = o.checkpoint;
    }
    if (o.resume) origin.resume_from = find_checkpoint(o.out, speaks);
    if (!origin.resume_from && !is_preset(o.model) && std::filesystem::is_directory(o.model)) origin.weights_from = o.model;
    origin.config = origin.folder() ? load_config(*origin.folder()) : preset(o.model);
    if (origin.resume_from && o.model_given && !std::filesystem::is_directory(o.model))
        require_shape(origin, preset(o.model), o.model);
    require_variant(origin, variant, o.allow_new_tensors, speaks);
    for (const auto& [key, value] : o.settings) origin.config.settings[key] = value;
    origin.config.max_positions =
        std::max(origin.config.max_positions, o.seq_len);   // RoPE has no end; the checkpoint says how far it was trained
    return origin;
}

/// Weights, and when a run is resumed the moments too (this rank's shard of them); returns what the run had reached. Everything
/// comes in whole through the memory of the gradients, which hold nothing yet.
template <class Device, class X, class A>
TrainerState load_or_initialise(Device device, GPT<Device, X, A>& gpt, const Origin& origin, const Options& o, bool speaks) {
    const TensorList& list = gpt.net.tensors;
    const size_t owned = gpt.owned_end - gpt.owned_begin;
    HostView<Device> whole(device, gpt.gradients, list.size());
    auto take_owned = [&](Wide<X>* to) { whole.push(), convert(device, to, gpt.gradients + gpt.owned_begin, owned); };
    auto take_weights = [&] {
        take_owned(gpt.master);
        convert(device, gpt.weights, gpt.gradients, list.size());
        gpt_weights_loaded(device, gpt);
    };
    TrainerState state;
    state.seed = o.seed;
    state.last_val_loss = NAN;
    if (!origin.folder()) {
        initialise(list, o.seed, whole.data());
        start_sigma(gpt.net, whole.data(), [](const std::string&) { return true; });
        take_weights();
        return state;
    }
    const std::string folder = origin.folder()->string();
    const LoadReport report = load_weights(folder, list, o.seed, whole.data());
    const std::set<std::string> fresh(report.initialised.begin(), report.initialised.end());
    start_sigma(gpt.net, whole.data(), [&](const std::string& name) { return fresh.contains(name); });
    take_weights();
    if (speaks && !report.initialised.empty())
        std::cout << folder << " lacks " << report.initialised.size()
                  << " tensors, initialised from the seed: " << report.initialised.front()
                  << (report.initialised.size() > 1 ? ", ...\n" : "\n");
    if (!origin.resume_from) return state;
    if (!report.initialised.empty())
        fail(Exit::checkpoint, folder, ": lacks ", report.initialised.front(),
             ", so the run cannot go on from it; start from it with --model");
    state = load_state(folder, list, whole.data(), nullptr);
    take_owned(gpt.m);
    load_state(folder, list, nullptr, whole.data());
    take_owned(gpt.v);
    if (state.seed != o.seed)
        fail(Exit::usage, "--seed ", o.seed, " is not the ", state.seed, " that ", folder,
             " was made with; the data would come in another order");
    return state;
}

/// Fails with Exit::out_of_memory before anything is allocated when the plan does not fit.
inline void require_memory(const std::vector<MemoryUse>& plan, const Options& o, size_t available, int sharers) {
    const size_t needed = total_bytes(plan);
    if (needed <= available / sharers) return;
    fail(Exit::out_of_memory, "training needs ", human_bytes(double(needed)), " on each of ", sharers,
         " ranks and the device has ", human_bytes(double(available)), " left: lower --batch-size or --seq-len",
         o.recompute == 2 ? "" : o.recompute ? ", or set --recompute 2" : ", or set --recompute 1 or 2",
         o.zero_stage || sharers == 1 ? "" : ", or --zero-stage 1");
}

// ------------------------------------------------------------------------------------------------------------------- the run

/// What the loop carries from step to step.
template <class Device, class X, class A>
struct Run {
    Device device;
    const Options& o;
    Ranks& ranks;
    Data data;
    GPT<Device, X, A> gpt;
    Feed<Device> feed;
    Monitor<Device, X> monitor;   // on rank 0, where it is asked for
    std::optional<Collectives<Device>> collectives;   // from begin() on
    StepGraphs<Device> graphs;
    TrainerState state;   // after the last step
    Validation validation;
    FolderLock lock;   // of the output folder, on rank 0
    JsonLines log;
    Progress progress;
    CollapseWatch collapse;
    Flops flops;               // of a step, counted once
    double ceiling = 0;        // measured FLOP/s of all ranks
    int64_t first_step = 0;                    // that this process does, from 1
    Stopwatch since_start, since_step;

    Run(Device device_, const Options& o_, Ranks& ranks_, Data data_, const Config& config)
        : device(device_),
          o(o_),
          ranks(ranks_),
          data(std::move(data_)),
          gpt(config, o.batch_size, o.seq_len, o.evaluate ? Mode::inference : Mode::training, Recompute(o.recompute),
              o.zero_stage && !o.evaluate ? ranks.rank() : 0, o.zero_stage && !o.evaluate ? ranks.size() : 1),
          feed(o.batch_size, o.seq_len, config.V),
          monitor(o.monitor_every && ranks.first() ? o.batch_size : 0, o.seq_len, config.NH),
          progress(ranks.first(), ranks.launched()),
          flops(count_flops(gpt.net, o.seq_len)) {
        require_sizes(device, config);
    }

    /// The model's plan and what this run needs beside it.
    std::vector<MemoryUse> memory_plan() const {
        std::vector<MemoryUse> plan = gpt.memory_plan();
        plan.push_back({"batches", feed.bytes()});
        if (monitor.bytes()) plan.push_back({"attention monitor", monitor.bytes()});
        if (shares_contexts()) plan.push_back({"contexts of answers", SharedContexts<X, A>::bytes(gpt.net.config, gpt.B, gpt.T)});
        add_overheads(device, plan, gpt.sharded() ? 2 * sizeof(float) * gpt.net.tensors.size() : 0, ranks.launched());
        return plan;
    }

    /// Whether answers to an item can go on from one computation of its context.
    bool shares_contexts() const {
        if (data.tasks.empty() || !std::is_same_v<Device, CPU>) return false;
        const auto can_share = [](const auto& layer) { return can_decode_from_cache(layer.attention); };
        return std::all_of(gpt.net.layers.begin(), gpt.net.layers.end(), can_share);
    }

    bool due(int64_t every, bool last) const { return every && (state.step % every == 0 || last); }
    bool evaluation_due(bool last) const { return !data.tasks.empty() && (last || due(o.eval_every, false)); }
};

/// Gets memory and weights, makes the output folder with the run's options and its log, whose first record is the configuration.
template <class Device, class X, class A>
void begin(Run<Device, X, A>& run, const Origin& origin) {
    const Options& o = run.o;
    require_memory(run.memory_plan(), o, available_memory(run.device), ranks_per_device(run.device, run.ranks.local_size()));
    run.collectives.emplace(run.device, run.ranks);   // first: NCCL takes memory of its own
    run.gpt.allocate(run.device);
    run.feed.allocate(run.device);
    run.monitor.allocate();
    run.state = load_or_initialise(run.device, run.gpt, origin, o, run.ranks.first());
    fill(run.device, run.gpt.gradients, run.gpt.net.tensors.size(), 0.0f);   // what no backward pass writes stays zero
    run.validation.loss = run.state.last_val_loss;
    run.first_step = run.state.step + 1;
    if (run.state.step > run.data.steps)
        fail(Exit::usage, origin.resume_from->string(), ": has ", run.state.step, " steps behind it, more than --steps ",
             run.data.steps);
    const int64_t rows = run.state.step * (run.data.tokens_per_step / o.seq_len);
    if (run.state.data_rows != rows)
        fail(Exit::usage, origin.resume_from->string(), ": has read ", run.state.data_rows, " rows of data in ", run.state.step,
             " steps, but with these options it would have been ", rows,
             "; resume with the same --batch-size, --seq-len, --total-batch-tokens and ranks in product");
    run.ceiling = measure_matmul(run.device) * run.ranks.size();
    if (!run.ranks.first()) return;
    std::error_code error;
    std::filesystem::create_directories(o.out, error);
    if (error) fail(Exit::checkpoint, o.out, ": cannot be made (", error.message(), "); choose another --out");
    run.lock = FolderLock(o.out);
    const bool same_run =
        origin.resume_from &&
        std::filesystem::equivalent(std::filesystem::absolute(*origin.resume_from).lexically_normal().parent_path(), o.out, error);
    run.log = JsonLines(o.out + "/log.jsonl", same_run ? run.state.step : -1);
    std::ofstream(o.out + "/options.toml") << o.resolved;
    run.log.write({{"event", "config"},
                   {"step", run.state.step},
                   {"variant", A::name},
                   {"parameters", int64_t(run.gpt.net.tensors.parameters())},
                   {"ranks", int64_t(run.ranks.size())},
                   {"options", o.resolved}},
                  "model", config_to_json(run.gpt.net.config));
}

/// Prints and logs the step that run.state has just been moved to. `auxiliary` is the mean of the policy's own loss.
template <class Device, class X, class A>
void report_step(Run<Device, X, A>& run, double norm, double lr, double auxiliary) {
    const TrainerState& s = run.state;
    const double seconds = run.since_step.lap(), rate = double(run.data.tokens_per_step) / seconds,
                 flops = rate * run.flops.per_token;
    run.progress.step({s.step, run.data.steps, s.tokens, s.last_loss, norm, lr, seconds, rate, flops, flops / run.ceiling},
                      s.step - run.first_step + 1);
    std::vector<JsonLines::Field> fields = {{"step", s.step},
                                            {"tokens", s.tokens},
                                            {"loss", s.last_loss},
                                            {"grad_norm", norm},
                                            {"lr", lr},
                                            {"ms", seconds * 1e3},
                                            {"tok_s", rate},
                                            {"mfu", flops / run.ceiling}};
    if (A::has_auxiliary_loss) fields.push_back({"aux_loss", auxiliary});
    run.log.write(fields);
}

/// An array of the whole list on the host of rank 0, from the part of it that each rank holds in its device's memory.
template <class Device>
class Whole {
public:
    template <class X, class A>
    Whole(Run<Device, X, A>& run, float* owned, bool is_whole)
        : mine_(run.device, owned, is_whole ? run.gpt.net.tensors.size() : run.gpt.owned_end - run.gpt.owned_begin) {
        mine_.pull();
        if (is_whole) return;
        if (run.ranks.first()) gathered_.resize(run.gpt.net.tensors.size());
        run.ranks.gather_shards(mine_.data(), gathered_.data(), run.gpt.net.tensors.size());
    }
    const float* data() { return gathered_.empty() ? mine_.data() : gathered_.data(); }

private:
    HostView<Device> mine_;
    std::vector<float> gathered_;
};

/// The weights in full precision. Every rank must call it.
template <class Device, class X, class A>
Whole<Device> whole_weights(Run<Device, X, A>& run) {
    if constexpr (!GPT<Device, X, A>::rounds)
        if (!run.gpt.keeps_master()) return {run, run.gpt.weights, true};
    return {run, run.gpt.master, !run.gpt.sharded()};
}

/// Saves a checkpoint. One that cannot be written costs the run a warning; the last one its exit code.
template <class Device, class X, class A>
void save(Run<Device, X, A>& run, bool last) {
    const Options& o = run.o;
    auto& gpt = run.gpt;
    run.ranks.at("saving a checkpoint", run.state.step);
    if (!run.ranks.first() && !gpt.sharded()) return;
    Whole<Device> weights = whole_weights(run), m(run, gpt.m, !gpt.sharded()), v(run, gpt.v, !gpt.sharded());
    if (!run.ranks.first()) return;
    try {
        const std::filesystem::path tokenizer_from = std::filesystem::is_directory(o.model) ? o.model : "";
        const auto path = save_checkpoint(o.out, gpt.net.config, gpt.net.tensors, weights.data(), m.data(), v.data(), run.state,
                                          run.data.tokenizer.get(), tokenizer_from);
        prune_checkpoints(o.out, o.keep_checkpoints);
        run.log.write({{"event", "checkpoint"}, {"step", run.state.step}, {"path", path.string()}});
        run.progress.say("checkpoint " + path.string());
    } catch (const Error& error) {
        if (last) throw;
        run.progress.say(text("no checkpoint at step %lld, earlier ones are as they were", static_cast<long long>(run.state.step)));
        std::cerr << "warning: " << error.what() << std::endl;
    }
}

/// Waits for all ranks, then writes the last line, the last record and the loss curve.
template <class Device, class X, class A>
Exit finish(Run<Device, X, A>& run, bool stopped) {
    run.ranks.at("finishing", run.state.step);
    run.ranks.barrier();
    const Exit result = stopped ? Exit::signal : Exit::done;
    Whole<Device> weights = whole_weights(run);
    if (!run.ranks.first()) return result;
    const auto step = static_cast<long long>(run.state.step);
    if (stopped) {
        run.progress.say(text("stopped by a signal after step %lld; %s", step,
                              run.o.checkpoint_every ? "--resume goes on" : "nothing was saved, as --checkpoint-every is 0"));
        return result;
    }
    const std::string hash = text("%016llx", static_cast<unsigned long long>(weights_hash(run.gpt.net.tensors, weights.data())));
    const double seconds = run.since_start.seconds();
    run.log.write({{"event", "done"},
                   {"step", run.state.step},
                   {"loss", run.state.last_loss},
                   {"val_loss", run.validation.loss},
                   {"weights_hash", hash},
                   {"peak_bytes", int64_t(peak_memory(run.device))},
                   {"seconds", seconds}});
    if (run.o.plot) plot("plot_loss.py", run.o.out + "/log.jsonl", run.o.out + "/loss.png");
    if (run.o.plot && run.o.monitor_every) plot("plot_attention.py", run.o.out + "/log.jsonl", run.o.out + "/attention.png");
    const std::string validation = std::isnan(run.validation.loss) ? "" : text(", validation %.4f", run.validation.loss);
    run.progress.say(text("done: step %lld, loss %.4f%s, peak memory %s, %s, weights hash %s", step, run.state.last_loss,
                          validation.c_str(), human_bytes(double(peak_memory(run.device))).c_str(), human_seconds(seconds).c_str(),
                          hash.c_str()));
    return result;
}

/// The tables of a run that trains.
template <class Device, class X, class A>
void print_training(const Run<Device, X, A>& run, int threads) {
    const Options& o = run.o;
    const Data& data = run.data;
    auto tokens_of = [](const TokenStream& stream) {
        return text("%llu tokens in %zu shards, %s", static_cast<unsigned long long>(stream.size()), stream.shards(),
                    stream.name().c_str());
    };
    print_table(
        "data",
        {{"training", tokens_of(*data.train)},
         {"validation", data.val ? tokens_of(*data.val) : "none"},
         {"tokenizer", data.tokenizer ? data.tokenizer->name() : "unknown: no samples, no bits per byte"},
         {"tokens per step", text("%lld = %d micro-steps x %d ranks x %d x %d", static_cast<long long>(data.tokens_per_step),
                                  data.micro_steps, run.ranks.size(), o.batch_size, o.seq_len)},
         {"steps",
          text("%lld, %lld of them warm-up", static_cast<long long>(data.steps), static_cast<long long>(data.warmup_steps))},
         {"passes over the data", text("%.3g", double(data.steps) * double(data.tokens_per_step) / double(data.train->size()))}});
    const AdamW& a = o.adamw;
    print_table(
        "training",
        {{"device", describe(run.device, threads)},
         {"precision", GPT<Device, X, A>::rounds ? "bf16, weights rounded to " + o.rounding : std::string("fp32")},
         {"ranks", text("%d, %d of them on this machine's %d processors", run.ranks.size(), run.ranks.local_size(), processors())},
         {"learning rate", text("%g, cosine to %g", a.lr, a.lr * o.min_lr_frac)},
         {"AdamW", text("beta1 %g, beta2 %g, eps %g, weight decay %g", a.beta1, a.beta2, a.eps, a.weight_decay)},
         {"gradient clip", text("%g", a.grad_clip)},
         {"seed", std::to_string(o.seed)},
         {"output", o.out}});
}

/// The tables at the start.
template <class Device, class X, class A>
void print_set_up(const Run<Device, X, A>& run, int threads) {
    print_tensors(run.gpt.net.tensors);
    print_table("model", model_rows(run.gpt.net, run.flops));
    if (run.data.train) print_training(run, threads);
    print_memory(run.memory_plan());
    if (!run.data.tasks.empty() && !run.gpt.net.layers[0].attention.is_causal())
        std::cout << "warning: outputs depend on later tokens here, so answers are scored by a model that has seen them\n";
    std::fflush(stdout);
    warn(run.device);
}
