// Matrix products on the GPU through cuBLASLt. A plan holds the descriptors, layouts and algorithm of a product, everything but the
// addresses. It is made once per kind of product and cached: later calls only launch, and may be captured in a CUDA graph.
//
// cuBLASLt's matrices are column-major, ours row-major. A row-major (rows, columns) matrix has the bytes of a column-major
// (columns, rows) matrix, so each matrix is described as its transpose, and the transpose of the product is computed:
//     c = op(a) op(b)   <=>   c^T = op(b)^T op(a)^T
// Hence b goes first and M and N are swapped; each operand keeps its flag; a leading dimension is the length of one of our rows.
//
// The algorithm is the heuristic's first proposal: the same in every run and on every rank. Timing candidates during training would
// make the order of summation depend on measurement noise, and runs would no longer be bit-identical.
#pragma once
#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include "model/base/text.h"
#include "model/device/blas.h"
#include "model/device/device.h"

/// Bytes of workspace on a GPU with this many multiprocessors, shared by all products in turn. A product with few tiles and long sums,
/// such as a weight gradient, splits its sums over the multiprocessors (split-K) and leaves float32 tiles there to be added up: one of
/// 128 x 256 takes 128 KiB, so there is room for eight from each. 132 MiB on an H200, where cuBLAS itself takes 32.
constexpr size_t matmul_workspace(int multiprocessors) { return size_t(multiprocessors) << 20; }

/// Every address is a multiple of 16 bytes, as the fast kernels' copies require. The library's default assumption is 256.
inline constexpr uint32_t MATMUL_ALIGNMENT = 16;

/// The kind of a product c (M, N) = [added +] op(a) op(b) [+ bias]: all parameters of its plan.
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

/// "(64, 768) x (768, 2304)^T, bf16 to float32, with bias": the matrices as stored; for messages.
inline std::string describe(const Product& p) {
    auto stored = [](int rows, int columns, Transpose t) {
        return t == Transpose::yes ? text("(%d, %d)^T", columns, rows) : text("(%d, %d)", rows, columns);
    };
    auto type = [](cudaDataType_t t) { return std::string(t == CUDA_R_16BF ? "bf16" : "float32"); };
    return stored(p.M, p.K, p.ta) + " x " + stored(p.K, p.N, p.tb) + ", " + type(p.inputs) + " to " + type(p.output) +
           (p.bias ? ", with bias" : "") + (p.write == Write::add ? ", added" : "");
}

/// Exit::out_of_memory or Exit::rank if a cuBLASLt call failed; `what` names the product in the message.
inline void check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const Exit code = status == CUBLAS_STATUS_ALLOC_FAILED ? Exit::out_of_memory : Exit::rank;
    fail(code, "cuBLASLt reports ", cublasLtGetStatusName(status), " for ", what);
}

/// cuBLASLt's layout of a stored row-major (rows, columns) matrix.
using MatmulLayout = std::shared_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>>;
inline MatmulLayout matmul_layout(cudaDataType_t type, int rows, int columns, const std::string& what) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type, uint64_t(columns), uint64_t(rows), int64_t(columns)), what);
    return {made, cublasLtMatrixLayoutDestroy};
}

/// The state of one kind of product that does not change between calls.
class MatmulPlan {
public:
    /// `workspace` is the number of bytes that the algorithm may use. Exit::rank if the library has no algorithm for the product.
    MatmulPlan(cublasLtHandle_t handle, const Product& p, size_t workspace)
        : handle_(handle),
          product_(p),
          what_(describe(p)),
          a_(matmul_layout(p.inputs, p.ta == Transpose::yes ? p.K : p.M, p.ta == Transpose::yes ? p.M : p.K, what_)),
          b_(matmul_layout(p.inputs, p.tb == Transpose::yes ? p.N : p.K, p.tb == Transpose::yes ? p.K : p.N, what_)),
          c_(matmul_layout(p.output, p.M, p.N, what_)) {
        cublasLtMatmulDesc_t made = nullptr;
        check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), what_);   // not TF32: float32 serves as the reference
        operation_ = {made, cublasLtMatmulDescDestroy};
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.tb == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.ta == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (p.bias) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
            // The heuristic does not read the bias, but takes its alignment from this address.
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t(MATMUL_ALIGNMENT)));
        }
        algorithm_ = first_proposal(workspace);
    }

    /// Precondition: matrices of the product's types. `bias` is read only if the product has one, `added` and `scale` only if it adds.
    void run(const Workspace& workspace, cudaStream_t stream, void* c, const void* a, const void* b, const void* bias,
             const void* added, float alpha, float scale) {
        const float beta = product_.write == Write::add ? scale : 0;
        if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);   // a store on the host
        const void* const from = added ? added : c;   // not read if beta is 0
        check(cublasLtMatmul(handle_, operation_.get(), &alpha, b, b_.get(), a, a_.get(), &beta, from, c_.get(), c, c_.get(), &algorithm_,
                             workspace.data, workspace.bytes, stream), what_);
    }

