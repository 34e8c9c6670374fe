// Matrix products on the GPU through cuBLASLt. What a product needs besides its addresses (descriptors, layouts, the algorithm) is
// a plan, made once per kind of product and kept: later calls only launch, and may be captured in a CUDA graph.
//
// cuBLASLt's matrices are column-major, ours row-major. The bytes of a row-major (rows, columns) matrix are those of a column-major
// (columns, rows) matrix, so each matrix is described as its transpose, and the transpose of the product is asked for:
//     c = op(a) op(b)   <=>   c^T = op(b)^T op(a)^T
// Hence b goes first and M and N change places; each operand keeps its flag; a leading dimension is the length of a row of ours.
//
// The algorithm is the first answer of the library's heuristic: the same in every run and on every rank. To time the candidates
// instead would let the order of a sum depend on the noise of a measurement, and two runs would no longer give the same bits.
#pragma once
#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>

#include "model/device/blas.h"
#include "model/device/device.h"

/// GPU memory that all products share, one after the other: NVIDIA advises 32 MiB for Hopper, less for earlier chips.
inline constexpr size_t MATMUL_WORKSPACE = size_t(32) << 20;

/// Every address is a multiple of 16 bytes, which the fast kernels' copies ask for. The library assumes 256 unless told.
inline constexpr uint32_t MATMUL_ALIGNMENT = 16;

/// The kind of a product c (M, N) = [c +] op(a) op(b) [+ bias]: what its plan depends on.
struct Product {
    int M, N, K;
    Transpose ta, tb;
    cudaDataType_t inputs, output;
    bool bias;
    Write write;
    auto operator<=>(const Product&) const = default;
};

template <class X>
inline constexpr cudaDataType_t matmul_type = std::is_same_v<X, bf16> ? CUDA_R_16BF : CUDA_R_32F;

/// "(64, 768) x (768, 2304)^T, bf16 to float32, with bias": the matrices as they are stored, for messages.
inline std::string describe(const Product& p) {
    auto stored = [](int rows, int columns, Transpose t) {
        std::ostringstream text;
        if (t == Transpose::yes) text << "(" << columns << ", " << rows << ")^T";
        else text << "(" << rows << ", " << columns << ")";
        return text.str();
    };
    auto type = [](cudaDataType_t t) { return std::string(t == CUDA_R_16BF ? "bf16" : "float32"); };
    return stored(p.M, p.K, p.ta) + " x " + stored(p.K, p.N, p.tb) + ", " + type(p.inputs) + " to " + type(p.output) +
           (p.bias ? ", with bias" : "") + (p.write == Write::add ? ", added" : "");
}

/// Throws when a call of cuBLASLt failed; `what` says for what it was.
inline void check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const Exit code = status == CUBLAS_STATUS_ALLOC_FAILED ? Exit::out_of_memory : Exit::rank;
    fail(code, "cuBLASLt reports ", cublasLtGetStatusName(status), " for ", what);
}

template <auto destroy>
struct DestroyWith {
    template <class T>
    void operator()(T* object) const {
        destroy(object);
    }
};

/// A stored row-major (rows, columns) matrix, as cuBLASLt sees it.
class MatmulLayout {
public:
    MatmulLayout(cudaDataType_t type, int rows, int columns, const std::string& what) {
        cublasLtMatrixLayout_t made = nullptr;
        check(cublasLtMatrixLayoutCreate(&made, type, uint64_t(columns), uint64_t(rows), int64_t(columns)), what);
        layout_.reset(made);
    }
    operator cublasLtMatrixLayout_t() const { return layout_.get(); }

private:
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyWith<cublasLtMatrixLayoutDestroy>> layout_;
};

/// Everything about one kind of product that does not change from call to call.
class MatmulPlan {
public:
    MatmulPlan(cublasLtHandle_t handle, const Product& p) : MatmulPlan(handle, p, describe(p)) {}

    template <class X, class Y>
    void run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream, Y* c, const X* a, const X* b, const Y* bias) {
        const float alpha = 1, beta = product_.write == Write::add ? 1 : 0;
        if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias));   // a store on the host
        const cublasStatus_t status = cublasLtMatmul(handle, operation_.get(), &alpha, b, b_, a, a_, &beta, c, c_, c, c_,
                                                     &algorithm_, workspace, MATMUL_WORKSPACE, stream);
        if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(product_));
    }

