// adaptive_sparse, seer and seer_r in rows of packed documents: each is as it is alone, in every setting that looks at no later token;
// and the rows of blocks that make it so.
#include "attention/adaptive_sparse.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/seer.cuh"
#include "attention/seer_r.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"

namespace {

using Settings = std::map<std::string, double>;
using Numbers = std::vector<double>;

constexpr int B = 2, T = 1000;

/// Of a row that goes on from an earlier one: short ones, several that begin within 64 tokens, whole blocks to the last token and one
/// token more; and of a row whose documents have many blocks.
const std::vector<int> BEGINS = {0, 40, 47, 400, 401, 403, 720, 728, 856, T, T + 129, T + 330, T + 999, B * T};

std::vector<int32_t> starts() {
    std::vector<int32_t> start(size_t(B) * T);
    for (size_t n = 0; n + 1 < BEGINS.size(); n++) std::fill(&start[BEGINS[n]], &start[BEGINS[n + 1] - 1] + 1, BEGINS[n] % T);
    return start;
}

/// Tokens begin to end - 1 of an array (B, T, width).
Numbers part(const Numbers& of, int begin, int end) {
    const size_t width = of.size() / (B * T);
    return Numbers(of.begin() + begin * width, of.begin() + end * width);
}

/// Outputs, the policy's own loss and all gradients of packed documents against those of each alone.
template <class A>
void check_documents(int NH, int NKV, const Settings& settings) {
    std::ostringstream text;
    for (const auto& [key, value] : settings) text << key << " " << value << "  ";
    INFO(text.str());
    PolicyCase<double, A> packed({B, T, NH, NKV, 8, settings});
    REQUIRE(packed.facts.keeps_documents_apart);
    const std::vector<int32_t> start = starts();
    packed.documents = {start.data(), T};
    const Numbers dout = normal_numbers(packed.out.size(), 7);
    packed.forward(), packed.backward(dout);
    CHECK(packed.kept_within_memory());
    Numbers out, dqkv, auxiliary(B * NH, 0.0), dweights(packed.weights.size(), 0.0);
    for (size_t n = 0; n + 1 < BEGINS.size(); n++) {
        const int begin = BEGINS[n], end = BEGINS[n + 1];
        PolicyCase<double, A> alone({1, end - begin, NH, NKV, 8, settings});
        alone.weights = packed.weights;
        alone.x = part(packed.x, begin, end), alone.qkv = part(packed.qkv, begin, end);
        alone.forward(), alone.backward(part(dout, begin, end));
        out.insert(out.end(), alone.result().begin(), alone.result().end());
        dqkv.insert(dqkv.end(), alone.dqkv.begin(), alone.dqkv.end());
        for (size_t k = 0; k < dweights.size(); k++) dweights[k] += alone.dweights[k];
        for (int h = 0; h < NH; h++) auxiliary[begin / T * NH + h] += alone.auxiliary[h];
    }
    CHECK(difference(packed.result(), out, {1e-11, 1e-13}) == "");
    CHECK(difference(packed.auxiliary, auxiliary, {1e-11, 1e-13}) == "");
    CHECK(difference(packed.dqkv, dqkv, {1e-10, 1e-12}) == "");
    CHECK(difference(packed.dweights, dweights, {1e-10, 1e-12}) == "");
}

const std::string A = "adaptive_sparse_", S = "seer_";

}   // namespace

TEST_CASE("blocks of packed documents: queries that have past blocks have rows of their own", "[attention][blocks][documents]") {
    const std::vector<int32_t> start = starts();
    for (int length : {1, 5, 64, 128}) {
        const DocumentBlocks blocks{length, length, T, {start.data(), T}};
        const BlockQueries queries(blocks);
        const BlockKeys keys(blocks);
        std::vector<int> owner(size_t(B) * T, -1);
        int wrong = 0;
        for (int n = 0; n < B * T; n++) {
            const int b = n / T, t = n % T, inside = t - start[n], row = queries.row(b, 0, t);
            wrong += (row >= 0) != (inside >= length);
            if (row < 0) continue;
            wrong += std::exchange(owner[b * T + row], t) != -1 || row % length != inside % length;
            wrong += keys.row(b, 0, t - inside % length - 1) != row - row % length - 1;   // behind the block before
        }
        for (int n = 0; n < B * T; n++) wrong += queries.token(n / T, 0, n % T) != owner[n];
        for (size_t n = 0; n + 1 < BEGINS.size(); n++)
            for (int t = BEGINS[n]; t < BEGINS[n + 1]; t++) wrong += blocks.tokens(t / T, t % T) != BEGINS[n + 1] - BEGINS[n];
        INFO("length " << length);
        CHECK(wrong == 0);
    }
}

