// The part of cuBLASLt's interface that model/operations/matmul.cuh uses, on the CPU: column-major matrices, alpha op(A) op(B) + beta C
// (+ bias per row) in float32. Names, types and orders of arguments are the real header's, so that the same source compiles against
// either. Stricter than the library: what is undefined or slow there (a destroyed descriptor, an attribute of the wrong size, an address
// less aligned than promised, an algorithm for another problem) is CUBLAS_STATUS_INVALID_VALUE here. Every element is accessed by
// compiled code, so that AddressSanitizer sees overruns.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "../cublas.h"

inline const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown status";
}

inline size_t cublasLtGetVersion() { return 130000; }

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return emulator::cublas::destroy(handle, emulator::cublas::Kind::handle);
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                                 uint64_t columns, int64_t ld) {
    if (!rows || !columns || ld < int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = new cublasLtMatrixLayoutOpaque_t{.type = type, .rows = rows, .columns = columns, .ld = ld};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return emulator::cublas::destroy(layout, emulator::cublas::Kind::layout);
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute, cudaDataType_t scale) {
    *operation = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
    return emulator::cublas::destroy(operation, emulator::cublas::Kind::operation);
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                                     const void* value, size_t bytes) {
    using namespace emulator::cublas;
    if (!alive(operation, Kind::operation)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return store(operation->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return store(operation->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return store(operation->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return store(operation->bias, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    *preference = new cublasLtMatmulPreferenceOpaque_t;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return emulator::cublas::destroy(preference, emulator::cublas::Kind::preference);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                           size_t bytes) {
    using namespace emulator::cublas;
    if (!alive(preference, Kind::preference)) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return store(preference->workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return store(preference->reductions, value, bytes);
        default: break;
    }
    const int matrix = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    return matrix >= 0 && matrix < 4 ? store(preference->alignment[matrix], value, bytes) : CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                                     cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t* results, int* found) {
    using namespace emulator::cublas;
    const bool alive_all = alive(handle, Kind::handle) && alive(operation, Kind::operation) && alive(a, Kind::layout) &&
                           alive(b, Kind::layout) && alive(c, Kind::layout) && alive(d, Kind::layout) &&
                           alive(preference, Kind::preference);
    if (!alive_all || wanted < 1 || !results || !found) return CUBLAS_STATUS_INVALID_VALUE;
    const Problem problem{*operation, *a, *b, *c, *d};
    *found = 0;
    if (!problem.shapes_agree()) return CUBLAS_STATUS_INVALID_VALUE;
    if (!problem.types_agree()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (preference->workspace < WORKSPACE_USED) return CUBLAS_STATUS_NOT_SUPPORTED;
    Algorithm algorithm{problem.hash(), {}};
    std::copy_n(preference->alignment, 4, algorithm.alignment);
    for (algorithm.alignment[4] = 256; !aligned(operation->bias, algorithm.alignment[4]);) algorithm.alignment[4] /= 2;
    *results = {};
    std::memcpy(&results->algo, &algorithm, sizeof algorithm);
    results->workspaceSize = WORKSPACE_USED;
    results->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* A,
                                     cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta,
                                     const void* C, cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                                     const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream,
                                     const emulator::Location& at = emulator::Location::current()) {
    using namespace emulator::cublas;
    const bool alive_all = alive(handle, Kind::handle) && alive(operation, Kind::operation) && alive(a, Kind::layout) &&
                           alive(b, Kind::layout) && alive(c, Kind::layout) && alive(d, Kind::layout);
    if (!alive_all || !alpha || !beta || !A || !B || !C || !D || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    const Problem problem{*operation, *a, *b, *c, *d};
    Algorithm algorithm;
    std::memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.problem != problem.hash() || workspace_bytes < WORKSPACE_USED) return CUBLAS_STATUS_INVALID_VALUE;
    if (!workspace || !aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    const void* addresses[4] = {A, B, C, D};
    for (int n = 0; n < 4; n++)
        if (!aligned(addresses[n], algorithm.alignment[n])) return CUBLAS_STATUS_INVALID_VALUE;
    const bool bias = operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (bias && (!operation->bias || !aligned(operation->bias, algorithm.alignment[4]))) return CUBLAS_STATUS_INVALID_VALUE;

    // alpha, beta and the descriptors are read now, the matrices when the stream reaches the call.
    const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
    auto work = [=] {
        std::memset(workspace, 0xff, WORKSPACE_USED);   // no other data may be there
        multiply(problem, factor, A, B, keep, C, D);
    };
    emulator::enqueue(stream, work, at);
    return CUBLAS_STATUS_SUCCESS;
}
