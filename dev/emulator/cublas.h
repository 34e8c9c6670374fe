// Matrix products in float32, as computed by include/cublasLt.h.
#pragma once
#include <cuda_bf16.h>

#include <cstring>
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
        for (const auto* layout : {&a, &b, &c, &d}) h = hash_of(h, layout->type, layout->rows, layout->columns, layout->ld);
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
    const auto transpose = [](bool yes) { return yes ? Transpose::yes : Transpose::no; };
    // Column by column here, row by row in gemm(): transposed.
    gemm(transpose(p.transposed_b()), transpose(p.transposed_a()), int(p.n()), int(p.m()), int(p.k()), alpha, right.data(), p.b.rows,
         left.data(), p.a.rows, beta, result.data(), size_t(p.m()));
    if (p.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        const std::vector<float> bias = read({Kind::layout, p.d.type, p.m(), 1, int64_t(p.m())}, p.operation.bias);
        for (size_t at = 0; at < result.size(); at++) result[at] += bias[at % p.m()];
    }
    write(p.d, d, result);
}

}   // namespace emulator::cublas
