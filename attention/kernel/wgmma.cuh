// Products of a warpgroup, four warps, on Hopper's tensor cores (compute capability 9.0, compiled for sm_90a): tiles in shared memory as
// wgmma reads them, and the products of mma.cuh on them. They run while the threads go on: between the start of a product and
// finish_products() its accumulators, its left factor in registers and its tiles are not touched.
//
// A warp of the group has 16 of the product's 64 rows, in the fragments of mma.m16n8k16; so an Accumulator<1, N> is the same in both.
// Every warp of a group starts the same products.
//
// A tile is made of panels of 64 columns. A row of a panel has 128 bytes, eight pieces; row r holds its piece p in place p ^ r % 8, so
// that eight pieces of a column lie in different banks. Eight rows are an atom of 1024 bytes:
//     place     0   1   2   3   4   5   6   7
//     row 0     0   1   2   3   4   5   6   7
//     row 1     1   0   3   2   5   4   7   6
//      ..
//     row 7     7   6   5   4   3   2   1   0
// Source: PTX ISA, asynchronous warpgroup level matrix instructions.
#pragma once
#include "attention/kernel/features.cuh"

// HAS_WGMMA: whether the GPU that is compiled for has the instruction. COMPILES_WGMMA: whether one of the program's does.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif
#if defined(USE_WGMMA) || defined(EMULATED_GPU)
inline constexpr bool COMPILES_WGMMA = true;
#else
inline constexpr bool COMPILES_WGMMA = false;
#endif

inline constexpr int GROUP_ROWS = 64;

/// What is left of such a kernel in code for other GPUs, among it PTX that the driver was told to prefer.
__device__ __forceinline__ void without_wgmma() { __trap(); }

/// The instructions that multiply in attention: mma.sync by every GPU, wgmma where attention_kernels() says so.
enum class AttentionKernels { mma, wgmma };
inline AttentionKernels& attention_kernels() {
    static AttentionKernels chosen = AttentionKernels::mma;
    return chosen;
}

/// While it lives, attention multiplies by these instructions; by mma afterwards.
class MultiplyingBy {
public:
    explicit MultiplyingBy(AttentionKernels kernels) { attention_kernels() = kernels; }
    ~MultiplyingBy() { attention_kernels() = AttentionKernels::mma; }
    MultiplyingBy(const MultiplyingBy&) = delete;
};

/// Whether this program has the instruction for the current GPU.
inline bool has_wgmma() {
    if (!COMPILES_WGMMA) return false;
    const cudaDeviceProp properties = gpu_properties();
    return properties.major == 9 && properties.minor == 0;
}

/// Whether kernels for products of a warpgroup exist: scores are q.k, in heads of 64 or 128.
template <class X, int HS, class P>
inline constexpr bool MAY_USE_WARPGROUPS = COMPILES_WGMMA && std::is_same_v<X, bf16> && HS >= 64 && !MODIFIES_SCORES<P>;

/// ROWS x COLUMNS elements for products of a warpgroup.
template <class X, int ROWS_, int COLUMNS_>
struct SwizzledTile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PANEL = 64;
    static_assert(sizeof(X) == 2 && ROWS % 8 == 0 && COLUMNS % PANEL == 0);
    alignas(1024) X x[COLUMNS / PANEL][ROWS][PANEL];

    __device__ __forceinline__ X* at(int row, int column) {
        return &x[column / PANEL][row][((column / 8 ^ row) & 7) * 8 + column % 8];
    }
    __device__ __forceinline__ const X* at(int row, int column) const { return const_cast<SwizzledTile*>(this)->at(row, column); }

    __device__ __forceinline__ void store(int row, int column, const Two<X>& two) {
        store_two(at(row, column), two);
#if !defined(__CUDACC__)
        emulator::generic_write(at(row, column), sizeof two);
#endif
    }

    /// Makes what this thread has written to shared memory visible to products after the next barrier.
    static __device__ __forceinline__ void publish() {
#if defined(__CUDACC__)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
        emulator::fence_proxy_async();
#endif
    }

    /// Waits until at most the newest LEFT of the thread's groups of products are under way. Those of `sums` are not among them.
    template <int LEFT = 0, int... N>
    static __device__ __forceinline__ void finish_products([[maybe_unused]] Accumulator<1, N>&... sums) {
#if !defined(__CUDACC__)
        emulator::wgmma_wait(LEFT);
#elif HAS_WGMMA
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
        (sums.computed_here(), ...);
#endif
    }

    /// The descriptor of rows row .. (a multiple of 8) and columns column .. (of 16). If the sum runs over columns, it takes 16 of
    /// them; if over rows, 16 rows, and 64 columns are followed by the next panel's.
    __device__ __forceinline__ uint64_t describe(int row, int column) const {
#if defined(__CUDACC__)
        const unsigned address = unsigned(__cvta_generic_to_shared(x));
#else
        const unsigned address = emulator::shared_address(x);
#endif
        constexpr unsigned SWIZZLE_128 = 1u << 30, ATOM = 8 * PANEL * sizeof(X), NEXT_PANEL = ROWS * PANEL * sizeof(X);
        const unsigned first = (column / PANEL * ROWS + row) * PANEL + column % PANEL;
        return uint64_t(SWIZZLE_128 | ATOM / 16) << 32 | (address / 16 + NEXT_PANEL / 16 * 65536 + first * unsigned(sizeof(X)) / 16);
    }
};

// ---- the instructions

