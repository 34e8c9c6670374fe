// How likely a model finds given tokens behind others.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/core/decode.h"
#include "data/evaluation.h"
#include "model/feed.cuh"
#include "model/gpt.cuh"

/// Of the last gpt_forward(): the cross-entropy, in nats, of targets (n) after the rows (n) of its batch. The head is applied to
/// these rows alone.
template <class Device, class X, class A>
std::vector<Wide<X>> token_losses(Device device, GPT<Device, X, A>& gpt, Feed<Device>& feed, const std::vector<int32_t>& rows,
                                  const std::vector<int32_t>& targets) {
    const Config& c = gpt.net.config;
    const int n = int(rows.size());
    X* const normed = gpt.scratch.branch;   // (n, C), picked out as an embedding picks out rows of its table
    embedding_forward(device, normed, feed.put(device, rows.data(), nullptr, 1, n).tokens, gpt.final_normed, n, c.C);
    const int32_t* const next = feed.put(device, targets.data(), nullptr, 1, n).tokens;
    for (int row = 0; row < n; row += gpt.logit_rows()) {
        const int here = std::min(gpt.logit_rows(), n - row);
        linear_forward(device, gpt.scratch.logits, normed + size_t(row) * c.C, gpt.weights + gpt.net.head.offset,
                       static_cast<const X*>(nullptr), here, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, next + row, here, c.V, Wide<X>(0));
    }
    std::vector<Wide<X>> losses(n);
    to_host(device, losses.data(), gpt.scratch.losses, n);
    return losses;
}

/// Log-likelihoods, in nats, of up to gpt.B answers behind their contexts. They are padded at the end to one length, which rows
/// before it cannot see if the variant is causal.
template <class Device, class X, class A>
std::vector<double> log_likelihoods(Device device, GPT<Device, X, A>& gpt, Feed<Device>& feed,
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
    const std::vector<Wide<X>> losses = token_losses(device, gpt, feed, rows, targets);
    std::vector<double> sums;
    for (const Wide<X>* loss = losses.data(); const Answer* answer : answers)
        sums.push_back(-std::accumulate(loss, loss + answer->length(), 0.0)), loss += answer->length();
    return sums;
}

/// Whether all answers of the item stand behind the same tokens.
inline bool shares_context(const EvaluationItem& item) {
    const Answer& first = item.answers.front();
    return std::all_of(item.answers.begin(), item.answers.end(), [&](const Answer& one) {
        return one.begin == first.begin && std::equal(first.tokens.begin(), first.tokens.begin() + first.begin, one.tokens.begin());
    });
}

/// The same with each context computed once, for items that share theirs and have contexts of one length: every layer's keys and
/// values of the contexts are kept, and the answers go on from there. On the CPU, for variants that can_decode_from_cache().
template <class X, class A>
class SharedContexts {
public:
    SharedContexts(GPT<CPU, X, A>& gpt, Feed<CPU>& feed) : gpt_(gpt), feed_(feed), layers_(gpt.net.config.L) {}

    /// Whether `answers` answers of up to `longest` tokens behind contexts of `context` tokens have room, with the keys and values
    /// of both.
    bool fit(int context, int answers, int longest) const {
        return int64_t(answers) * (context + longest) <= int64_t(gpt_.B) * gpt_.T;
    }

    /// Memory for the keys and values of so many tokens at most: of the contexts (an item has two answers or more) in every layer,
    /// and of contexts and answers in one.
    static size_t bytes(const Config& c, int B, int T) {
        return (size_t(c.L) + 2) * B * T * c.NKV * c.HS * sizeof(X);
    }

    /// One log-likelihood per answer, item after item.
    std::vector<double> log_likelihoods(const std::vector<const EvaluationItem*>& items) {
        context_ = items.front()->answers.front().begin;
        const std::vector<Wide<X>> first = read_contexts(items), rest = read_answers(items);
        std::vector<double> sums;
        size_t answer = 0, at = 0;
        for (const EvaluationItem* item : items)
            for (const Answer& one : item->answers) {
                double sum = first[answer++];
                for (int n = 1; n < one.length(); n++) sum += rest[at++];
                sums.push_back(-sum);
            }
        return sums;
    }

private:
    struct Kept {
        std::vector<X> k, v;   // (contexts, context, NKV, HS)
    };

    /// The losses of every answer's first token, which the context predicts.
    std::vector<Wide<X>> read_contexts(const std::vector<const EvaluationItem*>& items) {
        const int T = context_, B = int(items.size());
        std::vector<int32_t> tokens, rows, targets;
        for (int b = 0; b < B; b++) {
            const std::vector<Answer>& answers = items[b]->answers;
            tokens.insert(tokens.end(), answers[0].tokens.begin(), answers[0].tokens.begin() + T);
            for (const Answer& answer : answers) rows.push_back(b * T + T - 1), targets.push_back(answer.tokens[T]);
        }
        forward(tokens, B, T, 0, [this, B](int l, int T) { keep(l, B, T); });
        return token_losses(CPU{}, gpt_, feed_, rows, targets);
    }

