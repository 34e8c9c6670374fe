// A training run around the loop of train_gpt.cu: its state, reports, checkpoints and end. (Its beginning: begin.cuh.)
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <omp.h>

#include "data/loader.h"
#include "model/base/disk.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/device/graphs.cuh"
#include "model/device/machine.h"
#include "model/generate/sample.cuh"
#include "model/gpt.h"
#include "model/monitor.cuh"
#include "model/ranks/collectives.cuh"
#include "model/ranks/ranks.h"
#include "model/run/feed.cuh"
#include "model/run/machine.cuh"
#include "model/run/replicas.cuh"
#include "model/run/report.h"
#include "model/run/shared_contexts.cuh"
#include "model/run/start.h"
#include "model/run/summary.h"

struct Validation {
    double loss = NAN;            // nats per token
    double bits_per_byte = NAN;   // NaN when the tokenizer is unknown
};

/// Exit::usage with --document-mask, if the model's attention cannot keep documents apart.
inline void require_documents_apart(const Qwen& net, const DataOptions& o) {
    if (!o.document_mask || net.all(&LayerFacts::keeps_documents_apart)) return;
    fail(Exit::usage, "--document-mask 1: ", net.variant.name,
         " with these settings cannot keep the documents of a row apart; leave --document-mask out");
}

/// Whether a signal has requested a stop, checked between micro-steps, because a step may take hours. Ranks must leave a step together, so
/// they agree about once a second; more often would make each wait for the slowest.
class StopWithinStep {
public:
    /// Every rank must call it as often as the others.
    bool requested(Ranks& ranks) {
        if (ranks.size() == 1) return stop_requested();
        if (++passed_ < every_) return false;
        const double seconds = ranks.sum(since_.lap()) / ranks.size();   // the same bits, and so the same decision, on all ranks
        every_ = int64_t(std::clamp(double(passed_) / seconds, 1.0, 2.0 * double(passed_)));   // a GPU's first launches are quick
        passed_ = 0;
        return ranks.any(stop_requested());
    }

private:
    int64_t every_ = 1, passed_ = 0;   // micro-steps
    Stopwatch since_;
};

template <class Device, class X>
struct Run {
    Device device;
    const Options& o;
    Ranks& ranks;
    Stopwatch since_start, since_step;

    // Output.
    Descriptor lock;   // of the output folder, on rank 0
    JsonLines log;
    Progress progress;
    CollapseWatch collapse;
    double ceiling = 0;        // measured FLOP/s of all ranks
    int64_t saved_step = 0;    // step of the newest checkpoint in --out, valid on rank 0; 0: none

    Data data;
    GPT<Device, X> gpt;
    BatchFeed<Device> feed;
    Monitor<Device, X> monitor;   // empty except on rank 0 with --monitor-every
    StepGraphs<Device> graphs;
    Flops flops;              // of a step
    TrainerState state;       // after the last step

    // Evaluation.
    Validation validation;
    std::optional<InferenceReader<X>> reader;   // of --attention, with --evaluate
    InferenceCount read;                        // counts of the reader on this rank since the last report
    std::optional<SharedContexts<Device, X>> shared_contexts;   // with --eval-data

    // Last, so that they end first: sums that wait for a lost rank are aborted before memory is freed, which waits for them.
    std::optional<ReplicaCheck<Device, X>> replicas;   // set by begin(), unless --check-ranks-every is 0
    std::optional<Collectives<Device>> collectives;    // set by allocate(), to train
    StopWithinStep stop_within_step;
    bool ranks_compute_alike = true;   // whether ranks compute the same bits from the same rows

