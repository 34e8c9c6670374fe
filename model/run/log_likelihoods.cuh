// Log-likelihoods of given tokens after given contexts.
#pragma once
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/inference/reader.h"
#include "data/evaluation.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// Precondition: gpt_forward(). The cross-entropy, in nats, of targets (n) after the rows (n) of its batch. The head is applied to
/// these rows only.
template <class Device, class X>
std::vector<Wide<X>> token_losses(Device device, GPT<Device, X>& gpt, BatchFeed<Device>& feed, const std::vector<int32_t>& rows,
                                  const std::vector<int32_t>& targets) {
    const int n = int(rows.size());
    gpt_gather_rows(device, gpt, feed.put(device, rows.data(), nullptr, 1, n).tokens, n);
    gpt_gathered_losses(device, gpt, feed.put(device, targets.data(), nullptr, 1, n).tokens, n);
    std::vector<Wide<X>> losses(n);
    to_host(device, losses.data(), gpt.scratch.losses, n);
    return losses;
}

/// One log-likelihood per answer from the losses of all answers' tokens, in order.
template <class W>
std::vector<double> sums_of(const std::vector<W>& losses, const std::vector<const Answer*>& answers) {
    std::vector<double> sums;
    for (const W* loss = losses.data(); const Answer* answer : answers)
        sums.push_back(-std::accumulate(loss, loss + answer->length(), 0.0)), loss += answer->length();
    return sums;
}

/// Preconditions: at most gpt.B answers; a causal variant if there are several, as they are padded at the end to one length.
/// Log-likelihoods, in nats, of answers after their contexts.
template <class Device, class X>
std::vector<double> log_likelihoods(Device device, GPT<Device, X>& gpt, BatchFeed<Device>& feed,
                                    const std::vector<const Answer*>& answers) {
    const int B = int(answers.size());
    int T = 1;
    for (const Answer* answer : answers) T = std::max(T, int(answer->tokens.size()) - 1);
    std::vector<int32_t> tokens(size_t(B) * T, 0), rows, targets;
    for (int b = 0; b < B; b++) {
        const std::vector<int32_t>& ids = answers[b]->tokens;
        std::copy(ids.begin(), ids.end() - 1, tokens.begin() + size_t(b) * T);
        for (int t = answers[b]->begin; t < int(ids.size()); t++) rows.push_back(b * T + t - 1), targets.push_back(ids[t]);
    }
    gpt_forward(device, gpt, feed.put(device, tokens.data(), nullptr, B, T));
    return sums_of(token_losses(device, gpt, feed, rows, targets), answers);
}

/// Whether all answers of the item follow the same tokens.
inline bool shares_context(const EvaluationItem& item) {
    const Answer& first = item.answers.front();
    return std::all_of(item.answers.begin(), item.answers.end(), [&](const Answer& one) {
        return one.begin == first.begin && std::equal(first.tokens.begin(), first.tokens.begin() + first.begin, one.tokens.begin());
    });
}

/// The arguments for rows [row, row + T) on their own: one text of a batch.
template <class X>
AttentionForward<X> part_of(AttentionForward<X> a, int row, int T) {
    a.B = 1, a.T = a.S = T;
    a.q.data += row * a.q.row, a.k.data += row * a.k.row, a.v.data += row * a.v.row;
    a.out += size_t(row) * a.NH * a.HS;
    a.lse += size_t(row) * a.NH;   // not read; separate for each text
    return a;
}

/// gpt_forward() of texts that `reader` reads whole instead of the variant's attention, and what it has read. Precondition: a plain
/// causal variant.
template <class X>
InferenceCount forward_read_by(const InferenceReader<X>& reader, GPT<CPU, X>& gpt, const Batch& batch) {
    InferenceCount read;
    const auto attend = [&, T = batch.T](int l) {
        const AttentionForward<X> all =
            kernel_arguments(attention_inputs(gpt, l, batch.B, T), gpt.layers[l].attention, Statistics<X>{});
        std::vector<InferenceCount> counts(batch.B);
#pragma omp parallel for schedule(dynamic) if (batch.B > 1)
        for (int b = 0; b < batch.B; b++) counts[b] = reader.whole(part_of(all, b * T, T));
        for (const InferenceCount& count : counts) read.add(count);
        return batch.B * T;
    };
    const RowsOfTexts texts{nullptr, attend};
    gpt_forward(CPU{}, gpt, batch, nullptr, &texts);
    return read;
}