TEST_CASE("adaptive_sparse: packed documents are as each alone, with every mask and gate query", "[attention][documents]") {
    for (double mask : {0, 1, 2})
        for (double query : {0, 1})
            check_documents<adaptive_sparse>(2, 1, {{A + "top_k", 1}, {A + "mask", mask}, {A + "query", query}, {A + "dense_heads", 0}});
    check_documents<adaptive_sparse>(4, 2, {{A + "top_k", 1}, {A + "sink", 1}, {A + "dense_heads", 2}, {A + "ste", 1}});
    check_documents<adaptive_sparse>(2, 2, {{A + "threshold", 0.3}, {A + "head_threshold", -1}, {A + "dense_heads", 1}});
    check_documents<adaptive_sparse>(2, 1, {{A + "top_k", 1}, {A + "block", 128}, {A + "dense_heads", 0}});
    check_documents<adaptive_sparse>(2, 1, {{A + "block", 192}, {A + "mask", 0}, {A + "query", 1}, {A + "dense_heads", 0}});
}

TEST_CASE("adaptive_sparse: what a gate learns from packed documents is what it learns from each", "[attention][documents]") {
    for (double distil : {1, 2})
        for (double mask : {0, 1, 2})
            check_documents<adaptive_sparse>(4, 2, {{A + "top_k", 1}, {A + "mask", mask}, {A + "distil", distil}, {A + "dense_heads", 2}});
    check_documents<adaptive_sparse>(2, 1, {{A + "distil", 1}, {A + "distil_skip", 0.4}, {A + "distil_weight", 3}, {A + "dense_heads", 0}});
}

TEST_CASE("seer: packed documents are as each alone, and so is what the gate learns", "[attention][documents]") {
    for (double distil : {0, 1, 2})
        for (double query : {0, 1})
            check_documents<seer>(2, 1, {{S + "top_k", 1}, {S + "query", query}, {S + "distil", distil}});
    check_documents<seer>(2, 2, {{S + "query", 2}, {S + "distil", 2}, {S + "distil_skip", 0.25}});   // its blocks' means are only learnt
    check_documents<seer>(2, 1, {{S + "threshold", 0.2}, {S + "sink", 1}, {S + "distil", 1}});
    check_documents<seer>(2, 1, {{S + "top_k", 2}, {S + "block", 128}, {S + "distil", 1}, {S + "query", 1}});
    check_documents<seer>(2, 1, {{S + "top_k", 0}, {S + "query", 3}, {S + "distil", 0}});   // the map, without a selection
}

TEST_CASE("seer_r: packed documents are as each alone, and so is what the gate learns", "[attention][documents]") {
    const std::string R = "seer_r_";
    for (double distil : {0, 1, 2}) {
        check_documents<seer_r>(4, 2, {{R + "top_k", 1}, {R + "distil", distil}});
        check_documents<seer_r>(2, 1, {{R + "top_k", 4}, {R + "threshold", 0.3}, {R + "block", 128}, {R + "distil", distil}});
    }
}

TEST_CASE("seer: forms that look ahead do not keep documents apart", "[attention][documents]") {
    for (const Settings& ahead : {Settings{{S + "query", 2}, {S + "distil", 1}}, {{S + "query", 3}, {S + "distil", 0}}})
        CHECK_FALSE((PolicyCase<double, seer>({1, 1, 2, 1, 8, ahead}).facts.keeps_documents_apart));
}