    Run(Device device_, const Variants& variants, const Options& o_, Ranks& ranks_, Data data_, const Config& config)
        : device(device_),
          o(o_),
          ranks(ranks_),
          progress(ranks.first(), ranks.launched()),
          data(std::move(data_)),
          gpt(variants, config, o.batch_size, o.seq_len, o.evaluate ? Mode::inference : Mode::training, Recompute(o.recompute),
              o.zero_stage && !o.evaluate ? ranks.rank() : 0, o.zero_stage && !o.evaluate ? ranks.size() : 1, Shards::BUCKET,
              Stored::as_computed, o.optimizer == "muon" ? Optimizer::muon : Optimizer::adamw),
          feed(o.batch_size, o.seq_len, config.V, borders(o, config)),
          monitor(o.monitor_every && ranks.first() ? o.batch_size : 0, o.seq_len, gpt.net),
          flops(count_flops(gpt.net, o.seq_len)) {
        require_sizes(device, config);
        require_documents_apart(gpt.net, o);
        if (o.inference.how.attention != InferenceAttention::trained) {
            if (!std::is_same_v<Device, CPU>)
                fail(Exit::usage, "--attention ", o.inference.attention, " is computed on the CPU in --evaluate; give --device cpu");
            reader.emplace(config, o.inference.how);
        }
        if (!data.tasks.empty()) shared_contexts.emplace(device, gpt, feed, reader ? &*reader : nullptr);
    }

    std::vector<MemoryUse> memory_plan() {
        std::vector<MemoryUse> plan = gpt.memory_plan();
        plan.push_back({"batches", feed.bytes()});
        if (samples() && ranks.first()) plan.push_back({"KV cache and rows of samples", sample_bytes(device, gpt)});
        if (monitor.bytes()) plan.push_back({"attention monitor", monitor.bytes()});
        if (shared_contexts) plan.push_back({"answers with their contexts", shared_contexts->bytes()});
        if (reader)
            plan.push_back({"metadata of key blocks", omp_get_max_threads() * reader->bytes(gpt.net.config, gpt.T, reader->how())});
        const size_t second = gpt.net.tensors.has(Role::muon) ? stored_size(gpt.second_moments()) : 0;   // GatheredWeights::spread()
        add_overheads(device, plan, sizeof(float) * ((gpt.sharded() ? 2 * gpt.shards.size() : 0) + second), ranks.launched());
        return plan;
    }

    /// Allocates all memory. Exit::out_of_memory, before, if the plan does not fit.
    void allocate() {
        require_memory(memory_plan(), o, available_memory(device), ranks_per_device(device, ranks.local_size()));
        if (!o.evaluate) ceiling = measure_matmul(device) * ranks.size();   // in memory that the model then takes
        if (!o.evaluate) collectives.emplace(device, ranks);   // first, since NCCL allocates memory
        gpt.allocate(device);
        feed.allocate(device);
        if (shared_contexts) shared_contexts->allocate();
        monitor.allocate();
    }

    bool samples() const { return data.tokenizer && o.sample_every; }

    bool due(int64_t every, bool last) const { return every && (state.step % every == 0 || last); }
    bool ranks_check_due(bool saves) const {
        return replicas && (o.check_ranks_every < 0 ? saves : state.step % o.check_ranks_every == 0);
    }
    bool evaluation_due(bool last) const { return !data.tasks.empty() && (last || due(o.eval_every, false)); }
};

/// A Run on any device, in any number type.
template <class R>
concept AnyRun = requires(R& run) { run.gpt; run.ranks; };

/// Precondition: run.state is that of the step. Prints and logs it. `auxiliary` is the mean auxiliary loss of the policy, `targets` the
/// number of tokens in the loss.
void report_step(AnyRun auto& run, double norm, double lr, double auxiliary, int64_t targets) {
    const TrainerState& s = run.state;
    const double seconds = run.since_step.lap(), rate = double(run.data.tokens_per_step) / seconds,
                 flops = rate * run.flops.per_token;
    const std::string line = text("step %5lld/%lld %5.1f%% | loss %s | norm %.3f | lr %.2e | %.0f ms | %.1f GFLOP/s | %.0f tok/s",
                                  static_cast<long long>(s.step), static_cast<long long>(run.data.steps),
                                  100.0 * double(s.step) / double(run.data.steps), shown_loss(s.last_loss).c_str(), norm, lr,
                                  seconds * 1e3, flops / 1e9, rate);
    run.progress.step(line, seconds, run.data.steps - s.step);
    std::vector<JsonLines::Field> fields = {{"step", s.step},
                                            {"tokens", s.tokens},
                                            {"loss", s.last_loss},
                                            {"grad_norm", norm},
                                            {"lr", lr},
                                            {"ms", seconds * 1e3},
                                            {"tok_s", rate},
                                            {"mfu", flops / run.ceiling}};
    if (run.gpt.auxiliary) fields.push_back({"aux_loss", auxiliary});
    if (run.data.train->masked()) fields.push_back({"targets", targets});
    run.log.write(fields);
}

