// Log-likelihoods of answers to items, with each context computed once for all of its answers. Only attention gets complete texts, contexts
// included (shared_texts.cuh), because mechanisms need different data of a context. If a mechanism needs only the keys
// (LayerFacts::reads_keys_only), the CPU's attention computes contexts once, too.
#pragma once
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "attention/inference/reader.h"
#include "data/evaluation.h"
#include "model/gpt.h"
#include "model/operations/embedding.cuh"
#include "model/operations/shared_texts.cuh"
#include "model/run/feed.cuh"

/// The arguments for rows [row, row + T) on their own: one text of a batch.
template <class X>
AttentionForward<X> part_of(AttentionForward<X> a, int row, int T) {
    a.B = 1, a.T = a.S = T;
    a.q.data += row * a.q.row, a.k.data += row * a.k.row, a.v.data += row * a.v.row;
    a.out += size_t(row) * a.NH * a.HS;
    a.lse += size_t(row) * a.NH;   // not read; separate for each text
    return a;
}

/// GPT::forward() of texts, read whole by `reader` in place of the variant's attention. Returns its counts. Precondition: a plain causal
/// variant.
template <class X>
InferenceCount forward_read_by(const InferenceReader<X>& reader, GPT<CPU, X>& gpt, const Batch& batch) {
    InferenceCount read;
    const auto attend = [&, T = batch.T](int l) {
        const AttentionForward<X> all =
            kernel_arguments(gpt.attention_inputs(l, batch.B, T), gpt.layers[l].attention, Statistics<X>{});
        std::vector<InferenceCount> counts(batch.B);
#pragma omp parallel for schedule(dynamic) if (batch.B > 1)
        for (int b = 0; b < batch.B; b++) counts[b] = reader.whole(part_of(all, b * T, T));
        for (const InferenceCount& count : counts) read.add(count);
        return batch.B * T;
    };
    const AttentionOverride texts{nullptr, attend};
    gpt.forward(CPU{}, batch, &texts);
    return read;
}

inline bool shares_context(const EvaluationItem& item) {
    const Answer& first = item.answers.front();
    return std::all_of(item.answers.begin(), item.answers.end(), [&](const Answer& one) {
        return one.begin == first.begin && std::equal(first.tokens.begin(), first.tokens.begin() + first.begin, one.tokens.begin());
    });
}

/// Log-likelihoods of items whose answers share their context. The rows of a batch are each context, followed by its answers' tokens except
/// the last of each. After the last layer's attention only the rows that predict answers remain. Texts are padded at their end, so a model
/// that is not causal reads one answer at a time. An item is one document, also with --document-mask. With a `reader` (on the CPU) contexts
/// are its prompts, and answers continue them.
template <class Device, class X>
class SharedContexts {
public:
    /// For a model of gpt.B x gpt.T tokens. allocate() comes next.
    SharedContexts(Device device, GPT<Device, X>& gpt, BatchFeed<Device>& feed, const InferenceReader<X>* reader = nullptr)
        : device_(device), gpt_(gpt), feed_(feed), reader_(reader) { lay_out(); }

    size_t bytes() const { return memory_.bytes(); }
    void allocate() {
        memory_.allocate();
        lay_out();
    }

    /// Rows that an item needs: the model's or, if more, the head's, which gets the context's last row once per answer.
    static int rows_of(const EvaluationItem& item) {
        int rows = std::max(item.answers.front().begin, int(item.answers.size()));
        for (const Answer& answer : item.answers) rows += answer.length() - 1;
        return rows;
    }
    bool fit(int64_t rows) const { return rows <= int64_t(gpt_.B) * gpt_.T; }
    bool is_causal() const { return gpt_.net.all(&LayerFacts::is_causal); }
    bool can_share(const EvaluationItem& item) const { return is_causal() && shares_context(item) && fit(rows_of(item)); }

    /// Counts of the reader since the last call.
    InferenceCount read() { return std::exchange(read_, {}); }

    /// One log-likelihood per answer, in nats, item by item. Precondition: the items' rows fit; one answer alone if is_causal() is false.
    std::vector<double> log_likelihoods(std::span<const EvaluationItem> items) {
        const Predictions predictions = lay_out_rows(items);
        to_device(device_, origin_, host_origin_.data(), host_origin_.size());
        to_device(device_, texts_, host_texts_.data(), host_texts_.size());
        to_device(device_, predicting_, host_predicting_.data(), host_predicting_.size());
        const AttentionOverride rows{origin_, [this](int l) { return attend_texts(l), write_back(l); }};
        gpt_.forward(device_, feed_.put(device_, tokens_.data(), nullptr, 1, int(tokens_.size())), &rows);
        const std::vector<Wide<X>> losses = losses_of(predictions);
        std::vector<double> sums;
        auto loss = losses.begin();
        for (const EvaluationItem& item : items)
            for (const Answer& answer : item.answers) {
                sums.push_back(-std::accumulate(loss, loss + answer.length(), 0.0));
                loss += answer.length();
            }
        return sums;
    }

private:
    /// The tokens of all answers, and for each the index of the predicting row before it.
    struct Predictions {
        std::vector<int32_t> rows, targets;
    };

