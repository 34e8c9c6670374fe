// Decoding of SeerAttention (attention/seer.cuh): block_sparse.cuh has all of it.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/seer.cuh"
