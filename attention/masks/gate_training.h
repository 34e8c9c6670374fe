// Distillation of a gate or indexer that chooses a mask. The language model's loss has no gradient for it, so it is trained on the
// weights of dense attention.
#pragma once

enum class GateTraining {
    off,
    joint,       // together with the rest of the model
    gate_only,   // the gate or indexer alone; attention is dense
};
