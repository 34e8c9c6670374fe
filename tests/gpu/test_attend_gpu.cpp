// The decode kernel on the GPU alone: sequences so long that a warp has several tiles of keys, and rings, against a softmax
// in double. Whole layers: variant/test_layer_caches_gpu.cpp. On a machine without a GPU it runs on the emulator.
#include <memory>

#include "attention/decoding/attend.cuh"
#include "attention/fixed_factorized.cuh"
#include "attention/masks/pattern.h"
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

using Numbers = std::vector<double>;

constexpr int NH = 6, NKV = 1, HS = 32;   // more heads than a block takes at a time

/// Two texts, of which all but the last token is kept, and the rows of the last ones.
struct TwoTexts {
    std::vector<int> lengths;
    int room;
    Numbers q, k, v, gate;   // (2, NH, HS), (2, room, HS) twice, (2, NH)

    TwoTexts(int first, int second)
        : lengths{first, second}, room(std::max(first, second)), q(normal_numbers(2 * NH * HS, 1)),
          k(normal_numbers(size_t(2) * room * HS, 2)), v(normal_numbers(size_t(2) * room * HS, 3)), gate(normal_numbers(2 * NH, 4)) {}
    size_t row(int b, int t) const { return (size_t(b) * room + t) * HS; }
};

struct RowResults {
    Numbers out, gated_out, lse;
};

template <class P>
RowResults expected(const TwoTexts& texts, const P& policy) {
    RowResults r;
    for (int b = 0; b < 2; b++)
        for (int h = 0; h < NH; h++) {
            const int i = texts.lengths[b] - 1;
            const double* q = &texts.q[(size_t(b) * NH + h) * HS];
            double sum = 0;
            Numbers out(HS);
            for (int j = 0; j <= i; j++) {
                if (!policy.visible(h, i, j)) continue;
                const double weight = std::exp(dot(q, &texts.k[texts.row(b, j)], HS) / std::sqrt(double(HS)));
                sum += weight;
                for (int d = 0; d < HS; d++) out[d] += weight * texts.v[texts.row(b, j) + d];
            }
            for (double o : out) r.out.push_back(o / sum), r.gated_out.push_back(o / sum * texts.gate[b * NH + h]);
            r.lse.push_back(std::log(sum));
        }
    return r;
}

/// In another order of the texts than that of their numbers.
template <class X, class P>
RowResults on_gpu(const TwoTexts& texts, const P& policy) {
    const GPU device = test_gpu();
    Arena<GPU> memory;
    std::unique_ptr<KVCache<GPU, X, SlotsOf<P>>> keys;
    for (int pass = 0; pass < 2; pass++) {   // the first learns the size
        keys = std::make_unique<KVCache<GPU, X, SlotsOf<P>>>(memory, LayerShape{2, texts.room, 0, NH, NKV, HS}, 0, policy.kept_keys());
        if (pass == 0) memory.allocate();
    }
    const DeviceArray<X> k(texts.k), v(texts.v);
    Numbers rows_q, rows_k, rows_v, gates;
    for (int b : {1, 0}) {
        AttentionForward<X> prompt{};
        prompt.B = 1, prompt.S = texts.lengths[b] - 1;
        prompt.k = {k.data() + texts.row(b, 0), HS}, prompt.v = {v.data() + texts.row(b, 0), HS};
        append_prompt(device, *keys, prompt, b);
        const size_t last = texts.row(b, texts.lengths[b] - 1), q_row = size_t(NH) * HS;
        rows_q.insert(rows_q.end(), texts.q.begin() + b * q_row, texts.q.begin() + (b + 1) * q_row);
        rows_k.insert(rows_k.end(), texts.k.begin() + last, texts.k.begin() + last + HS);
        rows_v.insert(rows_v.end(), texts.v.begin() + last, texts.v.begin() + last + HS);
        gates.insert(gates.end(), texts.gate.begin() + b * NH, texts.gate.begin() + (b + 1) * NH);
    }
    const DeviceArray<X> q(rows_q), row_k(rows_k), row_v(rows_v), out(2 * NH * HS, NAN), gated_out(2 * NH * HS, NAN);
    const DeviceArray<float> lse(2 * NH, NAN), gate(gates);
    const DeviceMemory<int32_t> text({1, 0}), position({texts.lengths[1] - 1, texts.lengths[0] - 1});
    AttentionForward<X> a{};
    a.B = 2, a.T = a.S = 1, a.NH = NH, a.NKV = NKV, a.HS = HS;
    a.q = {q.data(), NH * HS}, a.k = {row_k.data(), HS}, a.v = {row_v.data(), HS};
    a.gate = gate.data(), a.out = out.data(), a.gated_out = gated_out.data(), a.lse = lse.data();
    attention_forward(DecodeStep<GPU, X, SlotsOf<P>>{device, *keys, {text.data(), position.data()}}, policy, a);

    const auto in_order = [](const Numbers& rows) {
        Numbers both(rows.begin() + rows.size() / 2, rows.end());
        both.insert(both.end(), rows.begin(), rows.begin() + rows.size() / 2);
        return both;
    };
    return {in_order(out.numbers()), in_order(gated_out.numbers()), in_order(lse.numbers())};
}