    /// Precondition: GPT::forward(). The cross-entropy, in nats, of each target. The head is applied to the predicting rows only.
    std::vector<Wide<X>> losses_of(const Predictions& predictions) {
        const int n = int(predictions.rows.size());
        gpt_.gather_rows(device_, feed_.put(device_, predictions.rows.data(), nullptr, 1, n).tokens, n);
        gpt_.gathered_losses(device_, feed_.put(device_, predictions.targets.data(), nullptr, 1, n).tokens, n);
        std::vector<Wide<X>> losses(n);
        to_host(device_, losses.data(), gpt_.scratch.losses, n);
        return losses;
    }

    void lay_out() {
        const Config& c = gpt_.net.config;
        const size_t rows = size_t(gpt_.B) * gpt_.T;
        x_ = gpt_.net.any(&LayerFacts::reads_x) ? memory_.template take<X>(rows * c.C) : nullptr;
        qk_pre_ = gpt_.net.any(&LayerFacts::reads_qk_pre) ? memory_.template take<X>(rows * qk_width()) : nullptr;
        qk_ = memory_.template take<X>(rows * qk_width()), v_ = memory_.template take<X>(rows * c.NKV * c.HS);
        moved_ = memory_.template take<X>(rows * std::max(c.C, c.NH * c.HS));
        origin_ = memory_.template take<int32_t>(rows), predicting_ = memory_.template take<int32_t>(rows);
        texts_ = memory_.template take<SharedText>(rows);
    }
    int qk_width() const { return (gpt_.net.config.NH + gpt_.net.config.NKV) * gpt_.net.config.HS; }
    int rows() const { return int(tokens_.size()); }

    /// Tokens at `position` and after it in their text. Returns the first one's row.
    int append(const int32_t* ids, int count, int position) {
        const int row = rows();
        host_origin_.insert(host_origin_.end(), count, row - position);
        tokens_.insert(tokens_.end(), ids, ids + count);
        return row;
    }

    Predictions lay_out_rows(std::span<const EvaluationItem> items) {
        Predictions found;
        tokens_.clear(), host_origin_.clear(), host_texts_.clear(), host_predicting_.clear();
        for (const EvaluationItem& item : items) {
            const int context = item.answers.front().begin, begin = append(item.answers.front().tokens.data(), context, 0);
            const int last = int(host_predicting_.size());   // the context's last row predicts the first token of every answer
            const size_t first = host_texts_.size();
            host_predicting_.push_back(rows() - 1);
            for (const Answer& answer : item.answers) {
                const int own = answer.length() - 1, row = append(answer.tokens.data() + context, own, context);
                if (own) host_texts_.push_back({begin, context, row, own, host_texts_.size() == first});
                found.rows.push_back(last);
                for (int n = 0; n < own; n++) {
                    found.rows.push_back(int(host_predicting_.size()));
                    host_predicting_.push_back(row + n);
                }
                found.targets.insert(found.targets.end(), answer.tokens.begin() + context, answer.tokens.end());
            }
            if (host_texts_.size() == first) host_texts_.push_back({begin, context, rows(), 0, 1});
        }
        return found;
    }

    /// Computes moved_ (rows, NH, HS), layer l's attention, up to gpt.B texts at a time.
    void attend_texts(int l) {
        const Config& c = gpt_.net.config;
        for (size_t first = 0; first < host_texts_.size(); first += gpt_.B) {
            const int B = int(std::min(size_t(gpt_.B), host_texts_.size() - first));
            int T = 0;
            for (int b = 0; b < B; b++) T = std::max(T, host_texts_[first + b].tokens());
            const LayerInputs<X> in = gather(l, texts_ + first, B, T);
            if (reads_contexts_once(l)) read_texts(l, in, host_texts_.data() + first);
            else gpt_.attention(l).forward(device_, in, gpt_.weights, gpt_.layers[l].attention, gpt_.scratch.attention, {});
            scatter_texts(device_, moved_, gpt_.layers[l].attention.gated_out, texts_ + first, B, T, c.NH * c.HS);
        }
    }

