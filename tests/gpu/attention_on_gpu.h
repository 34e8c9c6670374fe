// A Problem (tests/attention_problem.h) through the GPU's attention kernels in float or bf16, and the comparison with the CPU's
// kernel in double on the same, rounded, inputs.
#pragma once
#include "tests/attention_problem.h"
#include "tests/gpu/device_array.h"

/// A problem's data in GPU memory. Whatever the kernels have to write starts as NaN.
template <class X, class P>
class AttentionOnGpu {
public:
    AttentionOnGpu(const Problem& p, const P& policy)
        : p_(p), policy_(policy), q_(p.q), k_(p.k), v_(p.v), dout_(p.dout), head_(some(p.head)), row_(some(p.row)),
          column_(some(p.column)), tile_(some(p.tile)), gate_(some(p.gate)), dlse_(some(p.dlse)), q_position_(some(p.q_position)),
          k_position_(some(p.k_position)), list_count_(some(p.list_count)), list_tiles_(some(p.list_tiles)),
          out_(p.q.size(), NAN), gated_out_(p.q.size(), NAN), lse_(p.rows(), NAN) {}

    Results forward(bool statistics) {
        DeviceArray<float> entropy(p_.rows(), NAN), tile_max(p_.rows() * tiles_of(p_.S), NAN), pairs(p_.rows(), NAN),
            tiles(size_t(p_.B) * p_.NH * tiles_of(p_.T), NAN), pair_gate(p_.rows(), NAN);
        AttentionForward<X> a = arguments();
        if (statistics) a.statistics = {entropy.data(), tile_max.data(), pairs.data(), tiles.data(), pair_gate.data()};
        attention_forward(GPU{}, policy_, a);
        Results r(p_);
        r.out = out_.numbers(), r.lse = lse_.numbers();
        r.gated_out = p_.gate.empty() ? r.out : gated_out_.numbers();
        r.entropy = entropy.numbers(), r.tile_max = tile_max.numbers();
        r.pairs = pairs.numbers(), r.tiles = tiles.numbers(), r.pair_gate = pair_gate.numbers();
        return r;
    }

    /// Needs forward().
    Gradients backward() {
        const Features f = p_.features;
        const size_t bytes = attention_workspace(GPU{}, policy_, p_.B, p_.T, p_.S, p_.NH);
        DeviceArray<float> dq(p_.q.size(), NAN), dk(p_.k.size(), NAN), workspace(bytes / sizeof(float), NAN);
        DeviceArray<float> dhead(p_.head.size() * p_.B + 1, NAN), drow(p_.row.size() + 1, NAN), dcolumn(p_.column.size() + 4, NAN),
            dtile(p_.tile.size() + 1, 0), dgate(p_.gate.size() + 1, NAN);
        DeviceArray<X> dv(p_.v.size(), NAN);
        AttentionBackward<X> g{};
        g.dout = dout_.data(), g.dlse = or_null(dlse_, p_.dlse);
        g.dq = {dq.data(), q_row()}, g.dk = {dk.data(), k_row()}, g.dv = {dv.data(), k_row()};
        g.dhead = f.head ? dhead.data() : nullptr, g.drow = f.row ? drow.data() : nullptr;
        g.dcolumn = f.column ? dcolumn.data() : nullptr, g.dtile = f.tile ? dtile.data() : nullptr;
        g.dgate = p_.gate.empty() ? nullptr : dgate.data();
        g.workspace = reinterpret_cast<std::byte*>(workspace.data());
        attention_backward(GPU{}, policy_, arguments(), g);
        Gradients all{dq.numbers(), dk.numbers(), dv.numbers(), Numbers(p_.head.size(), 0),
                      first(drow, p_.row), first(dcolumn, p_.column), first(dtile, p_.tile), first(dgate, p_.gate)};
        const Numbers of_sequences = dhead.numbers();
        for (size_t n = 0; n < p_.head.size() * p_.B; n++) all.head[n % p_.head.size()] += of_sequences[n];
        return all;
    }

private:
    size_t q_row() const { return size_t(p_.NH) * p_.HS; }
    size_t k_row() const { return size_t(p_.NKV) * p_.HS; }
    static Numbers first(const DeviceArray<float>& array, const Numbers& as_many_as) {
        Numbers all = array.numbers();
        all.resize(as_many_as.size());
        return all;
    }

    /// The numbers, or a single unused one: arrays cannot be empty.
    template <class Y>
    static Numbers some(const std::vector<Y>& numbers) {
        return numbers.empty() ? Numbers{0} : Numbers(numbers.begin(), numbers.end());
    }
    template <class Y, class Z>
    static Y* or_null(const DeviceArray<Y>& array, const std::vector<Z>& numbers) {
        return numbers.empty() ? nullptr : array.data();
    }

    AttentionForward<X> arguments() const {
        AttentionForward<X> a{};
        a.B = p_.B, a.T = p_.T, a.S = p_.S, a.NH = p_.NH, a.NKV = p_.NKV, a.HS = p_.HS;
        a.q = {q_.data(), q_row()}, a.k = {k_.data(), k_row()}, a.v = {v_.data(), k_row()};
        a.head = or_null(head_, p_.head), a.row = or_null(row_, p_.row), a.column = or_null(column_, p_.column);
        a.tile = or_null(tile_, p_.tile);
        a.gate = or_null(gate_, p_.gate), a.list = {or_null(list_count_, p_.list_count), list_tiles_.data(), tiles_of(p_.S)};
        a.q_position = or_null(q_position_, p_.q_position), a.k_position = or_null(k_position_, p_.k_position);
        a.out = out_.data(), a.lse = lse_.data();
        a.gated_out = p_.gate.empty() ? nullptr : gated_out_.data();
        return a;
    }