/// A whole flat buffer on the host of rank 0, gathered from the shards in each rank's device memory.
template <class Device>
class GatheredWeights {
public:
    /// `owned` is the buffer itself if `is_whole`; else this rank's shard, and every rank must construct one.
    template <class X>
    GatheredWeights(Run<Device, X>& run, float* owned, bool is_whole)
        : mine_(run.device, owned, is_whole ? run.gpt.net.tensors.size() : run.gpt.shards.owned()) {
        mine_.pull();
        if (!is_whole) gather(run, mine_.data());
    }

    /// The second moments, with zeros where Muon's matrices have none.
    template <class X>
    explicit GatheredWeights(Run<Device, X>& run) : mine_(run.device, run.gpt.v, stored_size(run.gpt.second_moments())) {
        mine_.pull();
        if (run.gpt.net.tensors.has(Role::muon)) spread(run);
        if (run.gpt.sharded()) gather(run, spread_ ? spread_.get() : mine_.data());
    }

    const float* data() { return !gathered_.empty() ? gathered_.data() : spread_ ? spread_.get() : mine_.data(); }

private:
    template <class X>
    void gather(Run<Device, X>& run, const float* own) {
        if (run.ranks.first()) gathered_.resize(run.gpt.shards.size());
        run.ranks.gather_shards(own, gathered_.data(), run.gpt.shards);
    }

    /// Puts the stored second moments in the places of the first ones. calloc: memory that is never written takes no pages.
    template <class X>
    void spread(Run<Device, X>& run) {
        spread_.reset(static_cast<float*>(std::calloc(run.gpt.shards.owned(), sizeof(float))));
        if (!spread_) fail(Exit::out_of_memory, "cannot allocate ", run.gpt.shards.owned() * sizeof(float), " bytes to save the moments");
        const std::vector<HeldSpan> owned = owned_spans(run.gpt.shards);
        auto own = owned.begin();
        for (const HeldSpan& span : run.gpt.second_moments()) {
            while (span.begin >= own->end) ++own;
            std::copy_n(mine_.data() + span.held, span.end - span.begin, spread_.get() + own->held + (span.begin - own->begin));
        }
    }

    struct Free {
        void operator()(float* block) const { std::free(block); }
    };
    HostView<Device> mine_;
    std::vector<float> gathered_;
    std::unique_ptr<float, Free> spread_;
};

/// Every rank must call it. The weights in full precision.
template <class Device, class X>
GatheredWeights<Device> whole_weights(Run<Device, X>& run) {
    if constexpr (!GPT<Device, X>::rounds)
        if (!run.gpt.keeps_master()) return {run, run.gpt.weights, true};
    return {run, run.gpt.master, !run.gpt.sharded()};
}

