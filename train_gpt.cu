// Trains a Qwen language model with the attention variant that this program is linked with (make train_asga, make train_causal,
// ...). Read from the bottom: main() parses the options (model/run/train_options.cpp), train() has the loop, train_step() a step.
#include "attention/variant.h"
#include "model/base/options.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/device/machine.h"
#include "model/generate/sample.cuh"
#include "model/run/begin.cuh"
#include "model/run/evaluate.cuh"
#include "model/run/mask.cuh"
#include "model/run/report.h"
#include "model/run/run.cuh"

// ----------------------------------------------------------------------------------------------------- monitoring and sampling

/// Reports attention statistics on the first rows of the validation shards, or of the training shards without those. Always uses the
/// same rows. Rank 0 only.
void observe_attention(AnyRun auto& run) {
    const TokenStream& stream = (run.data.val ? run.data.val : run.data.train)->first();
    const int T = run.o.seq_len, B = int(std::min<int64_t>(run.o.batch_size, windows(stream, T)));
    const int64_t step = run.state.step;
    if (B == 0) return;
    std::vector<int32_t> tokens(size_t(B) * T), targets(tokens.size());
    validation_rows(stream, 0, T, B, tokens.data(), targets.data());
    observed_forward(run.device, run.gpt, run.feed.put(run.device, tokens.data(), nullptr, B, T), run.monitor);
    const AttentionReport r = run.monitor.take_report();
    const std::string warning = run.collapse.observe(r);
    run.progress.print(text("attention after step %lld: %s", static_cast<long long>(step), summary_of(r).c_str()));
    if (!warning.empty()) run.progress.print(warning);
    std::vector<JsonLines::Field> fields = {{"event", "attention"}, {"step", step}};
    for (auto& [key, table] : tables_of(r, run.collapse.collapsed())) fields.emplace_back(key, std::move(table));
    run.log.write(fields);
}

std::string sample(AnyRun auto& run) {
    const Tokenizer& tokenizer = *run.data.tokenizer;
    std::vector<uint32_t> prompt;
    tokenizer.encode(run.o.prompt, prompt);
    if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    sample_text(run.device, run.gpt, ids, run.o.sample_tokens, {0.8, 0, 0.95, run.o.seed + uint64_t(run.state.step)});
    return replace_invalid_utf8(tokenizer.decode(ids));
}

// ------------------------------------------------------------------------------------------------------------------ the loop

/// Completes gpt.totals over the ranks: the sum of losses, and the norm of the summed gradients.
void sum_totals(AnyRun auto& run) {
    auto& gpt = run.gpt;
    run.collectives->start_sum(run.device, &gpt.totals->loss, 1);
    if (gpt.auxiliary) run.collectives->start_sum(run.device, &gpt.totals->auxiliary, 1);
    run.collectives->finish(run.device);
    gpt.norm(run.device);
    if (!gpt.sharded()) return;
    run.collectives->all_gather(run.device, gpt.shard_squares, 1);
    gpt.norm_of_shards(run.device);
}

/// With ZeRO-1: completes the update, of which each rank has made its own parts, on every rank. Muon moves whole matrices, so their updates
/// are gathered first.
void gather_update(AnyRun auto& run, int64_t step, const AdamW& adamw) {
    auto& gpt = run.gpt;
    if (!gpt.sharded()) return;
    if (gpt.net.tensors.has(Role::muon)) {
        run.collectives->all_gather(run.device, gpt.gradients, gpt.shards);
        gpt.update_matrices(run.device, adamw, step);
    }
    run.collectives->all_gather(run.device, gpt.weights, gpt.shards);
}

