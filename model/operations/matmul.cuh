// Matrix products on the GPU through cuBLASLt. Everything a product needs besides its addresses (descriptors, layouts, algorithm)
// is a plan, made once per kind of product and cached: later calls only launch, and may be captured in a CUDA graph.
//
// cuBLASLt's matrices are column-major, ours row-major. A row-major (rows, columns) matrix has the bytes of a column-major
// (columns, rows) matrix, so each matrix is described as its transpose, and the transpose of the product is computed:
//     c = op(a) op(b)   <=>   c^T = op(b)^T op(a)^T
// Hence b goes first and M and N are swapped; each operand keeps its flag; a leading dimension is the length of one of our rows.
//
// The algorithm comes from a table (matmul_table.h) that dev/tune_matmul has measured, or else is the heuristic's first proposal:
// the same in every run and on every rank. Timing candidates during training would make the order of summation depend on
// measurement noise, and runs would no longer be bit-identical.
#pragma once
#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "model/device/blas.h"
#include "model/device/device.h"
#include "model/operations/matmul_table.h"

/// Bytes of workspace per multiprocessor, shared by all products in turn. A product with few tiles and long sums, such as a weight
/// gradient, splits its sums over the multiprocessors (split-K) and leaves float32 tiles there to be added up: one of 128 x 256
/// takes 128 KiB, so there is room for eight from each. 132 MiB on an H200, where cuBLAS itself takes 32.
inline constexpr size_t MATMUL_WORKSPACE = size_t(1) << 20;

/// The workspace of a GPU with this many multiprocessors, in bytes.
constexpr size_t matmul_workspace(int multiprocessors) { return MATMUL_WORKSPACE * size_t(multiprocessors); }

/// Every address is a multiple of 16 bytes, as the fast kernels' copies require. The library assumes 256 unless told otherwise.
inline constexpr uint32_t MATMUL_ALIGNMENT = 16;

/// The kind of a product c (M, N) = [added +] op(a) op(b) [+ bias]: everything its plan depends on.
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

/// "(64, 768) x (768, 2304)^T, bf16 to float32, with bias": the matrices as stored; for messages and as a table's key.
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

/// Exit::out_of_memory or Exit::rank if a cuBLASLt call failed; `what` names the product in the message.
inline void check(cublasStatus_t status, const std::string& what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const Exit code = status == CUBLAS_STATUS_ALLOC_FAILED ? Exit::out_of_memory : Exit::rank;
    fail(code, "cuBLASLt reports ", cublasLtGetStatusName(status), " for ", what);
}

// ---- algorithms and their attributes

static_assert(CUBLASLT_ALGO_CONFIG_ID == 0 && CUBLASLT_ALGO_CONFIG_TILE_ID == 1 && CUBLASLT_ALGO_CONFIG_SPLITK_NUM == 2 &&
              CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME == 3 && CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING == 4 &&
              CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION == 5 && CUBLASLT_ALGO_CONFIG_STAGES_ID == 6 &&
              CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID == 7 && CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID == 8);   // as in MATMUL_ATTRIBUTES
constexpr size_t bytes_of_attribute(size_t n) { return n < CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ? 4 : 2; }

/// An algorithm's public attributes; 0, the default, for those it does not have.
inline MatmulAlgorithm attributes_of(const cublasLtMatmulAlgo_t& algorithm) {
    MatmulAlgorithm attributes{};
    for (size_t n = 0; n < attributes.size(); n++)   // little-endian, as every machine with a GPU is
        if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, cublasLtMatmulAlgoConfigAttributes_t(n), &attributes[n],
                                                 bytes_of_attribute(n), nullptr))
            attributes[n] = 0;
    return attributes;
}

template <auto destroy>
struct DestroyWith {
    template <class T>
    void operator()(T* object) const {
        destroy(object);
    }
};

/// cuBLASLt's layout of a stored row-major (rows, columns) matrix.
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

/// GPU memory for one product at a time.
struct MatmulWorkspace {
    void* data = nullptr;
    size_t bytes = 0;
};

