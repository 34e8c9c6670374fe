// Decoding of SeerAttention (attention/seer.cuh): all in block_sparse.cuh.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/seer.cuh"