    const Problem& p_;
    P policy_;
    DeviceArray<X> q_, k_, v_, dout_;
    DeviceArray<float> head_, row_, column_, tile_, gate_, dlse_;
    DeviceArray<int> q_position_, k_position_, list_count_, list_tiles_;
    DeviceArray<X> out_, gated_out_;
    DeviceArray<float> lse_;
};

/// What the kernels in X may differ by from double. Rounding to bf16 (2^-9 each) happens to the weights P, to their gradients and
/// to the results; errors of single numbers add up like a random walk. The absolute part is for gradients that are zero as the
/// difference of two products of HS numbers (one key: dP = D).
template <class X>
Tolerance of_attention(const Problem& p) {
    const double cancellation = std::sqrt(double(p.HS));
    if (std::is_same_v<X, float>) return {rounding<float>(p.HS + p.S).relative, 1e-6 * cancellation};
    return {0.01, 2e-4 * cancellation};
}

/// The same problem with inputs that X and float can hold.
template <class X>
Problem rounded_problem(Problem p) {
    for (Numbers* numbers : {&p.q, &p.k, &p.v, &p.dout}) *numbers = rounded<X>(*numbers);
    for (Numbers* numbers : {&p.head, &p.row, &p.column, &p.gate, &p.dlse}) *numbers = rounded<float>(*numbers);
    return p;
}

inline void check_gradients_of(const Gradients& is, const Gradients& should, Tolerance tolerance) {
    const std::pair<const Numbers*, const Numbers*> pairs[] = {{&is.q, &should.q}, {&is.k, &should.k}, {&is.v, &should.v},
        {&is.head, &should.head}, {&is.row, &should.row}, {&is.column, &should.column}, {&is.gate, &should.gate}};
    int number = 0;
    for (const auto& [a, b] : pairs) {
        INFO("gradient " << number++ << " of q, k, v, head, row, column, gate");
        if (!b->empty()) CHECK(difference(*a, *b, tolerance) == "");
    }
    // dz of a row sums to zero but for the rounding of D: what is left of TILE rows in a tile is the sum of their errors.
    const Tolerance of_tiles{8 * tolerance.relative, 3 * std::sqrt(double(TILE)) * tolerance.absolute};
    INFO("gradient of the tiles' numbers");
    if (!should.tile.empty()) CHECK(difference(is.tile, should.tile, of_tiles) == "");
}

template <class X, class P>
void check_attention_in(const Problem& original, const P& policy) {
    const Problem p = rounded_problem<X>(original);
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float"));
    INFO("B " << p.B << ", T " << p.T << ", S " << p.S << ", NH " << p.NH << ", NKV " << p.NKV << ", HS " << p.HS);
    AttentionOnGpu<X, P> gpu(p, policy);
    const Results is = gpu.forward(false), with_statistics = gpu.forward(true);
    const Gradients gradients = gpu.backward();
    const Threads one(1);   // many short runs
    Results should = forward(p, policy);
    const Tolerance tolerance = of_attention<X>(p), of_lse = of_attention<float>(p);
    CHECK(difference(is.out, should.out, tolerance) == "");
    CHECK(difference(is.gated_out, should.gated_out, tolerance) == "");
    CHECK(difference(no_infinity(is.lse), no_infinity(should.lse), of_lse) == "");
    CHECK(bit_difference(with_statistics.out, is.out) == "");
    CHECK(bit_difference(with_statistics.gated_out, is.gated_out) == "");
    CHECK(bit_difference(with_statistics.lse, is.lse) == "");
    CHECK(difference(no_infinity(with_statistics.tile_max), no_infinity(should.tile_max), of_lse) == "");
    CHECK(difference(with_statistics.entropy, should.entropy, {of_lse.relative, 1e-4}) == "");
    CHECK(bit_difference(with_statistics.pairs, should.pairs) == "");
    CHECK(bit_difference(with_statistics.tiles, should.tiles) == "");
    CHECK(difference(no_nan(with_statistics.pair_gate), no_nan(should.pair_gate), of_lse) == "");

    check_gradients_of(gradients, backward(p, policy, should), tolerance);
}

/// Everything that both passes compute, to the last bit, in several orders.
template <class X, class P>
void check_same_bits_on_gpu(const Problem& p, const P& policy) {
    auto all_results = [&] {
        AttentionOnGpu<X, P> gpu(p, policy);
        const Results r = gpu.forward(false);
        const Gradients g = gpu.backward();
        Numbers all;
        for (const Numbers* part : {&r.out, &r.gated_out, &r.lse, &g.q, &g.k, &g.v, &g.head, &g.row, &g.column, &g.tile, &g.gate})
            all.insert(all.end(), part->begin(), part->end());
        return all;
    };
    const Numbers once = all_results();
    CHECK(all_finite(no_infinity(once)));
    for (int order = 1; order <= 4; order++) {
        const Order chosen(order);
        CHECK(bit_difference(all_results(), once) == "");
    }
}

template <class P>
void check_attention_on_gpu(const Problem& p, const P& policy) {
    check_attention_in<bf16>(p, policy);
    check_attention_in<float>(p, policy);
}
