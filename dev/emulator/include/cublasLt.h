// The part of cuBLASLt's interface that model/operations/matmul.cuh uses, on the CPU: column-major matrices without gaps, alpha
// op(A) op(B) + beta C (+ bias per row) in float32. Names, values and orders of arguments are the real headers', so that the same
// source compiles against either. Stricter than the library: an attribute of the wrong size, an address less aligned than promised
// or an algorithm for another problem is CUBLAS_STATUS_INVALID_VALUE. Every element is accessed by compiled code, so that
// AddressSanitizer sees overruns.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "model/device/blas.h"

typedef enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 } cudaDataType;
typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
} cublasLtMatmulDescAttributes_t;
typedef enum { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;
typedef enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 } cublasLtReductionScheme_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, columns;
    size_t size() const { return rows * columns; }
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace = 0;
    uint32_t reductions = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};   // of A, B, C, D
};
typedef cublasLtContext* cublasLtHandle_t;
typedef cublasLtMatmulDescOpaque_t* cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t* cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t* cublasLtMatmulPreference_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

namespace emulator::cublas {

template <class Value>
cublasStatus_t store(Value& to, const void* from, size_t bytes) {
    if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
inline bool aligned(const void* address, uint64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

/// FNV-1a over numbers.
template <class... Numbers>
uint64_t hash_of(uint64_t start, const Numbers&... numbers) {
    uint64_t h = start;
    for (uint64_t number : {uint64_t(numbers)...}) h = (h ^ number) * 1099511628211u;
    return h;
}

/// The matrices of one call.
struct Problem {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t a, b, c, d;

    bool transposed_a() const { return operation.transpose_a == CUBLAS_OP_T; }
    bool transposed_b() const { return operation.transpose_b == CUBLAS_OP_T; }
    uint64_t m() const { return transposed_a() ? a.columns : a.rows; }
    uint64_t k() const { return transposed_a() ? a.rows : a.columns; }
    uint64_t n() const { return transposed_b() ? b.rows : b.columns; }

    bool shapes_agree() const {
        return k() == (transposed_b() ? b.columns : b.rows) && d.rows == m() && d.columns == n() && c.rows == m() &&
               c.columns == n();
    }
    /// bf16 in, bf16 or float32 out; float32 in and out: the combinations that the library's manual allows and the engine uses.
    bool types_agree() const {
        return operation.scale == CUDA_R_32F && a.type == b.type && c.type == d.type &&
               (a.type == CUDA_R_16BF || d.type == CUDA_R_32F);
    }
    uint64_t hash() const {
        uint64_t h = hash_of(14695981039346656037u, operation.compute, operation.scale, operation.transpose_a, operation.transpose_b,
                             operation.epilogue);
        for (const auto* layout : {&a, &b, &c, &d}) h = hash_of(h, layout->type, layout->rows, layout->columns);
        return h;
    }
};

/// The contents of a cublasLtMatmulAlgo_t.
struct Algorithm {
    uint64_t problem;        // the heuristic's input
    uint16_t alignment[5];   // in bytes, of A, B, C, D and the bias: the heuristic's input
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
inline constexpr uint64_t WORKSPACE_USED = 4096;   // bytes

// ---- arithmetic

/// A matrix as floats.
inline std::vector<float> read(const cublasLtMatrixLayoutOpaque_t& layout, const void* data) {
    std::vector<float> numbers(layout.size());
    for (size_t n = 0; n < numbers.size(); n++)
        if (layout.type == CUDA_R_32F) numbers[n] = static_cast<const float*>(data)[n];
        else numbers[n] = __bfloat162float(static_cast<const __nv_bfloat16*>(data)[n]);
    return numbers;
}
inline void write(const cublasLtMatrixLayoutOpaque_t& layout, void* data, const std::vector<float>& numbers) {
    for (size_t n = 0; n < numbers.size(); n++)
        if (layout.type == CUDA_R_32F) static_cast<float*>(data)[n] = numbers[n];
        else static_cast<__nv_bfloat16*>(data)[n] = __float2bfloat16(numbers[n]);
}

/// D = alpha op(A) op(B) + beta C + bias; C is not read when beta is 0.
inline void multiply(const Problem& p, float alpha, const void* a, const void* b, float beta, const void* c, void* d) {
    const std::vector<float> left = read(p.a, a), right = read(p.b, b);
    std::vector<float> result = beta == 0 ? std::vector<float>(p.d.size()) : read(p.c, c);
    const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
    // Column by column here, row by row in gemm(): transposed.
    gemm(transpose(p.transposed_b()), transpose(p.transposed_a()), int(p.n()), int(p.m()), int(p.k()), alpha, right.data(), p.b.rows,
         left.data(), p.a.rows, beta, result.data(), size_t(p.m()));
    if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const std::vector<float> bias = read({p.d.type, p.m(), 1}, p.operation.bias);
        for (size_t at = 0; at < result.size(); at++) result[at] += bias[at % p.m()];
    }
    write(p.d, d, result);
}

}   // namespace emulator::cublas

inline const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown status";
}

inline size_t cublasLtGetVersion() { return 130000; }

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return *handle = new cublasLtContext, CUBLAS_STATUS_SUCCESS; }

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                                 uint64_t columns, int64_t ld) {
    if (!rows || !columns || ld != int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, columns};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete layout, CUBLAS_STATUS_SUCCESS; }

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute, cudaDataType_t scale) {
    return *operation = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale}, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) { return delete operation, CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                                     const void* value, size_t bytes) {
    using emulator::cublas::store;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return store(operation->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return store(operation->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return store(operation->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return store(operation->bias, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
    return *preference = new cublasLtMatmulPreferenceOpaque_t, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return delete preference, CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                           size_t bytes) {
    using emulator::cublas::store;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return store(preference->workspace, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return store(preference->reductions, value, bytes);
    return store(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int /*wanted*/,
                                                     cublasLtMatmulHeuristicResult_t* result, int* found) {
    using namespace emulator::cublas;
    const Problem problem{*operation, *a, *b, *c, *d};
    *found = 0;
    if (!problem.shapes_agree()) return CUBLAS_STATUS_INVALID_VALUE;
    if (!problem.types_agree() || preference->workspace < WORKSPACE_USED) return CUBLAS_STATUS_NOT_SUPPORTED;
    Algorithm algorithm{problem.hash(), {}};
    std::copy_n(preference->alignment, 4, algorithm.alignment);
    for (algorithm.alignment[4] = 256; !aligned(operation->bias, algorithm.alignment[4]);) algorithm.alignment[4] /= 2;
    *result = {};
    std::memcpy(&result->algo, &algorithm, sizeof algorithm);
    result->workspaceSize = WORKSPACE_USED;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* A,
                                     cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta,
                                     const void* C, cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t d,
                                     const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream,
                                     const emulator::Location& at = emulator::Location::current()) {
    using namespace emulator::cublas;
    const Problem problem{*operation, *a, *b, *c, *d};
    Algorithm algorithm;
    std::memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.problem != problem.hash() || workspace_bytes < WORKSPACE_USED) return CUBLAS_STATUS_INVALID_VALUE;
    if (!workspace || !aligned(workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    const void* addresses[5] = {A, B, C, D, operation->bias};
    for (int n = 0; n < (operation->epilogue == CUBLASLT_EPILOGUE_BIAS ? 5 : 4); n++)
        if (!addresses[n] || !aligned(addresses[n], algorithm.alignment[n])) return CUBLAS_STATUS_INVALID_VALUE;

    // alpha, beta and the descriptors are read now, the matrices when the stream reaches the call.
    const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
    auto work = [=] {
        std::memset(workspace, 0xff, WORKSPACE_USED);   // no other data may be there
        multiply(problem, factor, A, B, keep, C, D);
    };
    emulator::enqueue(stream, work, at);
    return CUBLAS_STATUS_SUCCESS;
}