/// The same as log_likelihoods(), with each context computed once, for items whose answers share it. Preconditions: CPU, a variant
/// of which every layer reads_keys_only (LayerFacts). The texts of a batch are packed without padding into one sequence: each context, then
/// its answers' tokens except the last of each. Only attention runs text by text; after the last layer's, only the rows that
/// predict answers continue. With a `reader`, contexts are its prompts and answers continue them.
template <class X>
class SharedContexts {
public:
    SharedContexts(GPT<CPU, X>& gpt, BatchFeed<CPU>& feed, const InferenceReader<X>* reader = nullptr)
        : gpt_(gpt), feed_(feed), reader_(reader) {}

    /// Rows that an item needs: of the model, or, if more, of the head, which gets the context's last row once per answer.
    static int rows_of(const EvaluationItem& item) {
        int rows = std::max(item.answers.front().begin, int(item.answers.size()));
        for (const Answer& answer : item.answers) rows += answer.length() - 1;
        return rows;
    }
    bool fit(int64_t rows) const { return rows <= int64_t(gpt_.B) * gpt_.T; }

    /// By the reader, since this object was made.
    const InferenceCount& read() const { return read_; }

    /// Memory for the origins of all tokens and, per thread, the keys and values of one text.
    static size_t bytes(const Config& c, int B, int T) {
        return sizeof(int32_t) * B * T + omp_get_max_threads() * (2 * sizeof(X) * c.NKV * c.HS + sizeof(int) * c.NH) * T;
    }

    /// One log-likelihood per answer, item by item.
    std::vector<double> log_likelihoods(const std::vector<const EvaluationItem*>& items) {
        items_ = items;
        const Predictions predictions = put_together();
        const RowsOfTexts texts{origin_.data(), [this](int l) {
                                    attend_texts(l);
                                    return l + 1 < gpt_.net.config.L ? int(tokens_.size()) : compact_predicting_rows(l);
                                }};
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, tokens_.data(), nullptr, 1, int(tokens_.size())), nullptr, &texts);
        std::vector<const Answer*> answers;
        for (const EvaluationItem* item : items)
            for (const Answer& answer : item->answers) answers.push_back(&answer);
        return sums_of(token_losses(CPU{}, gpt_, feed_, predictions.rows, predictions.targets), answers);
    }

private:
    /// The tokens of all answers, and for each the index of the predicting row before it.
    struct Predictions {
        std::vector<int32_t> rows, targets;
    };

    /// Tokens at `position` and after it in their text.
    void append(const int32_t* ids, int count, int position) {
        origin_.insert(origin_.end(), count, int(tokens_.size()) - position);
        tokens_.insert(tokens_.end(), ids, ids + count);
    }

    Predictions put_together() {
        Predictions found;
        tokens_.clear(), origin_.clear(), begin_.clear(), predicting_.clear();
        for (const EvaluationItem* item : items_) {
            const int context = item->answers.front().begin;
            begin_.push_back(int(tokens_.size()));
            append(item->answers.front().tokens.data(), context, 0);
            const int last = int(predicting_.size());   // the context's last row predicts the first token of every answer
            predicting_.push_back(int(tokens_.size()) - 1);
            for (const Answer& answer : item->answers) {
                int row = int(tokens_.size());
                append(answer.tokens.data() + context, answer.length() - 1, context);
                found.rows.push_back(last);
                for (; row < int(tokens_.size()); row++) {
                    found.rows.push_back(int(predicting_.size()));
                    predicting_.push_back(row);
                }
                found.targets.insert(found.targets.end(), answer.tokens.begin() + context, answer.tokens.end());
            }
        }
        return found;
    }

    /// A thread's buffers for an answer: keys and values (context + answer, NKV, HS), and the positions of its queries (NH, T), the
    /// same for every head.
    struct Text {
        std::vector<X> k, v;
        std::vector<int> positions;
    };

    void attend_texts(int l) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const AttentionForward<X> all =
            kernel_arguments(attention_inputs(gpt_, l, 1, int(tokens_.size())), state, Statistics<X>{});
        std::vector<InferenceCount> counts(items_.size());
