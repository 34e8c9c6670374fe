// Decoding of the adaptive sparse transformer block (attention/adaptive_sparse.cuh): all in block_sparse.cuh.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/adaptive_sparse.cuh"
