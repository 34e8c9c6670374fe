// The mechanisms for inference on the GPU against the CPU's: next rows by psa (attention/inference/psa_rows.cuh) and prompts by adaspa
// (adaspa_gpu.cuh). On a machine without a GPU it runs on the emulator.
#include <optional>

#include "attention/inference/adaspa_gpu.cuh"
#include "attention/inference/psa_rows.cuh"
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"
#include "tests/threads.h"

namespace {

using Numbers = std::vector<double>;

const Policy causal(Config{}, 0);

struct HeadSizes {
    int NH, NKV, HS;
    int q_row() const { return NH * HS; }
    int k_row() const { return NKV * HS; }
};

/// A text of T tokens whose keys come in runs of neighbours that are alike, and whose queries look for some of them.
struct Tokens {
    int T;
    HeadSizes heads;
    Numbers q, k, v;   // (T, NH, HS), (T, NKV, HS) twice

    Tokens(int T_, const HeadSizes& heads_, uint64_t seed)
        : T(T_), heads(heads_), q(normal_numbers(size_t(T) * heads.q_row(), seed)), k(normal_numbers(size_t(T) * heads.k_row(), seed + 1)),
          v(normal_numbers(k.size(), seed + 2)) {
        const Numbers themes = normal_numbers(size_t(5) * heads.HS, seed + 3, 1.5);
        const auto lean = [&](Numbers& rows, int row, int every) {
            for (size_t n = 0; n < rows.size(); n++) rows[n] += themes[n / row / every % 5 * heads.HS + n % heads.HS];
        };
        lean(k, heads.k_row(), 13), lean(q, heads.q_row(), 1);
    }
};

template <class Y>
AttentionForward<Y> arguments(const HeadSizes& heads, int B, int T, int S, const Y* q, const Y* k, const Y* v, Y* out, Wide<Y>* lse) {
    AttentionForward<Y> a{};
    a.B = B, a.T = T, a.S = S, a.NH = heads.NH, a.NKV = heads.NKV, a.HS = heads.HS;
    a.q = {q, size_t(heads.q_row())}, a.k = {k, size_t(heads.k_row())}, a.v = {v, size_t(heads.k_row())};
    a.out = out, a.lse = lse;
    return a;
}

std::vector<float> as_floats(const Numbers& x) { return {x.begin(), x.end()}; }

/// The outputs of rows, in the order in which they were computed, and what they read.
struct Rows {
    Numbers out, lse;
    PsaCount count;
};

/// Texts side by side on the GPU.
template <class X>
class PsaTrial {
public:
    PsaTrial(const HeadSizes& heads, const PsaOptions& how, int texts, int room) : heads_(heads), how_(how) {
        const LayerShape shape{texts, room, 0, heads.NH, heads.NKV, heads.HS};
        for (int pass = 0; pass < 2; pass++) {   // the first learns the size
            keys_.emplace(memory_, shape, 0, KeptKeys{});
            blocks_ = PsaCachedBlocks::take(memory_, how, shape), step_ = PsaStep::take(memory_, how, shape);
            if (pass == 0) memory_.allocate();
        }
        const std::vector<PsaCount> nothing(size_t(texts) * heads.NKV);
        to_device(test_gpu(), step_.counts, nothing.data(), nothing.size());
    }

    void begin(int text, const Tokens& of, int prompt) {
        const DeviceArray<X> k(of.k), v(of.v);
        const auto a = arguments<X>(heads_, 1, prompt, prompt, nullptr, k.data(), v.data(), nullptr, nullptr);
        append_prompt(test_gpu(), *keys_, a, text);
        psa_prefill(test_gpu(), blocks_, a, text);
        check(cudaDeviceSynchronize());   // before the arrays go
    }

