// Log-likelihoods of given tokens after given contexts.
#pragma once
#include <algorithm>
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

/// The arguments for rows [row, row + T) on their own: one text of a batch.
template <class X>
AttentionForward<X> part_of(AttentionForward<X> a, int row, int T) {
    a.B = 1, a.T = a.S = T;
    a.q.data += row * a.q.row, a.k.data += row * a.k.row, a.v.data += row * a.v.row;
    a.out += size_t(row) * a.NH * a.HS;
    a.lse += size_t(row) * a.NH;   // not read; separate for each text
    return a;
}

/// gpt_forward() of texts, read whole by `reader` in place of the variant's attention. Returns its counts. Precondition: a plain causal
/// variant.
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
    const AttentionOverride texts{nullptr, attend};
    gpt_forward(CPU{}, gpt, batch, &texts);
    return read;
}
