// Evaluation: cross-entropy on the validation shards, and multiple choice. Ranks share the work and get the same results. A signal
// aborts an evaluation; then nothing is reported.
#pragma once
#include <fstream>

#include "data/evaluation.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/checkpoint/load.cuh"
#include "model/device/machine.h"
#include "model/run/begin.cuh"
#include "model/run/loss_by_position.h"
#include "model/run/report.h"

// ------------------------------------------------------------------------------------------------------------------ validation

template <class Device, class X>
void forward_for_evaluation(Run<Device, X>& run, const Batch& batch) {
    if constexpr (std::is_same_v<Device, CPU>)
        if (run.reader) return run.read.add(forward_read_by(*run.reader, run.gpt, batch));
    run.gpt.forward(run.device, batch);
}

/// The mean cross-entropy over the targets of the first --val-batches batches of a source: the same rows for any number of ranks if
/// batch-size x ranks is the same; the empty `by_position` gets the same sums by position. None if a signal came. Exit::data if a mask
/// hides all targets.
template <class Device, class X>
std::optional<Validation> validate(Run<Device, X>& run, const TokenStream& val, LossByPosition& by_position) {
    const int B = run.o.batch_size, T = run.o.seq_len, ranks = run.ranks.size();
    const int64_t rows = std::min<int64_t>(windows(val, T), int64_t(run.o.val_batches) * B * ranks);
    std::vector<int32_t> inputs(size_t(B) * T), targets(inputs.size());
    std::vector<Wide<X>> losses(inputs.size());
    double bytes = 0;
    for (int64_t row = int64_t(run.ranks.rank()) * B; row < rows && !stop_requested(); row += int64_t(ranks) * B) {
        run.ranks.at("validating", run.state.step);
        const int here = int(std::min<int64_t>(B, rows - row));
        validation_rows(val, row, T, here, inputs.data(), targets.data());
        const Batch batch = run.feed.put(run.device, inputs.data(), targets.data(), here, T);
        forward_for_evaluation(run, batch);
        run.gpt.loss(run.device, batch, Write::overwrite);
        to_host(run.device, losses.data(), run.gpt.scratch.losses, size_t(here) * T);
        for (int b = 0; b < here; b++) by_position.add_row(&losses[size_t(b) * T], &targets[size_t(b) * T]);
        for (int n = 0; run.data.tokenizer && n < here * T; n++)
            if (targets[n] >= 0) bytes += run.data.tokenizer->bytes(targets[n]);   // unmasked targets only
        run.progress.show_status(text("validating: %lld of %lld rows", static_cast<long long>(row), static_cast<long long>(rows)));
    }
    bytes = run.ranks.sum(bytes);
    by_position.sum_over(run.ranks);
    if (run.ranks.any(stop_requested())) return std::nullopt;
    if (by_position.targets() == 0)
        fail(Exit::data, val.name(), ": the loss mask hides every target of the first ", rows, " rows of ", T,
             " tokens; raise --val-batches or give other shards");
    const double loss = by_position.loss();
    return Validation{loss, bytes > 0 ? loss * by_position.targets() / std::log(2.0) / bytes : NAN};
}

inline std::string describe(const Validation& v, int digits = 4) {
    return text("loss %.*f, perplexity %.2f, %.4f bits per byte", digits, v.loss, std::exp(v.loss), v.bits_per_byte);
}

/// run.validation = the means of all sources, averaged by their weights. Prints and logs those of each source, if there are several.
/// False if a signal came.
bool validate(AnyRun auto& run, LossByPosition& by_position) {
    Validation mean{0, 0};
    const std::vector<Source>& sources = run.data.val->sources();
    for (const Source& source : sources) {
        LossByPosition own = by_position.empty();
        const std::optional<Validation> found = validate(run, source.stream, own);
        if (!found) return false;
        by_position.add(own);
        mean.loss += source.share * found->loss, mean.bits_per_byte += source.share * found->bits_per_byte;
        if (sources.size() == 1) continue;
        run.progress.print("validation on " + source.stream.name() + ": " + describe(*found));
        run.log.write({{"event", "source_validation"}, {"step", run.state.step}, {"source", source.stream.name()},
                       {"source_loss", found->loss}, {"source_bpb", found->bits_per_byte}});
    }
    run.validation = mean;
    run.state.last_val_loss = mean.loss;
    return true;
}

void log_validation(AnyRun auto& run) {
    const Validation& v = run.validation;
    run.log.write({{"step", run.state.step}, {"val_loss", v.loss}, {"val_ppl", std::exp(v.loss)}, {"val_bpb", v.bits_per_byte}});
}

void validate_and_report(AnyRun auto& run) {
    LossByPosition all(run.o.seq_len, 1);
    if (!validate(run, all)) return;
    run.progress.print(
        text("validation after step %lld: %s", static_cast<long long>(run.state.step), describe(run.validation).c_str()));
    log_validation(run);
}