private:
    MatmulPlan(cublasLtHandle_t handle, const Product& p, const std::string& what)
        : product_(p),
          a_(p.inputs, p.ta == Transpose::yes ? p.K : p.M, p.ta == Transpose::yes ? p.M : p.K, what),
          b_(p.inputs, p.tb == Transpose::yes ? p.N : p.K, p.tb == Transpose::yes ? p.K : p.N, what),
          c_(p.output, p.M, p.N, what) {
        cublasLtMatmulDesc_t made = nullptr;
        check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), what);   // not TF32: float32 is the exact mode
        operation_.reset(made);
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.tb == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.ta == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            // The heuristic reads nothing there, but takes the alignment of every later bias from the address it finds.
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t(MATMUL_ALIGNMENT)));
        }
        choose_algorithm(handle, what);
    }

    void choose_algorithm(cublasLtHandle_t handle, const std::string& what) {
        cublasLtMatmulPreference_t made = nullptr;
        check(cublasLtMatmulPreferenceCreate(&made), what);
        const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyWith<cublasLtMatmulPreferenceDestroy>> preference(made);
        auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value), what);
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(MATMUL_WORKSPACE));
        // A sum that is split over blocks is added up in float32 in a second step: no rounding to bf16 on the way, a fixed order.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            prefer(matrix, MATMUL_ALIGNMENT);

        cublasLtMatmulHeuristicResult_t best = {};
        int found = 0;
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_, a_, c_, c_, made, 1, &best, &found);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0))
            fail(Exit::rank, "cuBLASLt has no algorithm on this GPU for the product ", what);
        check(status, what);
        check(best.state, what);
        algorithm_ = best.algo;
    }

    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
        const cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value);
        if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(product_));
    }

    Product product_;
    std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyWith<cublasLtMatmulDescDestroy>> operation_;
    MatmulLayout a_, b_, c_;
    cublasLtMatmulAlgo_t algorithm_;
};

/// The library's handle, the workspace and the plans of this process. One thread and one stream use it: the workspace is shared.
class Matmuls {
public:
    /// Made by the first call, which therefore may not be captured in a graph. Never destroyed: at the end of a process the CUDA
    /// runtime may be gone before this would be, and the driver takes the memory back anyway.
    static Matmuls& of_process() {
        static Matmuls& matmuls = *new Matmuls;
        return matmuls;
    }

    MatmulPlan& plan(const Product& product) {
        const auto known = plans_.find(product);
        if (known != plans_.end()) return known->second;
        plans_made_++;
        return plans_.try_emplace(product, handle_, product).first->second;
    }
    size_t plans_made() const { return plans_made_; }
    cublasLtHandle_t handle() const { return handle_; }
    void* workspace() const { return workspace_; }

private:
    Matmuls() {
        check(cublasLtCreate(&handle_), "its handle");
        check(cudaMalloc(&workspace_, MATMUL_WORKSPACE));
    }
    cublasLtHandle_t handle_ = nullptr;
    void* workspace_ = nullptr;
    std::map<Product, MatmulPlan> plans_;
    size_t plans_made_ = 0;
};

/// Takes the handle and MATMUL_WORKSPACE bytes of the current GPU now rather than at the first product.
inline void matmul_setup() { Matmuls::of_process(); }

/// c (M, N) = or += op(a) op(b) + bias, row-major without gaps: op(a) is (M, K), op(b) is (K, N); bias (N) may be null. All sums in
/// float32. Every address is a multiple of MATMUL_ALIGNMENT bytes; rows should be too (sizes multiples of 8), for speed.
template <class X, class Y>
void matmul(GPU device, Y* c, Transpose ta, const X* a, Transpose tb, const X* b, const Y* bias, int M, int N, int K, Write write) {
    const Product product{M, N, K, ta, tb, matmul_type<X>, matmul_type<Y>, bias != nullptr, write};
    for (const void* address : {static_cast<const void*>(c), static_cast<const void*>(a), static_cast<const void*>(b),
                                static_cast<const void*>(bias)})
        if (reinterpret_cast<uintptr_t>(address) % MATMUL_ALIGNMENT)
            fail(Exit::rank, "the product ", describe(product), " got the address ", address, ", which is not a multiple of ",
                 MATMUL_ALIGNMENT, " bytes");
    Matmuls& matmuls = Matmuls::of_process();
    matmuls.plan(product).run(matmuls.handle(), matmuls.workspace(), device.stream, c, a, b, bias);
}
