// The attention of ./generate and --evaluate: the checkpoint's variant, or a mechanism for inference only.
#pragma once

enum class PsaBound { mean, upper };

/// Progressive sparse attention, in decode: psa.h.
struct PsaOptions {
    double eps = 0.95;   // share of the attention mass to retain; 0: the first block, 1: all blocks
    int block = 64;      // keys
    PsaBound bound = PsaBound::mean;
};

/// AdaSpa, in prefill: adaspa.h.
struct AdaSpaOptions {
    double sparsity = 0.8;   // share of the block pairs that is skipped, below 1
    int block = 64;          // tokens, a multiple of TILE
};

enum class InferenceAttention { trained, psa, adaspa };

struct Inference {
    InferenceAttention attention = InferenceAttention::trained;
    PsaOptions psa;
    AdaSpaOptions adaspa;
};