/// Prints which pairs --attention has read of the rows or items `of`, on all ranks; nothing without --attention. Every rank must call it.
void report_read(AnyRun auto& run, const std::string& of) {
    if (!run.reader) return;
    InferenceCount read;
    for (const InferenceCount& one : run.ranks.gathered(std::exchange(run.read, {}))) read.add(one);
    run.progress.print(of + ": " + describe(read, run.o.inference.how.psa.bound));
    run.log.write({{"event", "sparse_reading"},
                   {"step", run.state.step},
                   {"attention", run.o.inference.attention},
                   {"of", of},
                   {"pairs_read", read.pairs_read()},
                   {"mass_kept", read.mass_kept()}});
}

inline constexpr int BINS_IN_A_TABLE = 64;   // more bins appear in the log only

void report_positions(AnyRun auto& run, const LossByPosition& by_position) {
    if (!run.o.position_bins) return;
    const std::vector<PositionBin> bins = by_position.means();
    if (run.ranks.first() && int(bins.size()) <= BINS_IN_A_TABLE) print_table("validation loss by position", rows_of_table(bins));
    run.log.write({{"event", "loss_by_position"}, {"step", run.state.step}, {"bins", RawJson{as_json(bins)}}});
}

// ------------------------------------------------------------------------------------------------------------- multiple choice

/// The task's answers in their order, in batches of as many items as fit, one if the model is not causal. An answer becomes an item of its
/// own where contexts differ, the item is too large or the model is not causal.
template <class Device, class X>
std::vector<std::vector<EvaluationItem>> batches_of(const EvaluationTask& task, const SharedContexts<Device, X>& contexts) {
    std::vector<std::vector<EvaluationItem>> batches;
    int64_t rows = 0;
    const auto add = [&](const EvaluationItem& item) {
        rows += contexts.rows_of(item);
        if (batches.empty() || !contexts.is_causal() || !contexts.fit(rows)) batches.emplace_back(), rows = contexts.rows_of(item);
        batches.back().push_back(item);
    };
    for (const EvaluationItem& item : task.items) {
        if (contexts.can_share(item)) add(item);
        else
            for (const Answer& answer : item.answers) add({{answer}, 0, item.line});
    }
    return batches;
}

/// One log-likelihood per answer of the task, item by item. Each rank computes every ranks.size()-th batch.
std::vector<float> log_likelihoods(AnyRun auto& run, const EvaluationTask& task) {
    const std::vector<std::vector<EvaluationItem>> batches = batches_of(task, *run.shared_contexts);
    std::vector<float> found;
    for (size_t n = 0; n < batches.size(); n++) {
        const size_t first = found.size();
        for (const EvaluationItem& item : batches[n]) found.resize(found.size() + item.answers.size());
        if (n % size_t(run.ranks.size()) != size_t(run.ranks.rank()) || stop_requested()) continue;
        run.ranks.at("evaluating", run.state.step);
        const std::vector<double> sums = run.shared_contexts->log_likelihoods(batches[n]);
        run.read.add(run.shared_contexts->read());
        std::copy(sums.begin(), sums.end(), found.begin() + std::ptrdiff_t(first));
        run.progress.show_status(text("%s: %.0f%%", task.name.c_str(), 100.0 * double(n) / double(batches.size())));
    }
    run.ranks.sum(found.data(), found.size());
    return found;
}

inline std::string describe(const EvaluationScores& s) {
    auto share = [](const char* name, double accuracy, double error) {
        if (std::isnan(accuracy)) return std::string();
        const std::string known = text(", %s %.2f%%", name, 100 * accuracy);
        return std::isnan(error) ? known : known + text(" +- %.2f", 100 * error);   // NaN for a single item
    };
    std::string words = text("%lld items", static_cast<long long>(s.items)) + share("accuracy by sum", s.sum, s.sum_error) +
                        share("by token mean", s.token_mean, s.token_mean_error) +
                        share("by character mean", s.character_mean, s.character_mean_error);
    if (!std::isnan(s.macro_f1)) words += text(", macro F1 %.4f", s.macro_f1);
    return words;
}

/// Exit::not_finite, naming the item and the weights, if a score is not finite.
inline void require_finite(const EvaluationTask& task, const std::vector<float>& found, const std::string& weights) {
    size_t answer = 0;
    for (size_t n = 0; n < task.items.size(); n++)
        for (size_t end = answer + task.items[n].answers.size(); answer < end; answer++)
            if (!std::isfinite(found[answer]))
                fail(Exit::not_finite, task.name, ": item ", n, " scores ", found[answer], "; the weights of ", weights,
                     " are damaged");
}

