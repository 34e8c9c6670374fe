// What include/cublasLt.h computes: matrix products in float32 by algorithms that differ in the order of their sums.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "cublas_types.h"
#include "model/device/blas.h"

namespace emulator::cublas {

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

/// FNV-1a over numbers.
template <class... Numbers>
uint64_t hash_of(uint64_t start, const Numbers&... numbers) {
    uint64_t h = start;
    for (uint64_t number : {uint64_t(numbers)...}) h = (h ^ number) * 1099511628211u;
    return h;
}
inline uint32_t hash_of_types(cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                              cudaDataType_t c, cudaDataType_t d) {
    return uint32_t(hash_of(14695981039346656037u, compute, scale, a, b, c, d));
}

/// bf16 in, bf16 or float32 out; float32 in and out: what the table of the library's manual allows and the engine uses.
inline bool types_supported(cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d) {
    return scale == CUDA_R_32F && a == b && c == d && (a == CUDA_R_16BF || d == CUDA_R_32F);
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
    bool types_agree() const { return types_supported(operation.scale, a.type, b.type, c.type, d.type); }
    uint32_t types() const { return hash_of_types(operation.compute, operation.scale, a.type, b.type, c.type, d.type); }
    uint64_t hash() const {
        uint64_t h = hash_of(types(), operation.transpose_a, operation.transpose_b, operation.epilogue);
        for (const auto* layout : {&a, &b, &c, &d}) h = hash_of(h, layout->rows, layout->columns, layout->ld);
        return h;
    }
};

// ---- algorithms

/// What a cublasLtMatmulAlgo_t holds here.
struct Algorithm {
    uint64_t problem;         // that the heuristic was asked about; 0 where cublasLtMatmulAlgoInit() has made it
    uint32_t types;           // Problem::types() of what it was made for
    uint32_t attributes[9];   // by cublasLtMatmulAlgoConfigAttributes_t
    uint16_t alignment[5];    // in bytes, of A, B, C, D and the bias, as the heuristic was told
    uint32_t operator[](cublasLtMatmulAlgoConfigAttributes_t attribute) const { return attributes[attribute]; }
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/// The kinds of algorithm that there are. Each takes the sums in an order of its own, so that results tell which it was: 10 from
/// the first product to the last, in as many parts as it is told; 21 from the last to the first; 66 in parts of 16, or with its
/// custom option of 8.
struct Family {
    uint32_t id, stages, most_custom;
    bool splits, clusters;
};
inline constexpr Family FAMILIES[] = {{10, 0, 0, true, false}, {21, 8, 0, false, false}, {66, 5, 1, false, true}};
inline constexpr uint32_t TILES[] = {15, 20}, CLUSTERS[] = {0, 2, 3};
inline constexpr uint32_t WORKSPACE_USED = 4096;

/// What the heuristic proposes, in its order: id, tile, parts, reduction, swizzle, custom option, stages, inner shape, cluster.
inline constexpr uint32_t PROPOSALS[][9] = {
    {10, 20, 1, 0, 0, 0, 0, 0, 0}, {66, 20, 1, 0, 0, 0, 5, 0, 0}, {21, 20, 1, 0, 0, 0, 8, 0, 0},
    {10, 15, 2, 2, 0, 0, 0, 0, 0}, {66, 15, 1, 0, 1, 1, 5, 0, 3}, {10, 15, 4, 2, 1, 0, 0, 0, 0},
};

inline const Family* family_of(uint32_t id) {
    for (const Family& family : FAMILIES)
        if (family.id == id) return &family;
    return nullptr;
}

template <size_t N>
bool is_one_of(const uint32_t (&known)[N], uint32_t number) {
    return std::find(known, known + N, number) != known + N;
}

/// Whether an algorithm can run, and for this problem.
inline bool supports(const Algorithm& x, const Problem& p) {
    const Family* family = family_of(x[CUBLASLT_ALGO_CONFIG_ID]);
    if (!family) return false;
    const uint32_t parts = x[CUBLASLT_ALGO_CONFIG_SPLITK_NUM], cluster = x[CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID];
    const uint32_t reduction = x[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME];
    const bool adds_up = reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE || reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    return x[CUBLASLT_ALGO_CONFIG_STAGES_ID] == family->stages && x[CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION] <= family->most_custom &&
           is_one_of(TILES, x[CUBLASLT_ALGO_CONFIG_TILE_ID]) && parts >= 1 && parts <= (family->splits ? p.k() : 1) &&
           (parts > 1 ? adds_up : reduction == CUBLASLT_REDUCTION_SCHEME_NONE) && x[CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING] <= 1 &&
           x[CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID] == 0 && is_one_of(CLUSTERS, cluster) && (cluster == 0 || family->clusters);
}

/// In bytes: the parts of a split sum are added up there.
inline uint64_t workspace_of(const Algorithm& x, const Problem& p) {
    const uint64_t parts = x[CUBLASLT_ALGO_CONFIG_SPLITK_NUM];
    return parts > 1 ? parts * p.m() * p.n() * sizeof(float) : WORKSPACE_USED;
}

// ---- arithmetic

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

/// The last row becomes the first, or the last column.
inline void reverse(std::vector<float>& x, uint64_t rows, bool its_rows) {
    float* const begin = x.data();
    for (uint64_t at = 0; its_rows && at < x.size(); at += rows) std::reverse(begin + at, begin + at + rows);
    for (uint64_t at = 0, end = x.size(); !its_rows && at + rows < end; at += rows, end -= rows)
        std::swap_ranges(begin + at, begin + at + rows, begin + end - rows);
}

/// How many products an algorithm adds up before it adds them to what it has.
inline uint64_t part_length(const Algorithm& x, uint64_t k) {
    if (x[CUBLASLT_ALGO_CONFIG_ID] == 66) return x[CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION] ? 8 : 16;
    const uint64_t parts = x[CUBLASLT_ALGO_CONFIG_SPLITK_NUM];
    return (k + parts - 1) / parts;
}

/// D = alpha op(A) op(B) + beta C + bias; C is not read when beta is 0.
inline void multiply(const Problem& p, const Algorithm& x, float alpha, const void* a, const void* b, float beta, const void* c,
                     void* d) {
    std::vector<float> left = read(p.a, a), right = read(p.b, b);
    std::vector<float> result = beta == 0 ? std::vector<float>(p.m() * p.n()) : read(p.c, c);
    if (x[CUBLASLT_ALGO_CONFIG_ID] == 21) reverse(left, p.a.rows, p.transposed_a()), reverse(right, p.b.rows, !p.transposed_b());
    const uint64_t part = part_length(x, p.k());
    const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
    for (uint64_t k = 0; k < p.k(); k += part) {   // column by column here, row by row in gemm(): transposed
        const float* const from_left = left.data() + k * (p.transposed_a() ? 1 : p.a.rows);
        const float* const from_right = right.data() + k * (p.transposed_b() ? p.b.rows : 1);
        gemm(transpose(p.transposed_b()), transpose(p.transposed_a()), int(p.n()), int(p.m()), int(std::min(part, p.k() - k)),
             alpha, from_right, p.b.rows, from_left, p.a.rows, k == 0 ? beta : 1, result.data(), size_t(p.m()));
    }
    if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const std::vector<float> bias = read({Kind::layout, p.d.type, p.m(), 1, int64_t(p.m())}, p.operation.bias);
        for (size_t at = 0; at < result.size(); at++) result[at] += bias[at % p.m()];
    }
    write(p.d, d, result);
}

}   // namespace emulator::cublas