/// Checksums of the gradients of the first micro-step after the run's, on the rows of rank `of`. Overwrites the gradients.
std::vector<uint64_t> gradient_sums(AnyRun auto& run, int of) {
    const int B = run.o.batch_size, T = run.o.seq_len;
    Loader loader(*run.data.train, {B, T, run.ranks.size(), of, run.data.micro_steps, run.o.seed, run.o.shuffle});
    loader.seek(run.state.step);
    std::vector<int32_t> tokens(size_t(B) * T), targets(tokens.size());
    loader.next(tokens.data(), targets.data());
    const Batch batch = run.feed.put(run.device, tokens.data(), targets.data(), B, T);
    run.gpt.forward(run.device, batch);
    run.gpt.loss(run.device, batch, Write::overwrite, float(1.0 / double(run.data.tokens_per_step)));
    run.gpt.backward(run.device, batch, Write::overwrite);
    return run.replicas->gradient_sums(run.device);
}

/// Every rank must call it. The order of sums depends on threads, processors and libraries. If ranks differ in these, their gradients
/// differ by rounding, and comparing gradients cannot detect a faulty rank; a note is printed. Exit::usage for Muon without ZeRO-1, whose
/// products every rank computes for itself.
void find_unlike_ranks(AnyRun auto& run) {
    Ranks& ranks = run.ranks;
    std::string mine = describe(run.device, omp_get_max_threads());
    if (const std::string blas = describe_blas(run.device); mine.find(blas) == std::string::npos) mine += ", " + blas;
    const int rank = find_unlike_rank(ranks, mine);
    run.ranks_compute_alike = rank == 0;
    if (run.ranks_compute_alike) return;
    const std::string theirs = ranks.broadcast(mine, rank);
    const std::string unlike = "rank " + std::to_string(rank) + " computes with " + theirs + ", and rank 0 with " + mine;
    if (run.gpt.net.tensors.has(Role::muon) && !run.gpt.sharded())
        ranks.fail_together(Exit::usage, unlike + ": they would round the products of --optimizer muon differently; give --zero-stage 1");
    if (ranks.first())
        std::cerr << "note: " << unlike << ": gradients then differ by rounding and are not compared between ranks\n";
}

/// Every rank must call it, between two steps. Ends the job with Exit::rank, naming rank and tensor, if the ranks' copies of the model
/// differ, if, with ZeRO-1, a rank's parts have changed since the update, or if two ranks compute different gradients from the same rows.
void check_ranks(AnyRun auto& run) {
    Ranks& ranks = run.ranks;
    ranks.at("comparing the ranks", run.state.step);
    const auto check_memory = [&] {
        run.replicas->require_equal(run.device, ranks, run.state.step);
        if (run.gpt.sharded()) run.replicas->require_unchanged(run.device, ranks, run.state.step + 1);
    };
    check_memory();
    if (ranks.size() == 1 || !run.ranks_compute_alike) return;
    const std::vector<uint64_t> own = gradient_sums(run, ranks.rank()), of_next = gradient_sums(run, (ranks.rank() + 1) % ranks.size());
    run.replicas->require_repeated(ranks, run.state.step, own, of_next, check_memory);
}

/// Writes a checkpoint, on rank 0. If that fails: a warning, or, for the last one, Exit::checkpoint. `sums` are the checksums of the
/// arrays, empty with --check-ranks-every 0; Exit::rank if memory has changed when the files are written.
void write_checkpoint(AnyRun auto& run, const std::vector<uint64_t>& sums, const float* weights, const float* m, const float* v,
                      bool last) {
    const Options& o = run.o;
    auto& gpt = run.gpt;
    const StopDeadlineSuspended saving;
    try {
        const std::filesystem::path tokenizer_from = std::filesystem::is_directory(o.model) ? o.model : "";
        run.log.sync();   // no step of a checkpoint may be missing from the log
        const std::filesystem::path path = save_checkpoint(
            o.out, gpt.net.config, gpt.net.tensors, weights, m, v, run.state, run.data.tokenizer.get(), tokenizer_from,
            facts_of(run.data, gpt.net.pattern), [&] { run.ranks.at("saving a checkpoint"); },
            [&] { if (run.replicas) run.replicas->require_saved(sums, weights, m, v); });
        run.saved_step = run.state.step;
        prune_checkpoints(o.out, o.keep_checkpoints);
        run.log.write({{"event", "checkpoint"}, {"step", run.state.step}, {"path", path.string()}});
        run.log.sync();
        run.progress.print("checkpoint " + path.string());
    } catch (const Error& error) {
        if (last || error.code == Exit::rank) throw;
        run.progress.print(text("saving step %lld was not completed, earlier checkpoints are unchanged",
                                static_cast<long long>(run.state.step)));
        std::cerr << "warning: " << error.what() << std::endl;
    }
}