/// Evaluates the tasks of --eval-data; false if a signal came. With --evaluate, `items` gets a record per item, and scores of the
/// `weights` that are not finite are an error; a training run continues, so that it can save.
bool evaluate_tasks(AnyRun auto& run, JsonLines* items = nullptr, const std::string& weights = "") {
    for (const EvaluationTask& task : run.data.tasks) {
        const std::vector<float> found = log_likelihoods(run, task);
        if (run.ranks.any(stop_requested())) return false;
        if (items) require_finite(task, found, weights);
        const EvaluationScores s = score(task, found);
        run.progress.print(task.name + ": " + describe(s));
        run.log.write({{"event", "evaluation"}, {"step", run.state.step}, {"task", task.name}, {"items", s.items},
                       {"acc_sum", s.sum}, {"acc_sum_stderr", s.sum_error},
                       {"acc_token_mean", s.token_mean}, {"acc_token_mean_stderr", s.token_mean_error},
                       {"acc_character_mean", s.character_mean}, {"acc_character_mean_stderr", s.character_mean_error},
                       {"macro_f1", s.macro_f1}});
        report_read(run, task.name);
        auto of = found.begin();
        for (size_t n = 0; items && n < task.items.size(); n++) {
            const auto end = of + std::ptrdiff_t(task.items[n].answers.size());
            items->write({{"task", task.name}, {"item", int64_t(n)}, {"gold", int64_t(task.items[n].gold)},
                          {"chosen", int64_t(s.chosen[n])}, {"log_likelihoods", std::vector<float>(of, end)}});
            of = end;
        }
    }
    return true;
}

// -------------------------------------------------------------------------------------------------------------- without training

/// Opens the log of --eval-log and writes its first record; without --eval-log and on ranks other than the first the log writes nothing.
/// Exit::usage if the file exists and is not an evaluation log.
void open_evaluation_log(AnyRun auto& run, const std::string& weights) {
    const std::string& path = run.o.eval_log;
    if (!run.ranks.first() || path.empty()) return;
    std::ifstream before(path);
    std::string first;
    if (std::getline(before, first) && first.find("\"evaluates\":") == std::string::npos)
        fail(Exit::usage, "--eval-log ", path, ": exists and is not an evaluation log; choose another path");
    run.log.open_whole(path);
    log_config(run, {{"evaluates", weights}});
}

/// Validation loss, as a whole and by position. False if a signal came; Exit::not_finite, naming the weights, for a loss that is not
/// finite.
bool evaluate_validation(AnyRun auto& run, const std::string& weights) {
    LossByPosition by_position(run.o.seq_len, std::max(1, run.o.position_bins));
    if (!validate(run, by_position)) return false;
    if (!std::isfinite(run.validation.loss))
        fail(Exit::not_finite, "the validation loss is not finite; the weights of ", weights, " are damaged");
    if (run.reader && run.reader->looks_ahead())
        run.progress.print("warning: the choice of blocks depends on LATER ROWS: this validation loss is for a prompt known in advance,\n"
                         "         and cannot be compared with those of causal attention");
    run.progress.print("validation: " + describe(run.validation, 6));
    log_validation(run);
    report_read(run, "validation");
    report_positions(run, by_position);
    return true;
}

/// --evaluate: validation loss and tasks, for a checkpoint or imported weights.
Exit evaluate(AnyRun auto& run, const Origin& origin) {
    const Options& o = run.o;
    if (!origin.folder()) fail(Exit::usage, "--evaluate needs weights: give --checkpoint, --resume, or a folder as --model");
    if (!run.data.val && run.data.tasks.empty()) fail(Exit::usage, "nothing to evaluate: give --val-data or --eval-data");
    require_outside("--eval-out", o.eval_out, *origin.folder());
    require_outside("--eval-log", o.eval_log, *origin.folder());
    run.allocate();
    const std::string weights = origin.folder()->string();
    load_for_inference(run.device, run.gpt, weights);
    ReplicaCheck(run.device, run.gpt).require_equal_start(run.device, run.ranks, weights);
    if (origin.resume_from) run.state.step = load_state(weights, run.gpt.net.tensors, nullptr, nullptr).step;
    catch_stop_signals(SECONDS_TO_STOP);
    open_evaluation_log(run, weights);
    JsonLines items;
    if (run.ranks.first() && !o.eval_out.empty()) items.open_whole(o.eval_out);
    const bool whole = (!run.data.val || evaluate_validation(run, weights)) && evaluate_tasks(run, &items, weights);
    if (!whole) {
        run.progress.print("stopped before everything was scored");
        return Exit::signal;
    }
    items.finish();
    run.log.write({{"event", "done"}, {"step", run.state.step}, {"val_loss", run.validation.loss},
                   {"peak_bytes", int64_t(peak_memory(run.device))}, {"seconds", run.since_start.seconds()}});
    run.log.finish();
    return Exit::done;
}