/// A named struct: nvcc 13.0 crashes on a std::vector of a struct named only by a typedef, as the library's are.
struct MatmulProposal {
    cublasLtMatmulHeuristicResult_t found;
};
static_assert(sizeof(MatmulProposal) == sizeof(cublasLtMatmulHeuristicResult_t));

/// Everything about one kind of product that does not change between calls. It has no algorithm until take() succeeds.
class MatmulPlan {
public:
    MatmulPlan(cublasLtHandle_t handle, const Product& p, size_t workspace) : MatmulPlan(handle, p, workspace, describe(p)) {}

    /// The library's proposals, its best guess first: at least one (else Exit::rank), at most `most`.
    std::vector<MatmulProposal> proposals(int most) const;

    void take(const MatmulProposal& proposal) { algorithm_ = proposal.found.algo; }

    /// Takes the algorithm with these attributes. False, leaving the plan unchanged, if the library refuses it or lacks workspace.
    bool take(const MatmulAlgorithm& attributes);

    /// Precondition: matrices of the product's types. `bias` is read only if the product has one, `added` only if it adds.
    void run(const MatmulWorkspace& workspace, cudaStream_t stream, void* c, const void* a, const void* b, const void* bias,
             const void* added) {
        const float alpha = 1, beta = product_.write == Write::add ? 1 : 0;
        if (bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);   // a store on the host
        const void* const from = added ? added : c;   // not read if beta is 0
        const cublasStatus_t status = cublasLtMatmul(handle_, operation_.get(), &alpha, b, b_, a, a_, &beta, from, c_, c, c_,
                                                     &algorithm_, workspace.data, workspace.bytes, stream);
        if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(product_));
    }

private:
    MatmulPlan(cublasLtHandle_t handle, const Product& p, size_t workspace, const std::string& what)
        : handle_(handle),
          product_(p),
          workspace_(workspace),
          a_(p.inputs, p.ta == Transpose::yes ? p.K : p.M, p.ta == Transpose::yes ? p.M : p.K, what),
          b_(p.inputs, p.tb == Transpose::yes ? p.N : p.K, p.tb == Transpose::yes ? p.K : p.N, what),
          c_(p.output, p.M, p.N, what) {
        cublasLtMatmulDesc_t made = nullptr;
        check(cublasLtMatmulDescCreate(&made, COMPUTE, SCALE), what);
        operation_.reset(made);
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.tb == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.ta == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
        if (!p.bias) return;
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        // The heuristic does not read the bias, but takes its alignment from this address.
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t(MATMUL_ALIGNMENT)));
    }

    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
        const cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value);
        if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(product_));
    }

    static constexpr cublasComputeType_t COMPUTE = CUBLAS_COMPUTE_32F;   // not TF32: float32 serves as the reference
    static constexpr cudaDataType_t SCALE = CUDA_R_32F;
    cublasLtHandle_t handle_;
    Product product_;
    size_t workspace_;
    std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyWith<cublasLtMatmulDescDestroy>> operation_;
    MatmulLayout a_, b_, c_;
    cublasLtMatmulAlgo_t algorithm_{};
};

inline std::vector<MatmulProposal> MatmulPlan::proposals(int most) const {
    const std::string what = describe(product_);
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), what);
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyWith<cublasLtMatmulPreferenceDestroy>> preference(made);
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
        check(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value), what);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_));
    // Split-K sums are added up in float32 in a second step: no intermediate rounding to bf16, fixed order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (auto matrix : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        prefer(matrix, MATMUL_ALIGNMENT);

    std::vector<MatmulProposal> all(static_cast<size_t>(most));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_, a_, c_, c_, made, most, &all.data()->found, &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, what);
    all.resize(static_cast<size_t>(found));
    std::erase_if(all, [](const MatmulProposal& proposal) { return proposal.found.state != CUBLAS_STATUS_SUCCESS; });
    if (all.empty()) fail(Exit::rank, "cuBLASLt has no algorithm on this GPU for the product ", what);
    return all;
}