/// Takes optimiser step `step`: gradients of all micro-steps and ranks, averaged over the step's `targets`, and an update. In the last
/// micro-step, gradients are summed over the ranks as soon as they are final. Returns false, with weights unchanged, if a signal has
/// requested a stop between two micro-steps.
bool train_step(AnyRun auto& run, Loader& loader, int64_t step, double targets, const AdamW& adamw) {
    const auto device = run.device;
    auto& gpt = run.gpt;
    const float share = float(1.0 / double(run.data.tokens_per_step));   // of one token in the loss
    if (run.data.train->masked()) gpt.weigh_targets(device, double(run.data.tokens_per_step) / targets);
    GradientSums sums(device, *run.collectives, gpt.gradients, gpt.shards);
    const GradientsReady sum_over_ranks = [&](size_t begin, size_t end) { sums.add(begin, end); };

    for (int micro = 0; micro < run.data.micro_steps; micro++, run.feed.prefetch(device, loader, gpt.B, gpt.T)) {
        if (micro > 0 && run.stop_within_step.requested(run.ranks)) return false;
        run.ranks.at("computing gradients", step);
        const Batch batch = run.feed.next(device, loader, gpt.B, gpt.T);
        const Write write = micro == 0 ? Write::overwrite : Write::add;
        const bool sum = run.ranks.size() > 1 && micro + 1 == run.data.micro_steps;
        const auto compute_gradients = [&] {
            gpt.forward(device, batch);
            gpt.loss(device, batch, write, share);
            gpt.backward(device, batch, write, sum ? sum_over_ranks : GradientsReady());
        };
        if (sum) compute_gradients();
        else run.graphs.run(device, batch.tokens, write, compute_gradients);
    }
    sum_totals(run);
    if (run.replicas) run.replicas->require_unchanged(device, run.ranks, step);
    gpt.update(device, adamw, step);
    gather_update(run, step, adamw);
    if (run.replicas) run.replicas->remember_update(device);
    return true;
}

/// Precondition: GPT::update(), which skips such a step. Exit::not_finite, naming the first such tensor, if the loss or a gradient is
/// not finite.
void require_finite(AnyRun auto& run, const StepTotals& totals, double loss, double norm, int64_t step) {
    if (totals.finite()) return;
    const bool losses = std::isfinite(totals.loss) && std::isfinite(totals.auxiliary);
    std::string where = std::isfinite(totals.loss) ? "the auxiliary loss" : "the loss";
    for (const Tensor& t : run.gpt.net.tensors) {
        if (!losses) break;
        if (t.role == Role::frozen || !run.ranks.any(!run.gpt.gradient_is_finite(run.device, t.slot))) continue;
        where = "the gradient of " + t.name;
        break;
    }
    fail(Exit::not_finite, where, " is not finite in step ", step, " (loss ", loss, ", gradient norm ", norm,
         "); the weights were not changed. Lower --lr, or resume from the last checkpoint");
}

/// Takes one step, reads its totals and runs the validation, samples and checkpoint that are due. Returns whether a signal has requested
/// a stop; a signal between two micro-steps undoes the step.
bool take_step(AnyRun auto& run, Loader& loader, int64_t step) {
    const Options& o = run.o;
    Ranks& ranks = run.ranks;
    const int64_t targets = loader.targets_of_step(step - 1);   // 0 if a loss mask hides all: no loss and no gradient
    AdamW adamw = o.adamw;
    adamw.lr = run.data.schedule.rate(step - 1);
    if (!train_step(run, loader, step, double(std::max<int64_t>(1, targets)), adamw)) {
        save_finished_step(run);
        return true;
    }
    ranks.at("waiting for the device", step);
    const StepTotals totals = run.gpt.read_totals(run.device);
    const double loss = targets ? totals.loss / double(targets) : NAN, norm = std::sqrt(totals.squares);
    require_finite(run, totals, loss, norm, step);

    const int64_t tokens = step * run.data.tokens_per_step;
    run.state = {step, tokens, o.seed, tokens / o.seq_len, run.state.train_data, o.resolved, loss, run.validation.loss};
    report_step(run, norm, adamw.lr, totals.auxiliary / double(run.data.tokens_per_step), targets);
    const bool last = step == run.data.steps;
    if (run.data.val && run.due(o.val_every, last)) validate_and_report(run);
    if (run.evaluation_due(last)) evaluate_tasks(run);
    if (run.samples() && run.due(o.sample_every, last))
        ranks.first_does("sampling", step, [&] {
            if (stop_requested()) return;
            const std::string sampled = sample(run);
            run.progress.print("--- sample ---\n" + sampled + "\n--------------");
            run.log.write({{"event", "sample"}, {"step", step}, {"text", sampled}});
        });
    if (run.due(o.monitor_every, last))
        ranks.first_does("observing attention", step, [&] {
            if (!stop_requested()) observe_attention(run);
        });
    const bool stopped = ranks.any(stop_requested()), saves = run.due(o.checkpoint_every, last || stopped);
    if (run.ranks_check_due(saves)) check_ranks(run);
    if (saves) save(run, last || stopped);
    run.since_step.lap();
    return stopped;
}

/// Ends the run after a failure of a GPU or another rank: Exit::rank, with the lost step and the way to resume in the message.
[[noreturn]] void give_up(const Error& error, const OutputOptions& o, int64_t step) {
    if (!*error.what()) throw error;   // another rank prints the sentence
    fail(Exit::rank, error.what(), "; step ", step, " is lost; ",
         o.checkpoint_every ? "--resume continues from the last checkpoint in " + o.out
                            : "nothing was saved, as --checkpoint-every is 0");
}