/// Orders what this thread has written to registers before its next products.
__device__ __forceinline__ void fence_registers() {
#if HAS_WGMMA && defined(__CUDACC__)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
    emulator::wgmma_fence();
#endif
}
/// Ends a group of products.
__device__ __forceinline__ void commit_products() {
#if HAS_WGMMA && defined(__CUDACC__)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
    emulator::wgmma_commit();
#endif
}

// Lists of operands: the 4 N accumulators of d[N][4] are %0 ..
#define D_4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define D_16(n) D_4(n), D_4(n + 1), D_4(n + 2), D_4(n + 3)
#define D_32(n) D_16(n), D_16(n + 4)
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
             ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OF_SHARED(COLUMNS, NAMES, A, B, ADDS, OF_A, OF_B, ...) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" NAMES \
                 "}, %" #A ", %" #B ", p, 1, 1, %" #OF_A ", %" #OF_B "; }" \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(int(adds)), "n"(int(A_BY_ROWS)), "n"(int(B_BY_ROWS)))
#define OF_REGISTERS(COLUMNS, NAMES, A0, A1, A2, A3, B, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" NAMES \
                 "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", 1, 1, 1, 1;" \
                 : __VA_ARGS__ : "r"(a.part[0].bits), "r"(a.part[1].bits), "r"(a.part[2].bits), "r"(a.part[3].bits), "l"(b))

/// D = A B, or D += A B if `adds`: D (64, 8 N) of A (64, 16) and B (16, 8 N) with these descriptors. BY_ROWS: the sum runs over the rows of
/// the matrix's tile.
template <bool A_BY_ROWS, bool B_BY_ROWS, int N>
__device__ __forceinline__ void start_product(float (&d)[N][4], uint64_t a, uint64_t b, bool adds) {
    static_assert(N == 4 || N == 8 || N == 16);
#if defined(__CUDACC__)
#if HAS_WGMMA
    if constexpr (N == 4) OF_SHARED(32, NAMES_16, 16, 17, 18, 19, 20, D_16(0));
    if constexpr (N == 8) OF_SHARED(64, NAMES_32, 32, 33, 34, 35, 36, D_32(0));
    if constexpr (N == 16) OF_SHARED(128, NAMES_64, 64, 65, 66, 67, 68, D_32(0), D_32(8));
#endif
#else
    emulator::wgmma(d[0], 8 * N, nullptr, a, b, A_BY_ROWS, B_BY_ROWS, adds);
#endif
}
/// D += A B with A in registers, a warp's 16 rows of it in each warp, and B (16, 8 N) by rows.
template <int N>
__device__ __forceinline__ void start_product(float (&d)[N][4], const FragmentA<bf16>& a, uint64_t b) {
    static_assert(N == 8 || N == 16);
#if defined(__CUDACC__)
#if HAS_WGMMA
    if constexpr (N == 8) OF_REGISTERS(64, NAMES_32, 32, 33, 34, 35, 36, D_32(0));
    if constexpr (N == 16) OF_REGISTERS(128, NAMES_64, 64, 65, 66, 67, 68, D_32(0), D_32(8));
#endif
#else
    emulator::wgmma(d[0], 8 * N, &a.part[0].bits, 0, b, false, true, true);
#endif
}
#undef D_4
#undef D_16
#undef D_32
#undef NAMES_16
#undef NAMES_32
#undef NAMES_64
#undef OF_SHARED
#undef OF_REGISTERS

// ---- products of tiles: the functions of mma.cuh

/// x, which is the same in all lanes, where the compiler sees that it is: descriptors are made by the instructions for whole warps.
__device__ __forceinline__ int same_in_warp(int x) { return __shfl_sync(ALL_LANES, x, 0); }

/// The first row of the warps that multiply together, GROUP rows, of which this warp has some from `row` on.
template <int GROUP>
__device__ __forceinline__ int group_row(int row) {
    return GROUP == GROUP_ROWS ? same_in_warp(row / GROUP * GROUP) : row;
}

/// D = A B^T: the warpgroup's 64 rows from a_row on, and 8 N rows of B from b_row on, over all columns.
template <int N, class X, int RA, int RB, int K>
__device__ __forceinline__ void start_rows_times_rows(Accumulator<1, N>& d, const SwizzledTile<X, RA, K>& a, int a_row,
                                                      const SwizzledTile<X, RB, K>& b, int b_row) {
    fence_registers();
#pragma unroll
    for (int k = 0; k < K; k += 16)
        start_product<false, false>(d.d[0], a.describe(a_row, k), b.describe(b_row, k), k > 0);
    commit_products();
}

/// sums += A B: 16 columns of A in registers, 16 rows of B from `row` on.
template <int N, class X, int R>
__device__ __forceinline__ void start_registers_times_rows(Accumulator<1, N>& sums, const FragmentA<X> (&a)[1],
                                                           const SwizzledTile<X, R, 8 * N>& b, int row) {
    fence_registers();
    start_product(sums.d[0], a[0], b.describe(row, 0));
    commit_products();
}

/// D = A^T B: the warpgroup's 64 columns of A, and 8 N columns of B from `column` on, over all rows.
template <int N, class X, int R, int B_COLUMNS>
__device__ __forceinline__ void start_columns_times_columns(Accumulator<1, N>& d, const SwizzledTile<X, R, GROUP_ROWS>& a, int,
                                                            const SwizzledTile<X, R, B_COLUMNS>& b, int column) {
    fence_registers();
#pragma unroll
    for (int k = 0; k < R; k += 16) start_product<true, true>(d.d[0], a.describe(k, 0), b.describe(k, column), k > 0);
    commit_products();
}
