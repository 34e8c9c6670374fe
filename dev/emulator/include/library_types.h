// The number types that the CUDA libraries name, with the values of the real header.
#pragma once

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_16BF = 14,
} cudaDataType;