    /// The losses of their other tokens, answer after answer.
    std::vector<Wide<X>> read_answers(const std::vector<const EvaluationItem*>& items) {
        std::vector<int32_t> tokens, rows, targets;
        int T = 0;
        for (const EvaluationItem* item : items)
            for (const Answer& answer : item->answers) T = std::max(T, answer.length() - 1);
        if (T == 0) return {};
        items_.clear();
        for (int b = 0; b < int(items.size()); b++)
            for (const Answer& answer : items[b]->answers) {
                const int32_t* ids = answer.tokens.data() + answer.begin;
                for (int t = 0; t + 1 < answer.length(); t++)
                    rows.push_back(int(items_.size()) * T + t), targets.push_back(ids[t + 1]);
                tokens.insert(tokens.end(), ids, ids + answer.length() - 1);
                items_.push_back(b);
                tokens.resize(items_.size() * T, 0);
            }
        const int B = int(items_.size());
        positions_.resize(size_t(B) * gpt_.net.config.NH * T);
        for (size_t n = 0; n < positions_.size(); n++) positions_[n] = context_ + int(n % T);
        forward(tokens, B, T, context_, [this, B](int l, int T) { go_on(l, B, T); });
        return token_losses(CPU{}, gpt_, feed_, rows, targets);
    }

    template <class Attend>
    void forward(const std::vector<int32_t>& tokens, int B, int T, int position, Attend attend) {
        gpt_.position = position;
        gpt_.attend = attend;
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, tokens.data(), nullptr, B, T));
        gpt_.attend = nullptr;
        gpt_.position = 0;
    }

    /// Attention of the contexts, as ever, and their keys and values.
    void keep(int l, int B, int T) {
        const LayerInputs<X> in = attention_inputs(gpt_, l, B, T);
        layers_[l].k.resize(size_t(B) * T * in.NKV * in.HS), layers_[l].v.resize(layers_[l].k.size());
        for (int b = 0; b < B; b++) copy(layers_[l].k.data(), layers_[l].v.data(), T, 0, b, in, b);
        attention_layer_forward(CPU{}, gpt_.net.layers[l].attention, in, gpt_.weights, state(l), gpt_.scratch.attention);
    }

    /// Attention of the answers: queries at positions from context_ on, keys of the context and the answer's own.
    void go_on(int l, int B, int T) {
        const LayerInputs<X> in = attention_inputs(gpt_, l, B, T);
        const int S = context_ + T;
        const size_t row = size_t(in.NKV) * in.HS;
        both_.k.resize(size_t(B) * S * row), both_.v.resize(both_.k.size());
#pragma omp parallel for
        for (int b = 0; b < B; b++) {
            const size_t from = size_t(items_[b]) * context_ * row, to = size_t(b) * S * row;
            std::copy_n(&layers_[l].k[from], context_ * row, &both_.k[to]);
            std::copy_n(&layers_[l].v[from], context_ * row, &both_.v[to]);
            copy(both_.k.data(), both_.v.data(), S, context_, b, in, b);
        }
        AttentionForward<X> a = kernel_arguments(in, state(l), Statistics<X>{});
        a.S = S;
        a.k = {both_.k.data(), row}, a.v = {both_.v.data(), row};
        a.q_position = positions_.data();
        attention_forward(CPU{}, gpt_.net.layers[l].attention, a);
    }

    /// Keys and values of sequence b of `in` to sequence `to_b` of arrays with S rows each, from row `start` on.
    static void copy(X* k, X* v, int S, int start, int to_b, const LayerInputs<X>& in, int b) {
        const size_t row = size_t(in.NKV) * in.HS;
        for (int t = 0; t < in.T; t++) {
            const size_t to = (size_t(to_b) * S + start + t) * row, token = in.token(b, t);
            std::copy_n(in.k + token * in.qk_row, row, k + to);
            std::copy_n(in.v + token * in.v_row, row, v + to);
        }
    }

    LayerState<X>& state(int l) { return gpt_.layers[gpt_.layer_index(l)].attention; }

    GPT<CPU, X, A>& gpt_;
    Feed<CPU>& feed_;
    std::vector<Kept> layers_;
    Kept both_;                    // of one layer: (answers, context + T, NKV, HS)
    std::vector<int> items_;       // of each answer
    std::vector<int> positions_;   // (answers, NH, T)
    int context_ = 0;              // tokens
};
