#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/adaptive_sparse.cuh"