template <class Device, class X>
Exit train(Device device, const Variants& variants, const Options& o, Ranks& ranks) {
    const int threads = use_threads(o.threads, ranks.local_size());
    Descriptor lock;   // of the output folder, on rank 0
    Origin origin = find_origin(o, variants, choose_checkpoint(o, ranks, lock), ranks.first());
    Data data = open_data(o, ranks.size(), origin.config);
    require_agreement(ranks, facts_of_start(origin, data));
    Run<Device, X> run(device, variants, o, ranks, std::move(data), origin.config);
    if (ranks.first()) print_setup(run, threads);
    if (o.dry_run) return Exit::done;
    if (o.evaluate) return evaluate(run, origin);
    run.lock = std::move(lock);
    begin(run, origin);
    Loader loader(*run.data.train, {o.batch_size, o.seq_len, ranks.size(), ranks.rank(), run.data.micro_steps, o.seed, o.shuffle});
    loader.seek(run.state.step);
    catch_stop_signals(o.watchdog_seconds);

    bool stopped = false;
    run.since_step.lap();
    for (int64_t step = run.state.step + 1; step <= run.data.steps && !stopped; step++) {
        try {
            stopped = take_step(run, loader, step);
        } catch (const Error& error) {
            if (error.code == Exit::rank) give_up(error, o, step);
            throw;
        }
    }
    if (run.data.val && !stopped && std::isnan(run.validation.loss)) {   // a signal had aborted it
        validate_and_report(run);
        stopped = ranks.any(stop_requested());
    }
    return finish(run, stopped);
}

/// Trains on the device and in the precision that the options select.
Exit train(const Variant& variant, const Options& o, Ranks& ranks) {
    const Variants variants(variant, {&on_cpu::causal});   // layers may be causal whatever the program trains
    if (!o.show_mask.empty()) {
        ranks.first_does("drawing a mask", 0, [&] { show_mask(variants, o); });
        return Exit::done;
    }
    ranks.start_watchdog(o.watchdog_seconds);
#ifdef WITH_GPU
    if (takes_gpu(o.device, o.dry_run, ranks)) {
        const OpenGpu gpu(ranks.local_rank(), o.dry_run);
        if (!o.dry_run) {   // which needs no GPU
            require_agreement(ranks, {{"the GPU (CUDA_VISIBLE_DEVICES selects it)", gpu_kind()}});
            choose_attention_kernels(o.attention_kernels, ranks);
        }
        const Variants on_this_gpu(named(variant.name, all_variants_on_gpu()), {&on_gpu::causal});
#ifdef GPU_FLOAT32
        if (o.precision == "fp32") return train<GPU, float>(gpu.device(), on_this_gpu, o, ranks);
#endif
        if (o.precision == "fp32") fail(Exit::usage, "--precision fp32 on a GPU: ", no_float32_kernels);
        return train<GPU, bf16>(gpu.device(), on_this_gpu, o, ranks);
    }
#else
    if (o.device == "cuda")
        fail(Exit::usage, "--device cuda: this program was built without CUDA; install nvcc, then build again");
#endif
    if (o.precision == "bf16") fail(Exit::usage, "--precision bf16 needs a GPU; the CPU trains in fp32");
    if (o.attention_kernels != "mma" && ranks.first())
        std::cerr << "note: --attention-kernels " << o.attention_kernels << " has no effect on the CPU\n";
    return train<CPU, float>(CPU{}, variants, o, ranks);
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    disable_malloc_trim();
    ignore_sigpipe();
    Exit result = Exit::done;
    const Variant* const variant = sole_variant();
    const int failed = run_program(process_name(std::string("train_") + (variant ? variant->name : "gpt")), [&] {
        if (!variant) fail(Exit::usage, "this trainer was linked with several attention variants; link it with one");
        Ranks ranks;
        Options options;
        const bool help = !parse_train_options(argc, argv, *variant, options);
        std::vector<Fact> facts = {{"--help", help ? "given" : "not given"}};
        if (!help) append(facts, facts_of_options(options, variant->name));
        require_agreement(ranks, facts);
        if (help) return;
        result = train(*variant, options, ranks);
        const bool into_files = !options.eval_out.empty() || !options.eval_log.empty() || !options.show_mask.empty();
        if ((options.evaluate || options.dry_run) && !into_files) require_printed();   // the output is the only result
    });
    return failed ? failed : int(result);
}
