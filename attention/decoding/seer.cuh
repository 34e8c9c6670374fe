#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/seer.cuh"