#pragma omp parallel
        {
            Text text;
            text.k.reserve(size_t(gpt_.T) * all.NKV * all.HS), text.v.reserve(text.k.capacity());
            text.positions.reserve(size_t(all.NH) * gpt_.T);
#pragma omp for schedule(dynamic)
            for (size_t n = 0; n < items_.size(); n++)
                counts[n] = attend_item(cpu_passes_of<X>(*gpt_.net.layers[l].attention), all, *items_[n], begin_[n], text);
        }
        for (const InferenceCount& count : counts) read_.add(count);
    }

    /// Precondition: l is the last layer. Compacts the rows that predict something to the front; returns their number.
    int compact_predicting_rows(int l) {
        const Config& c = gpt_.net.config;
        const size_t Q = size_t(c.NH) * c.HS, C = c.C;
        X* const out = gpt_.layers[l].attention.gated_out;
        X* const residual = gpt_.residual + l * tokens_.size() * C;
        for (size_t n = 0; n < predicting_.size(); n++) {   // ascending: no row is overwritten before it is moved
            std::memmove(out + n * Q, out + predicting_[n] * Q, Q * sizeof(X));
            std::memmove(residual + n * C, residual + predicting_[n] * C, C * sizeof(X));
        }
        return int(predicting_.size());
    }

    /// Attention of an item whose rows begin at `row`: the context attends to itself, each answer to the context and itself.
    InferenceCount attend_item(const CpuPasses<X>& attention, const AttentionForward<X>& all, const EvaluationItem& item, int row,
                               Text& text) const {
        const int context = item.answers.front().begin;
        InferenceCount read;
        if (reader_) read.add(reader_->prompt(part_of(all, row, context)));
        else attention.attend(part_of(all, row, context));
        text.k.clear(), text.v.clear();
        append_keys(text, all, row, context);
        row += context;
        for (const Answer& answer : item.answers) {
            const int T = answer.length() - 1;
            if (T == 0) continue;
            AttentionForward<X> a = part_of(all, row, T);
            text.k.resize(size_t(context) * a.NKV * a.HS), text.v.resize(text.k.size());
            append_keys(text, all, row, T);
            text.positions.clear();
            for (int n = 0; n < a.NH * T; n++) text.positions.push_back(context + n % T);
            a.S = context + T;
            a.k = {text.k.data(), size_t(a.NKV) * a.HS}, a.v = {text.v.data(), a.k.row};
            a.q_position = text.positions.data();
            if (reader_) read.add(reader_->continuation(a));
            else attention.attend(a);
            row += T;
        }
        return read;
    }

    static void append_keys(Text& text, const AttentionForward<X>& all, int row, int count) {
        for (int t = row; t < row + count; t++) {
            const X *k = all.k.data + t * all.k.row, *v = all.v.data + t * all.v.row;
            text.k.insert(text.k.end(), k, k + all.NKV * all.HS);
            text.v.insert(text.v.end(), v, v + all.NKV * all.HS);
        }
    }

    GPT<CPU, X>& gpt_;
    BatchFeed<CPU>& feed_;
    const InferenceReader<X>* reader_;
    InferenceCount read_;
    std::vector<const EvaluationItem*> items_;   // of the batch
    std::vector<int> begin_;                     // (items) row of each context's first token
    std::vector<int32_t> tokens_, origin_;       // (rows) tokens, and the row at which each one's text would have position 0
    std::vector<int> predicting_;                // rows that predict a token of an answer, ascending
};