    /// Token positions[n] of text n, the last text first.
    Rows next(const std::vector<const Tokens*>& texts, const std::vector<int>& positions) {
        const int B = int(texts.size());
        Numbers q, k, v;
        std::vector<int32_t> number, position;
        for (int n = B - 1; n >= 0; n--) {
            const auto take = [&](Numbers& to, const Numbers& from, int row) {
                to.insert(to.end(), from.begin() + size_t(positions[n]) * row, from.begin() + size_t(positions[n] + 1) * row);
            };
            take(q, texts[n]->q, heads_.q_row()), take(k, texts[n]->k, heads_.k_row()), take(v, texts[n]->v, heads_.k_row());
            number.push_back(n), position.push_back(positions[n]);
        }
        const DeviceArray<X> on_q(q), on_k(k), on_v(v), out(q.size(), NAN);
        const DeviceArray<float> lse(size_t(B) * heads_.NH, NAN);
        const DeviceMemory<int32_t> where(number), at(position);
        psa_decode(test_gpu(), causal, *keys_, blocks_, step_, {where.data(), at.data()},
                 arguments<X>(heads_, B, 1, 1, on_q.data(), on_k.data(), on_v.data(), out.data(), lse.data()), how_.eps);
        return {out.numbers(), lse.numbers(), {}};
    }

    PsaCount count(int texts) const {
        std::vector<PsaCount> of_rows(size_t(texts) * heads_.NKV);
        to_host(test_gpu(), of_rows.data(), step_.counts, of_rows.size());
        PsaCount all;
        for (const PsaCount& one : of_rows) all.add(one);
        return all;
    }

private:
    HeadSizes heads_;
    PsaOptions how_;
    Arena<GPU> memory_;
    std::optional<KVCache<GPU, X>> keys_;
    PsaCachedBlocks blocks_{};
    PsaStep step_{};
};

/// Row `position` of a text by the CPU.
Rows expected(const Tokens& text, int position, const PsaOptions& how) {
    const HeadSizes& heads = text.heads;
    const std::vector<float> q = as_floats(text.q), k = as_floats(text.k), v = as_floats(text.v);
    std::vector<float> out(heads.q_row()), lse(heads.NH);
    const PsaCount count = psa_rows(causal, arguments<float>(heads, 1, 1, position + 1, &q[size_t(position) * heads.q_row()], k.data(),
                                                             v.data(), out.data(), lse.data()), how);
    return {Numbers(out.begin(), out.end()), Numbers(lse.begin(), lse.end()), count};
}

/// Texts of these lengths are written from `steps` tokens before their ends; then others begin in their places. All rows.
template <class X>
Rows check_psa(const HeadSizes& heads, const PsaOptions& how, const std::vector<int>& lengths, int steps) {
    INFO(heads.NH << " heads on " << heads.NKV << " of " << heads.HS << ", eps " << how.eps << ", block " << how.block << ", upper "
                  << (how.bound == PsaBound::upper));
    const int texts = int(lengths.size());
    PsaTrial<X> trial(heads, how, texts, *std::max_element(lengths.begin(), lengths.end()));
    Rows is, should;
    for (int round = 0; round < 2; round++) {
        std::vector<Tokens> all;
        for (int n = 0; n < texts; n++) all.emplace_back(lengths[(n + round) % texts], heads, uint64_t(100 * round + 10 * n + 1));
        std::vector<const Tokens*> side_by_side;
        for (int n = 0; n < texts; n++) {
            for (Numbers* x : {&all[n].q, &all[n].k, &all[n].v}) *x = rounded<X>(*x);
            trial.begin(n, all[n], all[n].T - steps);
            side_by_side.push_back(&all[n]);
        }
        for (int step = 0; step < steps; step++) {
            std::vector<int> positions;
            for (const Tokens& text : all) positions.push_back(text.T - steps + step);
            const Rows rows = trial.next(side_by_side, positions);
            is.out.insert(is.out.end(), rows.out.begin(), rows.out.end()), is.lse.insert(is.lse.end(), rows.lse.begin(), rows.lse.end());
            for (int n = texts - 1; n >= 0; n--) {
                const Rows row = expected(all[n], positions[n], how);
                should.out.insert(should.out.end(), row.out.begin(), row.out.end());
                should.lse.insert(should.lse.end(), row.lse.begin(), row.lse.end());
                should.count.add(row.count);
            }
        }
    }
    is.count = trial.count(texts);
    const Tolerance of_out = std::is_same_v<X, float> ? Tolerance{0, 1e-5} : Tolerance{0.01, 0};   // bf16 rounds the result
    CHECK(difference(is.out, should.out, of_out) == "");
    CHECK(difference(is.lse, should.lse, {1e-5, 1e-5}) == "");
    CHECK(is.count.visited == should.count.visited);
    CHECK(is.count.cached == should.count.cached);
    CHECK(is.count.rows == should.count.rows);
    CHECK(std::abs(is.count.retained - should.count.retained) <= 1e-5 * should.count.rows);
    CHECK(std::abs(is.count.least_retained - should.count.least_retained) <= 1e-5);
    return is;
}

const PsaBound BOUNDS[] = {PsaBound::mean, PsaBound::upper};

/// A prompt through adaspa; heads of different sharpness, so that they get different sparsities.
struct AdaSpaTrial {
    Tokens text;
    AdaSpaOptions how;
    Numbers out, lse;
    std::vector<int> tiles;   // of each query tile, -1 behind its last
    AdaSpaCount count;

