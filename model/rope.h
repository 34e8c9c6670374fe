// Rotary position embedding: its frequencies, plain or scaled for texts longer than those of pretraining, and the rotation of a pair.
#pragma once
#include <cmath>
#include <cstddef>

/// "rope_scaling" of config.json. Its bounds count how often a pair of channels turns within the texts of pretraining: a pair above
/// `fast` keeps its frequency, one below `slow` has it divided by `factor`, and one between them has a mixture.
struct RopeScaling {
    enum class Type { none, linear, yarn, llama3 };
    Type type = Type::none;
    double factor = 1;
    int original_positions = 0;    // yarn, llama3: tokens of the texts of pretraining    (original_max_position_embeddings)
    double fast = 0, slow = 0;     // (beta_fast, beta_slow; llama3: high_freq_factor, low_freq_factor)
    bool truncate = true;          // yarn: both bounds are moved outwards to whole pairs
    double attention_factor = 1;   // yarn: of every cosine and sine, so that scores have its square
    bool operator==(const RopeScaling&) const = default;
};

/// RoPE of heads of HS channels. Pair d is the channels d and d + HS/2.
struct Rope {
    int HS;
    double theta;
    RopeScaling scaling = {};

    /// Radians per position of pair d: theta^(-2d/HS), and with scaling theta^(-2d/HS) (kept + (1 - kept) / factor). In double;
    /// transformers rounds it to float32.
    constexpr double frequency(int d) const {
        const double plain = std::pow(theta, -2.0 * d / HS);
        if (scaling.type == RopeScaling::Type::none) return plain;
        const double kept = kept_share(d, plain);
        return plain * (kept + (1 - kept) / scaling.factor);
    }

private:
    static constexpr double TURN = 6.283185307179586;

    /// linear: position interpolation (Chen et al. 2023, arXiv 2306.15595). yarn: Peng et al. 2023 (arXiv 2309.00071, section 3.2). llama3:
    /// Llama 3.1. All three as in transformers' modeling_rope_utils.py.
    constexpr double kept_share(int d, double plain) const {
        switch (scaling.type) {
            case RopeScaling::Type::yarn: return 1 - between(d, first_mixed_pair(), last_mixed_pair());
            case RopeScaling::Type::llama3: return between(scaling.original_positions * plain / TURN, scaling.slow, scaling.fast);
            default: return 0;
        }
    }
    /// 0 at `from` and before, 1 at `to` and behind, linear between them. YaRN's bounds may coincide, or be in the other order where both
    /// are behind the last pair.
    static constexpr double between(double x, double from, double to) {
        return std::fmin(std::fmax((x - from) / (from == to ? 0.001 : to - from), 0.0), 1.0);
    }
    /// YaRN's mixture is linear in d here, as in its code; in the paper it is linear in rotations, as in llama3.
    constexpr double first_mixed_pair() const {
        const double pair = pair_of(scaling.fast);
        return std::fmax(scaling.truncate ? std::floor(pair) : pair, 0.0);
    }
    constexpr double last_mixed_pair() const {
        const double pair = pair_of(scaling.slow);
        return std::fmin(scaling.truncate ? std::ceil(pair) : pair, HS - 1.0);
    }
    /// The d, not rounded, at which plain frequencies turn so often within the texts of pretraining.
    constexpr double pair_of(double rotations) const {
        return HS * std::log(scaling.original_positions / (rotations * TURN)) / (2 * std::log(theta));
    }
};

/// Rotates (x1, x2) by one angle, in place. With -sine it is the transpose, which is the gradient.
template <class W>
constexpr void rotate_pair(W& x1, W& x2, W cosine, W sine) {
    const W first = x1 * cosine - x2 * sine;
    x2 = x2 * cosine + x1 * sine;
    x1 = first;
}

/// RoPE tables (T, HS/2) for the rows of a sequence.
template <class W>
struct Angles {
    const W *cosine = nullptr, *sine = nullptr;
    constexpr explicit operator bool() const { return cosine != nullptr; }

    /// The tables from this position on.
    constexpr Angles from(int position, int HS) const {
        const size_t at = size_t(position) * (HS / 2);
        return {cosine + at, sine + at};
    }
};
