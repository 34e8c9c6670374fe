// Decoding of the adaptive sparse transformer block (attention/adaptive_sparse.cuh): block_sparse.cuh has all of it.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/adaptive_sparse.cuh"