    AdaSpaTrial(int T, const AdaSpaOptions& how_) : text(T, {4, 2, 32}, 7), how(how_) {
        for (size_t n = 0; n < text.q.size(); n++) text.q[n] *= 0.2 + 0.3 * double(n / 32 % 4);
    }

    void on_cpu() {
        const std::vector<float> q = as_floats(text.q), k = as_floats(text.k), v = as_floats(text.v);
        std::vector<float> o(q.size()), sums(size_t(4) * text.T);
        const auto a = arguments<float>(text.heads, 1, text.T, text.T, q.data(), k.data(), v.data(), o.data(), sums.data());
        attention_forward(CPU{}, causal, a);
        std::vector<Numbers> mass;
        for (int h = 0; h < 4; h++) mass.push_back(adaspa_block_mass(causal, a, h, how.block));
        tiles = adaspa_choose(mass, text.T, how).tiles.tiles;
        count = adaspa_forward(CPU{}, causal, a, how);
        out.assign(o.begin(), o.end()), lse.assign(sums.begin(), sums.end());
    }

    template <class X>
    void on_gpu() {
        const DeviceArray<X> q(text.q), k(text.k), v(text.v), o(text.q.size(), NAN);
        const DeviceArray<float> sums(size_t(4) * text.T, NAN);
        Arena<GPU> arena;
        AdaSpaMemory memory{};
        for (int pass = 0; pass < 2; pass++) {   // the first learns the size
            memory = AdaSpaMemory::take(arena, how, 4, text.T + 100);
            if (pass == 0) arena.allocate();
        }
        const auto a = arguments<X>(text.heads, 1, text.T, text.T, q.data(), k.data(), v.data(), o.data(), sums.data());
        count = adaspa_forward(test_gpu(), causal, a, how, memory);
        out = o.numbers(), lse = sums.numbers();
        tiles.resize(size_t(4) * tiles_of(text.T) * tiles_of(text.T));
        to_host(test_gpu(), tiles.data(), memory.tiles, tiles.size());
    }
};

template <class X>
void check_adaspa(int T, const AdaSpaOptions& how) {
    INFO("T " << T << ", sparsity " << how.sparsity << ", block " << how.block);
    AdaSpaTrial is(T, how);
    for (Numbers* x : {&is.text.q, &is.text.k, &is.text.v}) *x = rounded<X>(*x);
    AdaSpaTrial should = is;
    is.on_gpu<X>(), should.on_cpu();
    CHECK(is.tiles == should.tiles);
    CHECK(difference(is.out, should.out, std::is_same_v<X, float> ? Tolerance{0, 1e-5} : Tolerance{0.01, 0.01}) == "");
    CHECK(difference(is.lse, should.lse, {1e-5, 1e-5}) == "");
    CHECK(is.count.kept == should.count.kept);
    CHECK(is.count.candidates == should.count.candidates);
    CHECK(is.count.heads == 4);
    CHECK(std::abs(is.count.recall - should.count.recall) <= 1e-5);
}

}   // namespace