/// Every rank must call it: rank 0 saves a checkpoint, the others wait.
template <class Device, class X>
void save(Run<Device, X>& run, bool last) {
    auto& gpt = run.gpt;
    run.ranks.at("gathering a checkpoint", run.state.step);
    const std::vector<uint64_t> sums = run.replicas ? run.replicas->sums_to_save(run.device, run.ranks) : std::vector<uint64_t>();
    std::optional<GatheredWeights<Device>> weights, m, v;
    if (run.ranks.first() || gpt.sharded()) {
        weights.emplace(whole_weights(run));
        m.emplace(run, gpt.m, !gpt.sharded());
        v.emplace(run);
    }
    run.ranks.first_does("saving a checkpoint", run.state.step,
                         [&] { write_checkpoint(run, sums, weights->data(), m->data(), v->data(), last); });
}

/// Every rank must call it when a stop has undone a step. Saves the previous step unless it is saved already.
void save_finished_step(AnyRun auto& run) {
    run.ranks.broadcast(&run.saved_step, sizeof run.saved_step);   // an earlier attempt may have failed on rank 0
    if (!run.o.checkpoint_every || run.saved_step == run.state.step) return;
    if (run.ranks_check_due(true)) check_ranks(run);
    save(run, true);
}

/// Logs how many rows each source of a mixture has given since step 1.
void log_sources(AnyRun auto& run) {
    const std::vector<Source>& sources = run.data.train->sources();
    const std::vector<uint64_t> rows = run.data.train->counts(uint64_t(run.state.data_rows));
    for (size_t n = 0; sources.size() > 1 && n < sources.size(); n++) {
        const double tokens = double(rows[n]) * run.o.seq_len;
        run.log.write({{"event", "source"}, {"step", run.state.step}, {"source", sources[n].stream.name()}, {"rows", int64_t(rows[n])},
                       {"passes", tokens / double(sources[n].stream.size())}});
    }
}

/// Waits for all ranks, then prints the last line and writes the last record and the loss curve.
Exit finish(AnyRun auto& run, bool stopped) {
    run.ranks.at("finishing", run.state.step);
    run.ranks.barrier();
    const Exit result = stopped ? Exit::signal : Exit::done;
    auto weights = whole_weights(run);
    if (!run.ranks.first()) return result;
    const auto step = static_cast<long long>(run.state.step);
    log_sources(run);
    if (stopped) {
        run.progress.print(text("stopped by a signal after step %lld; %s", step,
                              !run.o.checkpoint_every ? "nothing was saved, as --checkpoint-every is 0"
                              : step == 0             ? "nothing was saved, and --resume starts over"
                                                      : "--resume continues"));
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
    catch_stop_signals(SECONDS_TO_STOP);   // everything is on the disk
    if (run.o.plot) plot("plot_loss.py", run.o.out + "/log.jsonl", run.o.out + "/loss.png");
    if (run.o.plot && run.o.monitor_every) plot("plot_attention.py", run.o.out + "/log.jsonl", run.o.out + "/attention.png");
    const std::string validation = std::isnan(run.validation.loss) ? "" : text(", validation %.4f", run.validation.loss);
    const std::string loss = shown_loss(run.state.last_loss), memory = human_bytes(double(peak_memory(run.device)));
    run.progress.print(text("done: step %lld, loss %s%s, %s %s, %s, weights hash %s", step, loss.c_str(), validation.c_str(),
                          name_of_peak(run.device), memory.c_str(), human_seconds(seconds).c_str(), hash.c_str()));
    return result;
}