inline bool MatmulPlan::take(const MatmulAlgorithm& attributes) {
    cublasLtMatmulAlgo_t algorithm;
    const Product& p = product_;
    if (cublasLtMatmulAlgoInit(handle_, COMPUTE, SCALE, p.inputs, p.inputs, p.output, p.output, int(attributes[0]), &algorithm))
        return false;
    const MatmulAlgorithm as_made = attributes_of(algorithm);
    for (size_t n = 1; n < attributes.size(); n++)
        if (attributes[n] != as_made[n] &&
            cublasLtMatmulAlgoConfigSetAttribute(&algorithm, cublasLtMatmulAlgoConfigAttributes_t(n), &attributes[n],
                                                 bytes_of_attribute(n)))
            return false;
    cublasLtMatmulHeuristicResult_t found{};
    if (cublasLtMatmulAlgoCheck(handle_, operation_.get(), b_, a_, c_, c_, &algorithm, &found) || found.workspaceSize > workspace_)
        return false;
    algorithm_ = algorithm;
    return true;
}

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
        const auto known = plans_.find(product);
        if (known != plans_.end()) return known->second;
        MatmulPlan plan(handle_, product, workspace_.bytes);
        const std::string what = describe(product);
        const auto tuned = table_.choices.find(what);
        const bool taken = tuned != table_.choices.end() && plan.take(tuned->second.algorithm);
        if (!taken) plan.take(plan.proposals(1).front());
        (taken ? origins_.tuned : tuned != table_.choices.end() ? origins_.refused : origins_.proposed).push_back(what);
        plans_made_++;
        return plans_.try_emplace(product, std::move(plan)).first->second;
    }

    /// Uses the table's algorithms from now on. Drops all plans; captured graphs keep their algorithms.
    void take_table(const MatmulTable& table) {
        table_ = table;
        plans_.clear();
        origins_ = {};
        origins_.table = table.path;
    }

    /// Origins of the algorithms since the last take_table(), in order of first use.
    const MatmulOrigins& origins() const { return origins_; }
    std::vector<Product> products() const {
        std::vector<Product> all;
        for (const auto& [product, plan] : plans_) all.push_back(product);
        return all;
    }
    size_t plans_made() const { return plans_made_; }
    cublasLtHandle_t handle() const { return handle_; }
    const MatmulWorkspace& workspace() const { return workspace_; }

private:
    Matmuls() {
        int number = 0, multiprocessors = 0;
        check(cudaGetDevice(&number));
        check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number));
        check(cublasLtCreate(&handle_), "its handle");
        workspace_.bytes = matmul_workspace(multiprocessors);
        check(cudaMalloc(&workspace_.data, workspace_.bytes));
    }
    cublasLtHandle_t handle_ = nullptr;
    MatmulWorkspace workspace_;
    MatmulTable table_;
    MatmulOrigins origins_;
    std::map<Product, MatmulPlan> plans_;
    size_t plans_made_ = 0;
};

/// Creates handle and workspace on the current GPU now rather than at the first product.
inline void matmul_setup() { Matmuls::of_process(); }

/// Precondition: every address is a multiple of MATMUL_ALIGNMENT bytes (Exit::rank); for speed, rows should be too (sizes multiples
/// of 8). c (M, N) = added + op(a) op(b) + bias, row-major and packed: op(a) is (M, K), op(b) is (K, N); bias (N) and added (M, N)
/// may be null; added may be c itself. Sums in float32, rounded once.
template <class X, class Y>
void matmul(GPU device, Y* c, Transpose ta, const X* a, Transpose tb, const X* b, const Y* bias, const Y* added, int M, int N,
            int K) {
    const Product product{M, N, K, ta, tb, matmul_type<X>, matmul_type<Y>, bias != nullptr,
                          added ? Write::add : Write::overwrite};
    for (const void* address : {static_cast<const void*>(c), static_cast<const void*>(a), static_cast<const void*>(b),
                                static_cast<const void*>(bias), static_cast<const void*>(added)})
        if (reinterpret_cast<uintptr_t>(address) % MATMUL_ALIGNMENT)
            fail(Exit::rank, "the product ", describe(product), " got the address ", address, ", which is not a multiple of ",
                 MATMUL_ALIGNMENT, " bytes");
    Matmuls& matmuls = Matmuls::of_process();
    matmuls.plan(product).run(matmuls.workspace(), device.stream, c, a, b, bias, added);
}