    LayerInputs<X> gather(int l, const SharedText* texts, int B, int T) {
        const LayerFacts& facts = gpt_.net.layers[l].attention->facts;
        const int queries = gpt_.net.config.NH * gpt_.net.config.HS, values = gpt_.net.config.NKV * gpt_.net.config.HS;
        LayerInputs<X> in = gpt_.attention_inputs(l, 1, rows());
        const auto whole = [&](X* to, const X* from, size_t stride, int width) {
            gather_texts(device_, to, from, stride, texts, B, T, width);
            return to;
        };
        if (facts.reads_x) in.x = whole(x_, in.x, size_t(in.C), in.C);
        if (facts.reads_qk_pre) in.q_pre = whole(qk_pre_, in.q_pre, in.qk_row, qk_width()), in.k_pre = in.q_pre + queries;
        in.q = whole(qk_, in.q, in.qk_row, qk_width()), in.k = in.q + queries;
        in.v = whole(v_, in.v, in.v_row, values);
        in.qk_row = size_t(qk_width()), in.v_row = size_t(values);
        in.B = B, in.T = T;
        return in;
    }

    /// Whether the continuation of a context needs only its keys, so that attention computes it once, too.
    bool reads_contexts_once(int l) const {
        const LayerFacts& facts = gpt_.net.layers[l].attention->facts;
        return std::is_same_v<Device, CPU> && (reader_ || (facts.reads_keys_only && facts.is_causal));
    }

    void read_texts(int l, const LayerInputs<X>& in, const SharedText* texts) {
        if constexpr (std::is_same_v<Device, CPU>) {
            const AttentionForward<X> all = kernel_arguments(in, gpt_.layers[l].attention, Statistics<X>{});
            const CpuPasses<X>& passes = cpu_passes_of<X>(*gpt_.net.layers[l].attention);
            std::vector<InferenceCount> counts(in.B);
#pragma omp parallel for schedule(dynamic)
            for (int b = 0; b < in.B; b++) counts[b] = read_text(passes, all, b * in.T, texts[b]);
            for (const InferenceCount& count : counts) read_.add(count);
        }
    }

    InferenceCount read_text(const CpuPasses<X>& passes, const AttentionForward<X>& all, int row, const SharedText& text) const {
        InferenceCount read;
        const AttentionForward<X> context = part_of(all, row, text.shared);
        if (text.first && reader_) read.add(reader_->prompt(context));
        else if (text.first) passes.attend(context);
        if (!text.own) return read;
        const AttentionForward<X> whole = part_of(all, row, text.tokens());
        AttentionForward<X> answer = part_of(all, row + text.shared, text.own);
        std::vector<int> positions;   // (NH, own)
        for (int n = 0; n < all.NH * text.own; n++) positions.push_back(text.shared + n % text.own);
        answer.S = text.tokens(), answer.k = whole.k, answer.v = whole.v, answer.q_position = positions.data();
        if (reader_) read.add(reader_->continuation(answer));
        else passes.attend(answer);
        return read;
    }

    /// Copies moved_ to the model's output of layer l's attention; after the last layer only predicting rows, of the residual stream, too.
    /// Returns the number of rows.
    int write_back(int l) {
        const Config& c = gpt_.net.config;
        const int Q = c.NH * c.HS, predicting = int(host_predicting_.size());
        X* const out = gpt_.layers[l].attention.gated_out;
        if (l + 1 < c.L) {
            convert(device_, out, moved_, size_t(rows()) * Q);
            return rows();
        }
        X* const residual = gpt_.residual + size_t(l) * rows() * c.C;
        embedding_forward(device_, out, predicting_, moved_, predicting, Q);
        embedding_forward(device_, moved_, predicting_, residual, predicting, c.C);
        convert(device_, residual, moved_, size_t(predicting) * c.C);
        return predicting;
    }

    Device device_;
    GPT<Device, X>& gpt_;
    BatchFeed<Device>& feed_;
    const InferenceReader<X>* reader_;
    InferenceCount read_;
    std::vector<int32_t> tokens_, host_origin_;   // (rows) tokens, and AttentionOverride::origin
    std::vector<SharedText> host_texts_;
    std::vector<int32_t> host_predicting_;        // rows that predict a token of an answer, ascending
    Arena<Device> memory_;
    X *x_, *qk_pre_, *qk_, *v_;                   // of complete texts (B, T)
    X* moved_;                                    // rows in transit
    int32_t *origin_, *predicting_;               // on the device
    SharedText* texts_;
};
