// Statistics and frozen tensors: what moves them, what the norm of the gradient counts, shards.
#include <deque>
#include <map>

#include "model/base/error.h"
#include "tests/watching_policy.h"
#include "tests/whole_model.h"

namespace {

using Double = TrialOf<double, Watcher>;
using Float = TrialOf<float, Watcher>;

Config watched(bool only = false) {
    Config config = config_of({});
    config.settings["watcher_only"] = only;
    return config;
}

TensorList small_list() {
    TensorList list;
    list.add("a.weight", {3, 5}, ones(), Decay::yes);
    list.align();
    list.add("a.bias", {3}, zeros(), Decay::no);
    list.add_statistic("a.mean", {4}, constant(2), 0.5);
    list.add("b.bias", {2}, zeros(), Decay::no);
    return list;
}

}   // namespace

TEST_CASE("roles: ranges of the update and spans of the norm follow them", "[roles]") {
    TensorList list = small_list();
    CHECK(list.parameters() == 24);
    CHECK(list.trained() == 20);
    const Shards all(list.size(), 0, 1);
    const std::vector<UpdateRange> ranges = update_ranges(list, all, 10);
    REQUIRE(ranges.size() == 5);   // 10 + 5, 3, 4, 2
    CHECK((ranges[0].role == Role::decays && ranges[2].role == Role::plain));
    CHECK((ranges[3].role == Role::statistic && ranges[3].rate == 0.5));
    CHECK((ranges[3].begin == 19 && ranges[3].end == 23 && ranges[3].held == 19));
    const std::vector<NormSpan> spans = norm_spans(list, all);
    REQUIRE(spans.size() == 3);
    CHECK((spans[0].begin == 0 && spans[0].end == 19 && spans[0].weight == 1));   // the padding of 15..16 among them
    CHECK((spans[1].begin == 19 && spans[1].end == 23 && spans[1].weight == 0));
    CHECK((spans[2].begin == 23 && spans[2].end == 25 && spans[2].weight == 1));
}

TEST_CASE("roles: what is frozen is in no range and no span", "[roles]") {
    TensorList list = small_list();
    list.train_only([](const std::string& name) { return name != "a.bias"; });
    CHECK(list.find("a.bias")->role == Role::frozen);
    CHECK(list.trained() == 17);
    const Shards all(list.size(), 0, 1);
    for (const UpdateRange& range : update_ranges(list, all, 100)) CHECK((range.end <= 15 || range.begin >= 19));
    const std::vector<NormSpan> spans = norm_spans(list, all);
    REQUIRE(spans.size() == 3);
    CHECK(spans[0].end == 15);
    CHECK(spans[1].begin == 19);
    list.train_only([](const std::string&) { return false; });
    CHECK((update_ranges(list, all, 100).empty() && norm_spans(list, all).empty()));
    for (double rate : {0.0, -1.0, double(NAN)}) CHECK_THROWS_AS(list.add_statistic("s", {1}, zeros(), rate), Error);
}

TEST_CASE("shards: parts of a bucket are equal, begin on cache lines, leave nothing out and are held without gaps", "[roles]") {
    for (size_t n : {1, 16, 37, 1000, 5003})
        for (int count : {1, 2, 3, 8})
            for (size_t bucket : {size_t(16), size_t(300), Shards::BUCKET}) {
                INFO(n << " numbers, " << count << " shards, buckets of " << bucket);
                const Shards first(n, 0, count, bucket);
                CHECK((first.size() >= n && first.size() < n + size_t(16 * count)));
                if (count == 1) CHECK((first.size() == n && first.buckets() == 1));
                std::vector<int> owners(first.size());
                for (int s = 0; s < count; s++) {
                    const Shards shards(n, s, count, bucket);
                    size_t held = 0;
                    for (size_t k = 0; k < shards.buckets(); k++) {
                        const Span own = shards.own(k);
                        CHECK((own.size() == shards.part_size(k) && own.begin >= shards.bucket(k).begin && own.end <= shards.bucket(k).end));
                        CHECK((own.begin % 16 == 0 && shards.held(k) == held));
                        held += own.size();
                        for (size_t i = own.begin; i < own.end; i++) owners[i]++;
                    }
                    CHECK(held == shards.owned());
                }
                CHECK(owners == std::vector<int>(first.size(), 1));
            }
}