TEST_CASE("psa on the GPU: rows of texts side by side read the blocks that the CPU's read", "[gpu][psa]") {
    const Threads one(1);
    for (int NKV : {4, 2, 1})
        for (PsaBound bound : BOUNDS)
            for (double eps : {0.0, 0.5, 0.95, 1.0})
                for (int block : {1, 16, 64}) check_psa<float>({4, NKV, 32}, {eps, block, bound}, {131, 37}, 2);
}

TEST_CASE("psa on the GPU: more heads than four warps compute, blocks of several tiles, prompts that end anywhere in a block", "[gpu][psa]") {
    const Threads one(1);
    for (PsaBound bound : BOUNDS) {
        check_psa<float>({6, 1, 64}, {0.9, 16, bound}, {70, 49}, 18);
        check_psa<float>({2, 2, 128}, {0.6, 300, bound}, {700, 299, 301}, 2);
    }
    check_psa<float>({16, 1, 32}, {0.8, 10, PsaBound::upper}, {90}, 1);
}

TEST_CASE("psa on the GPU: bf16, and the same bits in every order of threads", "[gpu][psa]") {
    const Threads one(1);
    for (PsaBound bound : BOUNDS) {
        const auto rows = [&] { return check_psa<bf16>({4, 2, 64}, {0.9, 16, bound}, {150, 33}, 3); };
        const Rows once = rows();
        for (int order = 1; order <= 3; order++) {
            const Order other(order);
            const Rows again = rows();
            CHECK(bit_difference(again.out, once.out) == "");
            CHECK(again.count.retained == once.count.retained);
        }
    }
}

TEST_CASE("psa on the GPU: an estimate that says that nothing is left does not end a row that asks for everything", "[gpu][psa]") {
    const Threads one(1);
    Tokens text(129, {1, 1, 32}, 1);
    std::fill(text.q.begin(), text.q.end(), 0);
    for (int t = 0; t < text.T; t++) text.q[t * 32] = 400, text.k[t * 32] = t == 70 ? 3 : t < 64 ? 0.001 : -3;
    for (double eps : {0.999999, 1.0}) {
        const PsaOptions how{eps, 64, PsaBound::mean};
        PsaTrial<float> trial(text.heads, how, 1, text.T);
        trial.begin(0, text, 128);
        const Rows is = trial.next({&text}, {128}), should = expected(text, 128, how);
        CHECK(trial.count(1).visited == should.count.visited);
        CHECK(should.count.visited == (eps == 1 ? 129 : 64));
        CHECK(difference(is.out, should.out, {0, 1e-5}) == "");
    }
}

TEST_CASE("psa on the GPU: more query heads on a key head than a block has warps for are refused", "[gpu][psa]") {
    Arena<GPU> nothing;
    CHECK_THROWS_AS(PsaStep::take(nothing, {}, {1, 10, 0, 34, 2, 32}), Error);
    PsaStep::take(nothing, {}, {1, 10, 0, 32, 2, 32});
}

TEST_CASE("adaspa on the GPU: a prompt reads the blocks that the CPU chooses", "[gpu][adaspa]") {
    const Threads one(1);
    check_adaspa<float>(64, {0.8, 64}), check_adaspa<float>(64, {0, 128});
    for (double sparsity : {0.0, 0.5, 0.8}) check_adaspa<float>(321, {sparsity, 64});
    for (double sparsity : {0.5, 0.8}) check_adaspa<float>(300, {sparsity, 128});
    check_adaspa<bf16>(300, {0.5, 64});
}