template <class X, class P>
void check_rows(TwoTexts texts, const P& policy) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float") << ", " << texts.lengths[0] << " and " << texts.lengths[1] << " tokens");
    for (Numbers* numbers : {&texts.q, &texts.k, &texts.v}) *numbers = rounded<X>(*numbers);
    texts.gate = rounded<float>(texts.gate);
    const RowResults is = on_gpu<X>(texts, policy), should = expected(texts, policy);
    const Tolerance of_sums = rounding<float>(HS + texts.room);
    const Tolerance of_out = std::is_same_v<X, float> ? of_sums : Tolerance{0.01, 0};   // bf16 rounds the result
    CHECK(difference(is.out, should.out, of_out) == "");
    CHECK(difference(is.gated_out, should.gated_out, of_out) == "");
    CHECK(difference(is.lse, should.lse, of_sums) == "");
    const Order other(3);
    CHECK(bit_difference(on_gpu<X>(texts, policy).out, is.out) == "");
}

const Policy causal(Config{}, 0);

/// Whether the last of `tokens` tokens or a later one may see token j.
bool is_needed(const KeptKeys& kept, int j, int tokens) {
    return j < kept.leading || j >= tokens - kept.recent;
}
bool is_needed(const KeptChunks& kept, int j, int tokens) {
    return j / kept.chunk == (tokens - 1) / kept.chunk || j % kept.chunk >= kept.chunk - kept.of_chunk;
}

/// Whether each token has a slot while a later row may see it, and ranges of slots hold all of their tokens.
template <class Kept>
void check_slots(const Kept& kept) {
    const int ROOM = 23;
    const auto slots = slots_for(kept, ROOM);
    REQUIRE(slots.count() == slots.used(ROOM));
    for (int tokens = 1; tokens <= ROOM; tokens++) {
        REQUIRE(slots.used(tokens) <= slots.count());
        std::vector<int> needed, found;
        for (int j = 0; j < tokens; j++)
            if (is_needed(kept, j, tokens)) needed.push_back(j);
        for (SlotRun run = slots.run(0, tokens); run.count; run = slots.run(run.first + run.count, tokens))
            for (int n = 0; n < run.count; n++) {
                found.push_back(run.first + n);
                REQUIRE(slots.slot(run.first + n) == slots.slot(run.first) + n);
            }
        REQUIRE(found == needed);
        for (int j : needed) REQUIRE((slots.slot(j) < slots.used(tokens) && slots.token(slots.slot(j), tokens) == j));
        for (int slot = 0; slot < slots.used(tokens); slot++) {
            const int token = slots.token(slot, tokens);
            REQUIRE((slots.slot(token) == slot && token >= 0 && token < tokens));
            for (int n = 1; slot + n <= slots.used(tokens); n++) {
                const SlotRange range = slots.range(slot, n, tokens);
                for (int s = slot; s < slot + n; s++)
                    REQUIRE((slots.token(s, tokens) >= range.first && slots.token(s, tokens) <= range.last));
            }
        }
    }
}

}   // namespace

TEST_CASE("decode on the GPU: several tiles of keys for a warp, beside a text of less than one", "[gpu][attention][decode]") {
    check_rows<bf16>({8400, 40}, causal);
    check_rows<float>({130, 8400}, causal);
}

TEST_CASE("decode on the GPU: rings, before they are full and at every place of the newest token", "[gpu][attention][decode]") {
    for (int length : {60, 130, 171, 172, 199, 237, 300}) check_rows<float>({length, 330}, LeadingAndWindow(Config{}, 0, 70, 100));
    check_rows<bf16>({2, 65}, LeadingAndWindow(Config{}, 0, 0, 0));   // each sees itself alone
}

TEST_CASE("decode on the GPU: chunks of which the end is kept, at every place of the newest token", "[gpu][attention][decode]") {
    Config config;
    config.settings = {{"fixed_factorized_chunk", 100}, {"fixed_factorized_summary", 30}};
    const fixed_factorized policy(config, 0);
    for (int length : {1, 69, 71, 99, 100, 101, 150, 170, 171, 200, 230, 299}) check_rows<float>({length, 330}, policy);
}

TEST_CASE("slots of a text: each token has one while a later row may see it, and ranges of slots hold all of their tokens", "[decode]") {
    for (const KeptKeys& kept : {KeptKeys{}, KeptKeys{0, 5}, KeptKeys{3, 4}, KeptKeys{9, 1}}) {
        INFO("leading " << kept.leading << ", recent " << kept.recent);
        check_slots(kept);
    }
    for (const KeptChunks& kept : {KeptChunks{6, 2}, KeptChunks{6, 0}, KeptChunks{4, 3}, KeptChunks{4, 4}, KeptChunks{1, 0}, KeptChunks{30, 10},
                                   KeptChunks{20, 5}}) {
        INFO(kept.of_chunk << " of chunks of " << kept.chunk);
        check_slots(kept);
    }
}