TEST_CASE("shards: every number is updated and counted in the norm by one shard, as in the whole", "[roles]") {
    const TensorList list = small_list();
    const Shards all(list.size(), 0, 1);
    auto weights_of = [&](const Shards& shards, std::vector<double>& to) {
        for (const NormSpan& span : norm_spans(list, shards))
            for (size_t i = span.begin; i < span.end; i++) to[i] += 1 + span.weight;
    };
    std::vector<double> expected(list.size()), counted(list.size());
    weights_of(all, expected);
    std::vector<int> updates(list.size());
    for (int s : {0, 1}) {
        const Shards shards(list.size(), s, 2, 16);   // of 0..15 and of 16..31
        weights_of(shards, counted);
        for (const UpdateRange& range : update_ranges(list, shards, 10)) {
            CHECK(range.held == range.begin - shards.own(0).begin);
            for (size_t i = range.begin; i < range.end; i++) updates[i]++;
        }
    }
    CHECK(counted == expected);
    CHECK(updates == std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("statistics: the model's gradients are right beside one, and it follows the data over micro-steps", "[roles]") {
    Double trial(watched(), 2, 13, 2, 13);
    CHECK(model_gradient_difference(trial) == "");
    trial.loss_and_gradients(0, 1, Write::overwrite);
    trial.loss_and_gradients(1, 1, Write::add);
    const std::vector<double> before = trial.all(trial.gpt.weights);
    AdamW clipped;
    clipped.grad_clip = 1e-3;
    trial.update(clipped, 1);
    for (int l : {0, 1}) {
        const Tensor& mean = *trial.gpt.net.tensors.find("model.layers." + std::to_string(l) + ".self_attn.watcher.mean");
        Double untouched(watched(), 2, 13, 2, 13);   // the activations before the update
        untouched.loss();
        const double* x = untouched.gpt.layers[size_t(l)].normed1;
        for (int h = 0; h < 4; h++) {
            double average = 0;
            for (int t = 0; t < 26; t++) average += x[t * 12 + h] / 26;
            const double old = before[mean.slot.offset + h];
            CHECK(std::abs(trial.gpt.weights[mean.slot.offset + h] - (old - Watcher::RATE * (old - average))) < 1e-12);
            CHECK(trial.gpt.m[mean.slot.offset + h] == 0);
        }
    }
}

TEST_CASE("statistics and frozen tensors: no part in the norm; frozen ones keep every bit", "[roles]") {
    Double all(watched(), 2, 13, 2, 13), only(watched(true), 2, 13, 2, 13);
    for (Double* trial : {&all, &only}) {
        trial->loss_and_gradients();
        const std::vector<double> before = trial->all(trial->gpt.weights);
        double squares = 0;
        for (const Tensor& t : trial->gpt.net.tensors)
            for (double g : trial->of(trial->gpt.gradients, t)) squares += t.trained() ? g * g : 0;
        trial->update({}, 1);
        CHECK(std::abs(trial->gpt.totals->squares - squares) <= 1e-12 * squares);
        for (const Tensor& t : trial->gpt.net.tensors) {
            INFO(t.name);
            const bool moved = bit_difference(trial->of(trial->gpt.weights, t), trial->of(before.data(), t)) != "";
            CHECK(moved == (t.role != Role::frozen));
        }
    }
    CHECK(only.gpt.totals->squares < 0.5 * all.gpt.totals->squares);
    CHECK(all.gpt.net.tensors.trained() > 10 * only.gpt.net.tensors.trained());
}

TEST_CASE("muon: the layers' matrices are its own, and have no second moments", "[roles]") {
    const Qwen net(named("causal"), config_of({}), Stored::as_computed, Optimizer::muon);
    size_t of_muon = 0, count = 0;
    for (const Tensor& t : net.tensors) {
        INFO(t.name);
        CHECK((t.role == Role::muon) == (t.name.ends_with("_proj.weight")));
        if (t.role == Role::muon) of_muon += t.slot.size, count++;
    }
    CHECK(count == size_t(7 * net.config.L));
    CHECK(net.tensors.trained() == net.tensors.parameters());
    const std::vector<NormSpan> spans = norm_spans(net.tensors, Shards(net.tensors.size(), 0, 1));   // everything is trained
    CHECK((spans.size() == 1 && spans[0].begin == 0 && spans[0].end == net.tensors.size() && spans[0].weight == 1));
    for (int shards : {1, 3}) {
        std::vector<int> stored(net.tensors.size() + 1000), updates = stored;
        size_t matrices = 0, second = 0;
        for (int s = 0; s < shards; s++) {
            const Shards cut(net.tensors.size(), s, shards, 480);
            size_t end = 0;
            for (const HeldSpan& span : second_moment_spans(net.tensors, cut)) {
                CHECK((span.held >= end && span.held < end + 16 && span.held % 16 == span.begin % 16));
                end = span.held + span.end - span.begin;
                for (size_t i = span.begin; i < span.end; i++) stored[i]++;
            }
            second += end;
            const std::vector<UpdateRange> ranges = muon_ranges(net.tensors, cut, 10);
            for (const UpdateRange& range : ranges)
                for (size_t i = range.begin; i < range.end; i++) updates[i]++;
            for (const MuonMatrix& matrix : muon_matrices(net.tensors, ranges))
                for (int r = matrix.first; r < matrix.first + matrix.count; r++) {
                    const UpdateRange& range = ranges[size_t(r)];
                    matrices += range.end - range.begin;
                    CHECK((range.begin >= matrix.offset && range.end <= matrix.offset + size_t(matrix.OUT * matrix.IN)));
                }
        }
        CHECK(matrices == of_muon);
        CHECK(second < net.tensors.size() - of_muon + 1000);
        for (const Tensor& t : net.tensors)
            for (size_t i = t.slot.offset; i < t.slot.offset + t.slot.size; i++)
                CHECK((stored[i] == (t.role != Role::muon) && updates[i] == (t.role == Role::muon)));
    }
}

TEST_CASE("roles: three shards make the whole update, bit for bit; Muon moves matrices otherwise than AdamW, and nothing else", "[roles]") {
    for (bool only : {false, true}) {
        std::map<Optimizer, std::vector<float>> after;   // the first step
        const Qwen net(variant_of<CpuLayer, Watcher>, watched(only), Stored::as_computed, Optimizer::muon);
        for (Optimizer optimizer : {Optimizer::adamw, Optimizer::muon}) {
            std::deque<Float> trials;   // the whole model, and its shards
            for (const auto& [shard, shards] : {std::pair{0, 1}, {0, 3}, {1, 3}, {2, 3}})
                trials.emplace_back(watched(only), 2, 13, 2, 13, Recompute::nothing, shard, shards, Mode::training, size_t(300), optimizer);
            Float &whole = trials[0], &middle = trials[2];
            CHECK(whole.gpt.muon.matrices.empty() == (only || optimizer == Optimizer::adamw));
            for (int step : {1, 2}) {
                {
                    const Threads one(1);   // for the same gradients
                    for (Float& trial : trials) trial.loss_and_gradients();
                }
                whole.update({}, step);
                update_shards<float>({&trials[1], &middle, &trials[3]}, {}, step);
                CHECK(bit_difference(middle.all(middle.gpt.weights), whole.all(whole.gpt.weights)) == "");
                if (step == 1) after[optimizer] = whole.all(whole.gpt.weights);
            }
        }
        for (const Tensor& t : net.tensors) {
            INFO(t.name);
            const std::vector<float> by_adamw = part_of(after[Optimizer::adamw], t), by_muon = part_of(after[Optimizer::muon], t);
            CHECK((bit_difference(by_adamw, by_muon) != "") == (t.role == Role::muon));
        }
    }
}

TEST_CASE("auxiliary loss: a part of the objective, of no validation loss; micro-steps add up", "[roles]") {
    Double whole(watched(), 2, 13, 2, 13), micro(watched(), 2, 13, 2, 13);
    whole.loss_and_gradients();
    const StepTotals once = whole.gpt.totals[0];
    CHECK(once.auxiliary > 0.1);
    double expected = 0;
    for (int l : {0, 1}) {
        const double* x = whole.gpt.layers[size_t(l)].normed1;
        const Slot scale = policy_of<Watcher>(*whole.gpt.net.layers[size_t(l)].attention).scale;
        for (int t = 0; t < 26; t++)
            for (int h = 0; h < 4; h++)
                expected += Watcher::LAMBDA / 2 * std::pow(whole.gpt.weights[scale.offset + h] * x[t * 12 + h], 2);
    }
    CHECK(std::abs(once.auxiliary - expected) < 1e-12 * expected);

    for (int b : {0, 1}) {
        const Batch batch = micro.feed.put(CPU{}, &micro.tokens[13 * b], &micro.targets[13 * b], 1, 13);
        micro.gpt.forward(CPU{}, batch);
        micro.gpt.loss(CPU{}, batch, b ? Write::add : Write::overwrite, 1.0 / 26);
        micro.gpt.backward(CPU{}, batch, b ? Write::add : Write::overwrite);
    }
    CHECK(std::abs(micro.gpt.totals->loss - once.loss) < 1e-12 * once.loss);
    CHECK(std::abs(micro.gpt.totals->auxiliary - once.auxiliary) < 1e-12 * once.auxiliary);
    CHECK(gradient_difference(micro.gradients(), whole, {1e-12, 1e-15}) == "");
}

TEST_CASE("auxiliary loss: recomputing changes no bit; NaN in it or in a statistic's gradient leaves everything as it is", "[roles]") {
    const Threads one(1);
    Float keeping(watched(), 2, 13, 2, 13), layers(watched(), 2, 13, 2, 13, Recompute::layers);
    CHECK(keeping.loss_and_gradients() == layers.loss_and_gradients());
    CHECK(keeping.gpt.totals->auxiliary == layers.gpt.totals->auxiliary);
    CHECK(gradient_bit_difference(layers, keeping) == "");
    const std::vector<float> before = keeping.all(keeping.gpt.weights);
    keeping.gpt.totals->auxiliary = NAN;
    keeping.update({}, 1);
    CHECK(bit_difference(keeping.all(keeping.gpt.weights), before) == "");
    keeping.loss_and_gradients();
    keeping.gpt.gradients[keeping.gpt.net.tensors.find("model.layers.1.self_attn.watcher.mean")->slot.offset] = NAN;
    keeping.update({}, 1);
    CHECK((std::isnan(keeping.gpt.totals->squares) && std::isfinite(keeping.gpt.totals->auxiliary)));
    CHECK(bit_difference(keeping.all(keeping.gpt.weights), before) == "");
}
