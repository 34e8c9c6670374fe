// What every attention variant has to pass. Nothing here knows any of them: settings, tensors and inputs are taken from what the
// variant declares. Double precision unless a case says otherwise.
#include <algorithm>

#include "tests/attention_case.h"
#include "tests/operation.h"

namespace {

using Settings = std::map<std::string, double>;

/// Five tiles of tokens, since a variant that chooses blocks may always take the first and the last two: then it is two that compete.
constexpr int WITH_CHOICE = 272;

bool accepts(const Variant& variant, const Settings& settings) {
    return AttentionCase<double>::accepts(variant, {1, 1, 2, 1, 8, settings});
}

/// The defaults, every small value of every setting, and those of two settings in every combination, as far as the variant takes
/// them together. Values that it refuses even alone (for this number of heads) stay at their defaults.
std::vector<Settings> settings_to_try(const Variant& variant) {
    std::vector<Settings> all = {{}};
    const std::vector<Setting> settings = variant.settings();
    const int rounds = settings.empty() ? 0 : settings.size() == 1 ? 5 : 16;
    for (int round = 0; round < rounds; round++) {
        Settings one;
        for (size_t n = 0; n < settings.size(); n++) {
            const std::vector<double> values = small_values(settings[n]);
            one[settings[n].key] = values[(round + n * (round / 4)) % values.size()];
        }
        if (!accepts(variant, one)) std::erase_if(one, [&](const auto& pair) { return !accepts(variant, {pair}); });
        if (accepts(variant, one) && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    }
    REQUIRE((settings.empty() || all.size() > 1));
    return all;
}

void check_gradients(const Variant& variant, const LayerSizes& sizes) {
    INFO(text_of(sizes));
    const Threads one(1);   // many short runs
    AttentionCase<double> layer(variant, sizes);
    if (!layer.facts.has_exact_gradients) return;
    const std::vector<double> dout = normal_numbers(layer.out.size(), 7);
    auto check = [&](const std::string& what, std::vector<double>& values, const std::vector<double>& gradient, auto moves) {
        INFO(what);
        CHECK(slope_error(values, gradient, moves, [&] { return layer.loss(dout); }) <= 1e-6);
    };
    layer.forward();
    layer.backward(dout);
    for (const Tensor& tensor : layer.tensors) {
        if (!tensor.has_gradient()) continue;
        const size_t begin = tensor.slot.offset, end = begin + tensor.slot.size;
        check(tensor.name, layer.weights, layer.dweights, [=](size_t n) { return n >= begin && n < end; });
    }
    if (layer.facts.has_teacher) {   // the rest of the loss has exact gradients
        layer.auxiliary_weight = 0;
        layer.dx.assign(layer.dx.size(), 0);
        layer.forward();
        layer.backward(dout);
    }
    const size_t HS = sizes.HS, k = sizes.NH * HS, v = k + sizes.NKV * HS, row = v + sizes.NKV * HS;
    check("q", layer.qkv, layer.dqkv, [=](size_t n) { return n % row < k; });
    check("k", layer.qkv, layer.dqkv, [=](size_t n) { return n % row >= k && n % row < v; });
    check("v", layer.qkv, layer.dqkv, [=](size_t n) { return n % row >= v; });
    if (layer.facts.reads_x) check("x", layer.x, layer.dx, [](size_t) { return true; });
}

/// Whether the verdict is true of the rectangle; one of which all is visible may be "mixed" as well.
bool verdict_holds(const AttentionLayer& policy, int h, int i0, int i1, int j0, int j1) {
    const Tile verdict = policy.tile(h, i0, i1, j0, j1);
    bool some = false, all = true;
    for (int i = i0; i < i1; i++)
        for (int j = j0; j < j1; j++) {
            const bool one = policy.visible(h, i, j);
            some = some || one, all = all && one;
        }
    return verdict == Tile::full ? all : verdict == Tile::hidden ? !some : some;
}

/// Everything that forward and backward compute, one behind the other.
template <class X>
std::vector<X> all_results(AttentionCase<X>& layer) {
    layer.dweights.assign(layer.dweights.size(), X(0));
    layer.dx.assign(layer.dx.size(), X(0));
    layer.forward();
    layer.backward(normal_numbers<X>(layer.out.size(), 7));
    std::vector<X> all = layer.result();
    for (auto* part : {&layer.lse, &layer.auxiliary, &layer.dweights, &layer.dx, &layer.dqkv})
        all.insert(all.end(), part->begin(), part->end());
    return all;
}

template <class X>
void check_same_bits(const Variant& variant) {
    AttentionCase<X> layer(variant, {2, 130, 4, 2, 16, {}});
    const auto on_threads = [&](int count) {
        const Threads threads(count);
        return all_results(layer);
    };
    const std::vector<X> first = all_results(layer), again = all_results(layer);
    const std::vector<X> one_thread = on_threads(1), two_threads = on_threads(2);
    CHECK(all_finite(layer.result()));
    CHECK(bit_difference(again, first) == "");
    CHECK(bit_difference(two_threads, one_thread) == "");
    CHECK(layer.kept_within_memory());
}

/// The number of outputs in front of `token` that differ between two runs.
int changed_before(int token, const AttentionCase<double>& a, const AttentionCase<double>& b) {
    const size_t row = size_t(a.config.NH) * a.config.HS;
    int changed = 0;
    const double rounding = a.facts.sorts_tokens ? 1e-12 : 0;
    for (size_t n = 0; n < token * row; n++) changed += !(std::abs(a.result()[n] - b.result()[n]) <= rounding);
    return changed;
}

void disturb(std::vector<double>& numbers, int token, int tokens) {
    const size_t width = numbers.size() / tokens;
    for (size_t n = 0; n < width; n++) numbers[token * width + n] = 2 - 3 * numbers[token * width + n];
}

/// Whether rows are what is selected from: other documents change the selection.
bool selects_from_rows(const Settings& settings) {
    return std::ranges::any_of(settings, [](const auto& one) {
        return (one.first == "mosa_choice" || one.first == "routing_balanced") && one.second == 1;
    });
}

/// Results of documents packed into rows against those of each alone. Some are short, three begin within a tile, one ends with its
/// last block and one has a token more, and some have blocks to choose from.
void check_documents(const Variant& variant, const Settings& settings) {
    const std::vector<int> begins = {0, 40, 376, 377, 420, 423, 480, 608, 609, 960};
    const LayerSizes sizes{2, 480, 4, 2, 8, settings};
    INFO(text_of(sizes));
    AttentionCase<double> packed(variant, sizes);
    if (!packed.facts.keeps_documents_apart || selects_from_rows(settings)) return;
    packed.auxiliary_weight = packed.facts.has_teacher;   // the balance of moh's heads is that of a row
    const std::vector<double> dout = normal_numbers(packed.out.size(), 7);
    const auto part = [&](const std::vector<double>& of, int begin, int end) {
        const size_t width = of.size() / (sizes.B * sizes.T);
        return std::vector<double>(of.begin() + begin * width, of.begin() + end * width);
    };
    std::vector<int32_t> starts;
    std::vector<double> out, dqkv, dx, dweights(packed.weights.size());
    double auxiliary = 0;
    for (size_t n = 0; n + 1 < begins.size(); n++) {
        const int begin = begins[n], end = begins[n + 1];
        starts.insert(starts.end(), end - begin, begin % sizes.T);
        AttentionCase<double> alone(variant, {1, end - begin, sizes.NH, sizes.NKV, sizes.HS, settings});
        alone.weights = packed.weights, alone.auxiliary_weight = packed.auxiliary_weight;
        alone.x = part(packed.x, begin, end), alone.qkv = part(packed.qkv, begin, end);
        alone.forward(), alone.backward(part(dout, begin, end));
        out = joined(out, alone.result()), dqkv = joined(dqkv, alone.dqkv), dx = joined(dx, alone.dx);
        for (size_t k = 0; k < dweights.size(); k++) dweights[k] += alone.dweights[k];
        auxiliary += sum_of(alone.auxiliary);
    }
    for (const bool restart : {false, true}) {
        INFO("positions restart: " << restart);
        packed.documents = {starts.data(), sizes.T, restart};
        packed.dweights.assign(dweights.size(), 0), packed.dx.assign(dx.size(), 0);
        packed.forward(), packed.backward(dout);
        CHECK(packed.kept_within_memory());
        CHECK(difference(packed.result(), out, {1e-9, 1e-12}) == "");
        CHECK(difference(packed.dqkv, dqkv, {1e-9, 1e-12}) == "");
        CHECK(difference(packed.dx, dx, {1e-9, 1e-12}) == "");
        if (!dweights.empty()) CHECK(difference(packed.dweights, dweights, {1e-9, 1e-12}) == "");
        if (packed.facts.has_teacher) CHECK(std::abs(sum_of(packed.auxiliary) - auxiliary) <= 1e-9 * auxiliary);
    }
}

}   // namespace

VARIANT_CASE(": computes what its naive() prints: one token, one tile, partial tiles, many tiles, grouped queries", "[attention][variant]") {
    check_against_naive(variant, {1, 1, 4, 4, 16, {}});
    check_against_naive(variant, {2, 63, 4, 2, 64, {}});
    check_against_naive(variant, {1, 64, 4, 1, 16, {}});
    check_against_naive(variant, {2, 65, 2, 1, 128, {}});
    check_against_naive(variant, {1, 200, 4, 2, 16, {}});
    check_against_naive(variant, {1, 200, 1, 1, 64, {}});
}

VARIANT_CASE(": computes what its naive() prints at every setting, where what is chosen leaves something out", "[attention][variant]") {
    for (const Settings& settings : settings_to_try(variant)) check_against_naive(variant, {1, WITH_CHOICE, 4, 2, 8, settings});
}

// Every T of interest, and every group of 1, 2 and 4 query heads with both head sizes.
VARIANT_CASE(": has the gradients of finite differences for one token, one tile, partial tiles, many tiles, grouped queries", "[attention][variant]") {
    check_gradients(variant, {1, 1, 4, 4, 64, {}});
    check_gradients(variant, {1, 63, 4, 1, 64, {}});
    check_gradients(variant, {1, 64, 2, 2, 128, {}});
    check_gradients(variant, {2, 65, 2, 1, 128, {}});
    check_gradients(variant, {1, 200, 4, 2, 64, {}});
    check_gradients(variant, {1, 200, 4, 1, 128, {}});
}

VARIANT_CASE(": has the gradients of finite differences at every setting, where what is chosen leaves something out", "[attention][variant]") {
    for (const Settings& settings : settings_to_try(variant))
        if (!settings.empty()) check_gradients(variant, {1, WITH_CHOICE, 2, 1, 8, settings});
}

VARIANT_CASE(": has tiles that never contradict visible(), and hides those without a pair", "[attention][variant]") {
    const int T = 200, NH = 4;
    std::mt19937_64 generator(5);
    auto below = [&](int n) { return int(generator() % uint64_t(n)); };
    for (const Settings& settings : settings_to_try(variant)) {
        const LayerSizes sizes{1, T, NH, 2, 16, settings};
        INFO(text_of(sizes));
        const AttentionCase<double> layer(variant, sizes);
        int wrong = 0;
        for (int h = 0; h < NH; h++) {
            auto judge = [&](int i0, int rows, int j0, int columns) {
                wrong += !verdict_holds(*layer.attention, h, i0, std::min(T, i0 + rows), j0, std::min(T, j0 + columns));
            };
            for (int i0 = 0; i0 < T; i0 += TILE)
                for (int j0 = 0; j0 < T; j0 += TILE) judge(i0, TILE, j0, TILE);
            for (int n = 0; n < 1500; n++) {
                const int most = n % 3 ? 12 : 80;
                judge(below(T), 1 + below(most), below(T), 1 + below(most));
            }
        }
        CHECK(wrong == 0);
    }
}

VARIANT_CASE(": counts its pairs", "[attention][variant]") {
    const int T = 200, NH = 4;
    for (const Settings& settings : settings_to_try(variant)) {
        const AttentionCase<double> layer(variant, {1, T, NH, 2, 16, settings});
        double pairs = 0;
        for (int h = 0; h < NH; h++)
            for (int i = 0; i < T; i++)
                for (int j = 0; j < T; j++) pairs += layer.attention->visible(h, i, j);
        CHECK(count_pairs(*layer.attention, NH, T).pairs == pairs);
    }
}

VARIANT_CASE(": expects the pairs and tiles that it visits", "[attention][variant]") {
    const std::string name = variant.name;
    if (name == "mosa" || name == "routing") return;   // their expectation is an estimate: the number depends on the data
    for (const Settings& settings : settings_to_try(variant)) {
        const LayerSizes sizes{1, WITH_CHOICE, 4, 2, 8, settings};
        INFO(text_of(sizes));
        AttentionCase<double> layer(variant, sizes);
        const size_t rows = layer.facts.branch_names.size() * sizes.NH;
        std::vector<double> pairs(rows * sizes.T), tiles(rows * tiles_of(sizes.T));
        layer.statistics.pairs = pairs.data(), layer.statistics.tiles = tiles.data();
        layer.forward();
        const PairCount expected = layer.attention->expected_pairs(sizes.NH, sizes.T);
        const double more_tiles = layer.facts.tokens_choose ? 0 : sum_of(tiles) - expected.tiles;   // chosen ones are an estimate
        if (layer.facts.expects_at_most) CHECK((sum_of(pairs) <= expected.pairs && more_tiles <= 0));
        else CHECK((sum_of(pairs) == expected.pairs && more_tiles == 0));
    }
}

VARIANT_CASE(": keeps every key in its cache that later rows see", "[attention][variant]") {
    if (AttentionCase<double>(variant, {1, 1, 2, 1, 16, {}}).facts.tokens_choose) return;   // what is visible is in the data
    const int T = 100, later = 100, NH = 4, NKV = 2;
    for (const Settings& settings : settings_to_try(variant)) {
        const LayerSizes sizes{1, T + later, NH, NKV, 16, settings};
        INFO(text_of(sizes));
        const AttentionCase<double> layer(variant, sizes);
        auto seen_later = [&](int h, int j) {
            for (int i = T - 1; i < T + later; i++)
                if (layer.attention->visible(h, i, j)) return true;
            return false;
        };
        double keys = 0;
        for (int kv = 0; kv < NKV; kv++)
            for (int j = 0; j < T; j++) keys += seen_later(2 * kv, j) || seen_later(2 * kv + 1, j);
        CHECK(layer.attention->cached_keys(T) >= keys / NKV);
        if (!layer.facts.own_passes) CHECK(layer.attention->cached_keys(T) <= T);   // which may keep keys of several kinds
    }
}

VARIANT_CASE(": changes no output in front of a changed token, not by one bit", "[attention][variant]") {
    const Threads one(1);   // many short runs
    for (const Settings& settings : settings_to_try(variant)) {
        // A form that looks ahead is caught where it chooses blocks: it needs enough past ones to leave some out.
        const int T = AttentionCase<double>(variant, {1, 1, 2, 1, 16, settings}).facts.is_causal ? WITH_CHOICE : 12 * 64 + 16;
        const LayerSizes sizes{1, T, 2, 1, 16, settings};
        INFO(text_of(sizes));
        AttentionCase<double> before(variant, sizes);
        before.forward();
        int changed = 0;
        bool matters = false;   // a token that no other chooses may not
        for (int token : {1, 63, 64, 129, 255, 256, T - 3, T - 1}) {
            AttentionCase<double> after(variant, sizes);
            for (auto* numbers : {&after.x, &after.qkv}) disturb(*numbers, token, T);
            after.forward();
            matters = matters || before.result() != after.result();
            changed += changed_before(token, before, after);
        }
        CHECK((changed == 0) == before.facts.is_causal);
        CHECK(matters);
    }
}

VARIANT_CASE(": gives documents packed into a row what they get alone", "[attention][variant][documents]") {
    const Threads one(1);   // many short runs
    for (const Settings& settings : settings_to_try(variant)) check_documents(variant, settings);
}

VARIANT_CASE(": gives the same bits twice, with one thread and with two, and writes nothing behind its memory", "[attention][variant]") {
    check_same_bits<float>(variant);
    check_same_bits<double>(variant);
}

// A score of size up to about 8 is a sum of HS products; exp() turns its absolute error into a relative one of the weights.
VARIANT_CASE(": is as exact in float as float can be", "[attention][variant]") {
    for (int HS : {16, 64}) {
        const LayerSizes sizes{1, 130, 4, 2, HS, {}};
        AttentionCase<float> single(variant, sizes);
        AttentionCase<double> exact(variant, sizes);
        exact.weights.assign(single.weights.begin(), single.weights.end());
        exact.x.assign(single.x.begin(), single.x.end());
        exact.qkv.assign(single.qkv.begin(), single.qkv.end());
        const std::vector<float> dout = normal_numbers<float>(single.out.size(), 7);
        single.forward(), single.backward(dout);
        exact.forward(), exact.backward({dout.begin(), dout.end()});

        const Tolerance tolerance = rounding<float>(HS), of_gradients{4 * tolerance.relative};
        CHECK(difference(single.result(), exact.result(), tolerance) == "");
        CHECK(difference(single.dqkv, exact.dqkv, of_gradients) == "");
        if (!single.dweights.empty()) CHECK(difference(single.dweights, exact.dweights, of_gradients) == "");
        CHECK(difference(single.dx, exact.dx, of_gradients) == "");
    }
}

VARIANT_CASE(": overwrites the gradients of activations and adds to those of tensors", "[attention][variant]") {
    AttentionCase<double> layer(variant, {2, 70, 4, 2, 16, {}});
    const std::vector<double> dout = normal_numbers(layer.out.size(), 7);
    auto doubled = [](std::vector<double> numbers) {
        for (double& number : numbers) number *= 2;
        return numbers;
    };
    layer.forward();
    layer.backward(dout);
    const std::vector<double> dqkv = layer.dqkv, dweights = layer.dweights, dx = layer.dx;
    layer.backward(dout);
    CHECK(bit_difference(layer.dqkv, dqkv) == "");
    if (!dweights.empty()) CHECK(difference(layer.dweights, doubled(dweights), {1e-13}) == "");
    CHECK(difference(layer.dx, doubled(dx), {1e-13}) == "");
}
