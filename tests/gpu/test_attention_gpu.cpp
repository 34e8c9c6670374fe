// The tiled attention kernels of the GPU against the CPU's in double, extension point by extension point.
#include "attention/kernel/layer.h"

#include "tests/attention_policies.h"
#include "tests/gpu/attention_on_gpu.h"

namespace {

/// A window with unmodified scores: the mask of the fast kernels.
struct Window : Causal {
    static constexpr int left = 100;
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(left, i0, i1, j0, j1); }
    constexpr bool visible(int, int i, int j) const { return j <= i && i - j <= left; }
};

/// More features than there is room for in shared memory: z = a + 0.1 sum_f r_f k_f.
struct ManyFeatures : Causal {
    constexpr Features features() const { return {0, 50, 50}; }
    template <class N>
    constexpr N score(N a, const Pair<N>& p) const {
        for (int f = 0; f < 50; f++) a += 0.1f * p.row(f) * p.column(f);
        return a;
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& p, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, p));
        for (int f = 0; f < 50; f++) to.row(f, 0.1f * dz * p.column(f)), to.column(f, 0.1f * dz * p.row(f));
        return dz;
    }
};

}   // namespace

TEST_CASE("GPU attention: what both devices compute", "[gpu][attention]") {
    check_on_a_device(32, 64, [](const Problem& p, const auto& policy, const auto&...) { check_attention_on_gpu(p, policy); });
}

TEST_CASE("GPU attention: head sizes", "[gpu][attention]") {
    for (int HS : {32, 64, 128}) check_attention_on_gpu(Problem(1, 200, 200, 2, 1, HS), Causal());
}

#ifdef EMULATED_GPU
TEST_CASE("GPU attention: heads of 128 where a block has 99 KB of shared memory", "[gpu][attention]") {
    struct Capability {
        explicit Capability(int number) { emulator::options().capability = number; }
        ~Capability() { emulator::options().capability = 90; }
    } small(89);
    check_attention_in<bf16>(Problem(1, 200, 200, 2, 1, 128), Causal());
    check_same_bits_on_gpu<bf16>(Problem(1, 130, 130, 2, 1, 128), Causal());
    CHECK_THROWS_AS(check_attention_in<bf16>(Problem(1, 64, 64, 1, 1, 128, Modified().features()), Modified()), Error);
}
#endif

TEST_CASE("GPU attention: narrow windows in long sequences, and more than 32 tiles to look through", "[gpu][attention]") {
    check_attention_on_gpu(Problem(1, 400, 400, 1, 1, 64), Window());
    check_attention_in<bf16>(Problem(1, 2400, 2400, 1, 1, 32), Window());
    check_attention_in<bf16>(Problem(1, 20, 2400, 1, 1, 32), Everything());
    check_attention_in<bf16>(Problem(1, 2400, 20, 1, 1, 32), Everything());
}

TEST_CASE("GPU attention score: more features than shared memory has room for", "[gpu][attention]") {
    check_attention_on_gpu(Problem(1, 130, 130, 2, 1, 32, ManyFeatures().features()), ManyFeatures());
}

TEST_CASE("GPU attention score: head size 128", "[gpu][attention]") {
    check_attention_on_gpu(Problem(1, 100, 100, 2, 1, 128, Modified().features()), Modified());
}

TEST_CASE("GPU attention mask: a head that sees nothing among heads that do", "[gpu][attention]") {
    Problem p(1, 130, 130, 4, 1, 32, Modified().features());
    set_tile_lists(p, {{0}, {1}, {0, 2}, {}, {}, {}, {0}, {1}, {2}, {}, {}, {}});   // nothing for heads 1 and 3
    check_attention_on_gpu(p, Modified());
}

TEST_CASE("GPU attention output gate: a gate that the policy does not know is refused", "[gpu][attention]") {
    Problem p(1, 4, 4, 1, 1, 32);
    p.gate = normal_numbers(p.rows(), 10);
    AttentionOn<GPU, bf16, Causal> gpu(test_gpu(), p, Causal());
    gpu.forward(false);
    CHECK_THROWS_AS(gpu.backward(), Error);
}

TEST_CASE("GPU attention statistics: a pair counts however small its weight", "[gpu][attention]") {
    Problem p(1, 200, 200, 2, 1, 32);
    for (double& number : p.q) number *= 100;
    CHECK(AttentionOn<GPU, float, Window>(test_gpu(), p, Window()).forward().pairs == forward(p, Window()).pairs);
}

TEST_CASE("GPU attention: the same bits in every order of threads and blocks", "[gpu][attention]") {
    Problem p(1, 320, 320, 2, 1, 64, Modified().features());
    p.gate = normal_numbers(p.rows(), 10);
    check_same_bits_on_gpu<bf16>(p, Modified(Mask::windows));
    Problem plain(2, 320, 320, 2, 1, 64);
    check_same_bits_on_gpu<bf16>(plain, Causal());
    check_same_bits_on_gpu<bf16>(plain, Everything());
    check_same_bits_on_gpu<bf16>(Problem(1, 64, 2000, 4, 1, 32), Everything());   // sixteen blocks take turns at one tile
    check_same_bits_on_gpu<float>(Problem(1, 130, 130, 2, 1, 64), Causal());
}

TEST_CASE("GPU attention: sizes that the kernels do not have are refused", "[gpu][attention]") {
    const Problem p(1, 4, 4, 1, 1, 48);
    AttentionOn<GPU, bf16, Causal> gpu(test_gpu(), p, Causal());
    CHECK_THROWS_AS(gpu.forward(false), Error);
}
