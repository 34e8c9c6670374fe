// A plain causal layer read by a mechanism for inference only, on the CPU (on a GPU: psa_rows.cuh, adaspa_gpu.cuh). AdaSpa reads prompts
// and keeps decode dense; PSA reads token by token and keeps prompts dense.
#pragma once
#include <string>
#include <vector>

#include "attention/inference/adaspa.h"
#include "attention/inference/options.h"
#include "attention/inference/psa.h"
#include "model/base/text.h"
#include "model/config.h"

/// Counts of pairs read, summed over layers, heads and texts.
struct InferenceCount {
    PsaCount psa;
    AdaSpaCount adaspa;
    void add(const InferenceCount& other) { psa.add(other.psa), adaspa.add(other.adaspa); }

    /// Pairs read, as a share of dense attention's; NaN if nothing was read.
    double pairs_read() const { return psa.rows > 0 ? psa.visited / psa.cached : adaspa.kept / adaspa.candidates; }
    /// The mean share of a row's attention mass in the pairs read: measured by AdaSpa, certified or estimated by PSA.
    double mass_kept() const { return psa.rows > 0 ? psa.retained / psa.rows : adaspa.recall / adaspa.heads; }
};

/// A sentence for the log; empty if nothing was read.
inline std::string describe(const InferenceCount& count, PsaBound bound) {
    if (count.psa.rows > 0)
        return text("psa: read %.1f%% of the cached pairs; %s share of the attention mass: %.4f on average, at least %.4f",
                    100 * count.pairs_read(), bound == PsaBound::upper ? "certified" : "estimated", count.mass_kept(),
                    count.psa.least_retained);
    if (count.adaspa.heads > 0)
        return text("adaspa: read %.1f%% of the pairs of blocks of prompts, which hold %.4f of the attention mass",
                    100 * count.pairs_read(), count.mass_kept());
    return "";
}

/// Arguments: one text (B = 1) of T rows behind S - T keys; out and lse are written. Instantiated for float and double in reader.cpp,
/// because nvcc cannot compile SIMD packs for a device.
template <class X>
class InferenceReader {
public:
    InferenceReader(const Config& config, const Inference& how) : causal_(config, 0), how_(how) {}

    /// Precondition: T == S.
    InferenceCount prompt(const AttentionForward<X>& a) const;

    /// Precondition: q_position is set where T < S.
    InferenceCount continuation(const AttentionForward<X>& a) const;

    /// A whole text (T == S), read by the mechanism. AdaSpa's choice of blocks then looks ahead.
    InferenceCount whole(const AttentionForward<X>& a) const {
        return how_.attention == InferenceAttention::psa ? continuation(a) : prompt(a);
    }

    bool looks_ahead() const { return how_.attention == InferenceAttention::adaspa; }
    const Inference& how() const { return how_; }

    /// Memory of one text of T tokens.
    static size_t bytes(const Config& c, int T, const Inference& how) {
        BumpAllocator memory(nullptr);
        if (how.attention == InferenceAttention::psa) PsaBlocks<X>(memory, how.psa, {1, T, c.C, c.NH, c.NKV, c.HS});
        else AdaSpaMemory<CPU>(memory, how.adaspa, c.NH, T);
        return memory.bytes();
    }

private:
    Policy causal_;
    Inference how_;
};
