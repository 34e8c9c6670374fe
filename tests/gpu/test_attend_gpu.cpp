// The decode kernel on the GPU alone: sequences so long that a warp has several tiles of keys, and rings, against a softmax
// in double. Whole models: variant/test_gpu_decoder.cpp. On a machine without a GPU it runs on the emulator.
#include <memory>

#include "attention/decoding/attend.cuh"
#include "attention/fixed_factorized.cuh"
#include "attention/masks/pattern.h"
#include "tests/attention_policies.h"
#include "tests/gpu/attention_on_gpu.h"

namespace {

constexpr int NH = 6, NKV = 1, HS = 32;   // more heads than a block takes at a time

/// The newest token of a text of so many, with all keys.
Problem newest_token(int tokens) {
    Problem p(1, 1, tokens, NH, NKV, HS);
    p.k = normal_numbers(p.k.size(), tokens), p.v = normal_numbers(p.v.size(), tokens + 1);   // other numbers in each text
    p.q = normal_numbers(p.q.size(), tokens + 2), p.gate = normal_numbers(NH, tokens + 3);
    p.q_position.assign(NH, tokens - 1);
    return p;
}

struct RowResults {
    Numbers out, gated_out, lse;   // of both texts
};

/// The rows of two texts, in another order than that of the texts' numbers.
template <class X, class P>
RowResults on_gpu(const Problem (&texts)[2], const P& policy) {
    const GPU device = test_gpu();
    Arena<GPU> memory;
    std::unique_ptr<KVCache<GPU, X, SlotsOf<P>>> keys;
    const int room = std::max(texts[0].S, texts[1].S);
    for (int pass = 0; pass < 2; pass++) {   // the first learns the size
        keys = std::make_unique<KVCache<GPU, X, SlotsOf<P>>>(memory, CacheRoom{{2, room, 0, NH, NKV, HS}}, 0, policy.kept_keys());
        if (pass == 0) memory.allocate();
    }
    ArraysOn<GPU> arrays{device};
    Numbers q, k, v, gates;
    for (int b : {1, 0}) {
        const Problem& p = texts[b];
        AttentionForward<X> prompt{};
        prompt.B = 1, prompt.S = p.S - 1;
        prompt.k = {put<X>(arrays, p.k), HS}, prompt.v = {put<X>(arrays, p.v), HS};
        append_prompt(device, *keys, prompt, b);
        q = joined(q, p.q), k = joined(k, {p.k.end() - HS, p.k.end()}), v = joined(v, {p.v.end() - HS, p.v.end()});
        gates = joined(gates, p.gate);
    }
    const DeviceMemory<int32_t> text({1, 0}), position({texts[1].S - 1, texts[0].S - 1});
    AttentionForward<X> a{};
    a.B = 2, a.T = a.S = 1, a.NH = NH, a.NKV = NKV, a.HS = HS;
    a.q = {put<X>(arrays, q), NH * HS}, a.k = {put<X>(arrays, k), HS}, a.v = {put<X>(arrays, v), HS};
    a.gate = put<float>(arrays, gates), a.lse = put<float>(arrays, 2 * NH);
    a.out = put<X>(arrays, 2 * NH * HS), a.gated_out = put<X>(arrays, 2 * NH * HS);
    attention_forward(DecodeStep<GPU, X, SlotsOf<P>>{device, *keys, {text.data(), position.data()}}, policy, a);

    const auto in_order = [&](const auto* rows, size_t of_text) {
        return joined(numbers_at(arrays, rows + of_text, of_text), numbers_at(arrays, rows, of_text));
    };
    return {in_order(a.out, NH * HS), in_order(a.gated_out, NH * HS), in_order(a.lse, NH)};
}

template <class X, class P>
void check_rows(int first, int second, const P& policy) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float") << ", " << first << " and " << second << " tokens");
    const Problem texts[] = {rounded_problem<X>(newest_token(first)), rounded_problem<X>(newest_token(second))};
    RowResults should;
    for (const Problem& p : texts) {
        const Results one = by_definition(p, raw, [&](int h, int i, int j) { return j <= i && policy.visible(h, i, j); });
        should.out = joined(should.out, one.out), should.gated_out = joined(should.gated_out, one.gated_out);
        should.lse = joined(should.lse, one.lse);
    }
    const RowResults is = on_gpu<X>(texts, policy);
    const Tolerance of_sums = rounding<float>(HS + std::max(first, second));
    const Tolerance of_out = std::is_same_v<X, float> ? of_sums : Tolerance{0.01, 0};   // bf16 rounds the result
    CHECK(difference(is.out, should.out, of_out) == "");
    CHECK(difference(is.gated_out, should.gated_out, of_out) == "");
    CHECK(difference(is.lse, should.lse, of_sums) == "");
    const Order other(3);
    CHECK(bit_difference(on_gpu<X>(texts, policy).out, is.out) == "");
}

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
    check_rows<bf16>(8400, 40, Causal());
    check_rows<float>(130, 8400, Causal());
}

TEST_CASE("decode on the GPU: rings, before they are full and at every place of the newest token", "[gpu][attention][decode]") {
    for (int length : {60, 130, 171, 172, 199, 237, 300}) check_rows<float>(length, 330, LeadingAndWindow(Config{}, 0, 70, 100));
    check_rows<bf16>(2, 65, LeadingAndWindow(Config{}, 0, 0, 0));   // each sees itself alone
}

TEST_CASE("decode on the GPU: chunks of which the end is kept, at every place of the newest token", "[gpu][attention][decode]") {
    Config config;
    config.settings = {{"fixed_factorized_chunk", 100}, {"fixed_factorized_summary", 30}};
    const fixed_factorized policy(config, 0);
    for (int length : {1, 69, 71, 99, 100, 101, 150, 170, 171, 200, 230, 299}) check_rows<float>(length, 330, policy);
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