private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
        check(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value), what_);
    }

    /// The library's best guess.
    cublasLtMatmulAlgo_t first_proposal(size_t workspace) const {
        cublasLtMatmulPreference_t made = nullptr;
        check(cublasLtMatmulPreferenceCreate(&made), what_);
        const std::shared_ptr<void> preference(made, cublasLtMatmulPreferenceDestroy);
        auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value), what_);
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace));
        // Split-K sums are added up in float32 in a second step: no intermediate rounding to bf16, fixed order.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
        for (auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            prefer(matrix, MATMUL_ALIGNMENT);

        cublasLtMatmulHeuristicResult_t proposal{};
        int found = 0;
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), made, 1, &proposal, &found);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, what_);
        if (found == 0 || proposal.state != CUBLAS_STATUS_SUCCESS)
            fail(Exit::rank, "cuBLASLt has no algorithm on this GPU for the product ", what_);
        return proposal.algo;
    }

    cublasLtHandle_t handle_;
    Product product_;
    std::string what_;
    std::shared_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>> operation_;
    MatmulLayout a_, b_, c_;
    cublasLtMatmulAlgo_t algorithm_{};
};

/// This process's cuBLASLt handle, workspace and plans. For one thread and one stream, as all products share the workspace.
class Matmuls {
public:
    /// Constructed by the first call, which therefore must not be captured in a graph. Never destroyed: at exit the CUDA runtime
    /// may already be gone, and the driver frees the memory anyway.
    static Matmuls& of_process() {
        static Matmuls& matmuls = *new Matmuls;
        return matmuls;
    }

    MatmulPlan& plan(const Product& product) {
        return plans_.try_emplace(product, handle_, product, workspace_.bytes).first->second;
    }

    size_t plans_made() const { return plans_.size(); }
    const Workspace& workspace() const { return workspace_; }

private:
    Matmuls() {
        int number = 0, multiprocessors = 0;
        check(cudaGetDevice(&number));
        check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number));
        check(cublasLtCreate(&handle_), "its handle");
        workspace_.bytes = matmul_workspace(multiprocessors);
        check(gpu_malloc(workspace_.data, workspace_.bytes));
    }
    cublasLtHandle_t handle_ = nullptr;
    Workspace workspace_;
    std::map<Product, MatmulPlan> plans_;
};

/// Precondition: every address is a multiple of MATMUL_ALIGNMENT bytes (Exit::rank); for speed, rows should be too (sizes multiples
/// of 8). c (M, N) = beta added + alpha op(a) op(b) + bias, row-major and packed: op(a) is (M, K), op(b) is (K, N); bias (N) and
/// added (M, N) may be null; added may be c itself. Sums in float32, rounded once.
template <class X, class Y>
void matmul(GPU device, Y* c, Transpose ta, const X* a, Transpose tb, const X* b, const Y* bias, const Y* added, int M, int N,
            int K, float alpha = 1, float beta = 1) {
    const Product product{M, N, K, ta, tb, matmul_type<X>, matmul_type<Y>, bias != nullptr,
                          added ? Write::add : Write::overwrite};
    for (const void* address : {static_cast<const void*>(c), static_cast<const void*>(a), static_cast<const void*>(b),
                                static_cast<const void*>(bias), static_cast<const void*>(added)})
        if (reinterpret_cast<uintptr_t>(address) % MATMUL_ALIGNMENT)
            fail(Exit::rank, "the product ", describe(product), " got the address ", address, ", which is not a multiple of ",
                 MATMUL_ALIGNMENT, " bytes");
    Matmuls& matmuls = Matmuls::of_process();
    matmuls.plan(product).run(matmuls.workspace(), device.stream, c, a, b, bias, added, alpha, beta);
}
