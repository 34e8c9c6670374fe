// The part of cuBLASLt's interface that model/matmul.cuh uses, carried out on the CPU: column-major matrices, alpha op(A) op(B) +
// beta C (+ bias per row) in float32. Names, types and orders of arguments are those of the real header, so that the same source
// compiles against either. Stricter than the library: what is undefined or merely slow there (a descriptor that was destroyed, an
// attribute of the wrong size, an address less aligned than promised, an algorithm chosen for another problem) is
// CUBLAS_STATUS_INVALID_VALUE here. Every element is read and written by compiled code, so that AddressSanitizer sees overruns.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <library_types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "model/device/blas.h"

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 } cublasComputeType_t;

typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
} cublasLtMatmulDescAttributes_t;
typedef enum { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;
typedef enum {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7,
} cublasLtReductionScheme_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
} cublasLtMatmulPreferenceAttributes_t;

namespace emulator::cublas {
/// What a live object starts with; its destruction wipes it out.
enum class Kind : uint64_t { dead = 0, handle = 0xb1a5'0001, operation, layout, preference };
}   // namespace emulator::cublas

struct cublasLtContext {
    emulator::cublas::Kind kind = emulator::cublas::Kind::handle;
};
struct cublasLtMatmulDescOpaque_t {
    emulator::cublas::Kind kind = emulator::cublas::Kind::operation;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
    emulator::cublas::Kind kind = emulator::cublas::Kind::layout;
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
    emulator::cublas::Kind kind = emulator::cublas::Kind::preference;
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
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
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

namespace emulator::cublas {
/// What the heuristic writes into a cublasLtMatmulAlgo_t: the problem it was asked about and what it was promised.
struct Algorithm {
    uint64_t problem;
    uint32_t alignment[4];
    uint32_t bias_alignment;
    uint32_t workspace;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
inline constexpr uint32_t WORKSPACE_USED = 4096;

template <class Object>
bool alive(const Object* object, Kind kind) {
    return object && object->kind == kind;
}
template <class Object>
cublasStatus_t destroy(Object* object, Kind kind) {
    if (!alive(object, kind)) return CUBLAS_STATUS_INVALID_VALUE;
    object->kind = Kind::dead;
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}
template <class Value>
cublasStatus_t store(Value& to, const void* from, size_t bytes) {
    if (!from || bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
inline bool aligned(const void* address, uint64_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

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
    /// bf16 in, bf16 or float32 out; float32 in and out: what the table of the library's manual allows and the engine uses.
    bool types_supported() const {
        return operation.scale == CUDA_R_32F && a.type == b.type && c.type == d.type &&
               (a.type == CUDA_R_16BF || d.type == CUDA_R_32F);
    }
    uint64_t hash() const {
        uint64_t h = 14695981039346656037u;
        for (const auto* layout : {&a, &b, &c, &d})
            for (uint64_t part : {uint64_t(layout->type), layout->rows, layout->columns, uint64_t(layout->ld)})
                h = (h ^ part) * 1099511628211u;
        for (int part : {int(operation.compute), int(operation.transpose_a), int(operation.transpose_b), int(operation.epilogue)})
            h = (h ^ uint64_t(part)) * 1099511628211u;
        return h;
    }
};

/// The stored matrix as floats without gaps, column-major.
inline std::vector<float> read(const cublasLtMatrixLayoutOpaque_t& layout, const void* data) {
    std::vector<float> numbers(layout.rows * layout.columns);
    for (uint64_t column = 0; column < layout.columns; column++)
        for (uint64_t row = 0; row < layout.rows; row++) {
            const uint64_t at = column * uint64_t(layout.ld) + row;
            float& number = numbers[column * layout.rows + row];
            if (layout.type == CUDA_R_32F) number = static_cast<const float*>(data)[at];
            else number = __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
        }
    return numbers;
}
inline void write(const cublasLtMatrixLayoutOpaque_t& layout, void* data, const std::vector<float>& numbers) {
    for (uint64_t column = 0; column < layout.columns; column++)
        for (uint64_t row = 0; row < layout.rows; row++) {
            const uint64_t at = column * uint64_t(layout.ld) + row;
            const float number = numbers[column * layout.rows + row];
            if (layout.type == CUDA_R_32F) static_cast<float*>(data)[at] = number;
            else static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(number);
        }
}

/// D = alpha op(A) op(B) + beta C + bias; C is not read when beta is 0.
inline void multiply(const Problem& p, float alpha, const void* a, const void* b, float beta, const void* c, void* d) {
    const std::vector<float> left = read(p.a, a), right = read(p.b, b);
    std::vector<float> result = beta == 0 ? std::vector<float>(p.m() * p.n()) : read(p.c, c);
    const int m = int(p.m()), n = int(p.n()), k = int(p.k());
    const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
    gemm(transpose(p.transposed_b()), transpose(p.transposed_a()), n, m, k, alpha, right.data(), p.b.rows, left.data(), p.a.rows, beta,
         result.data(), size_t(m));   // column by column here, row by row there: the transposed product
    if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const std::vector<float> bias = read({Kind::layout, p.d.type, p.m(), 1, int64_t(p.m())}, p.operation.bias);
        for (size_t at = 0; at < result.size(); at++) result[at] += bias[at % p.m()];
    }
    write(p.d, d, result);
}
}   // namespace emulator::cublas

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
    if (!problem.types_supported()) return CUBLAS_STATUS_NOT_SUPPORTED;
    Algorithm algorithm{problem.hash(), {}, 256, uint32_t(std::min<uint64_t>(preference->workspace, WORKSPACE_USED))};
    std::copy_n(preference->alignment, 4, algorithm.alignment);
    while (!aligned(operation->bias, algorithm.bias_alignment)) algorithm.bias_alignment /= 2;
    *results = {};
    std::memcpy(&results->algo, &algorithm, sizeof algorithm);
    results->workspaceSize = algorithm.workspace;
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
    if (algorithm.problem != problem.hash() || workspace_bytes < algorithm.workspace) return CUBLAS_STATUS_INVALID_VALUE;
    if (algorithm.workspace && (!workspace || !aligned(workspace, 16))) return CUBLAS_STATUS_INVALID_VALUE;
    const void* addresses[4] = {A, B, C, D};
    for (int n = 0; n < 4; n++)
        if (!aligned(addresses[n], algorithm.alignment[n])) return CUBLAS_STATUS_INVALID_VALUE;
    const bool bias = operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (bias && (!operation->bias || !aligned(operation->bias, algorithm.bias_alignment))) return CUBLAS_STATUS_INVALID_VALUE;

    // alpha, beta and the descriptors are read now, the matrices when the stream gets there.
    const float factor = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
    auto work = [=] {
        std::memset(workspace, 0xff, algorithm.workspace);   // nothing else may live there
        multiply(problem, factor, A, B, keep, C, D);
    };
    emulator::enqueue(stream, work, at);
    return CUBLAS_STATUS_SUCCESS;
}
