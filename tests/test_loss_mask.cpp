// Loss masks: in shards, in the rows of the loader, in the gradient of a model.
#include "data/loader.h"
#include "model/base/disk.h"
#include "tests/shards.h"
#include "tests/whole_model.h"

namespace {

std::string write_masked(const std::string& path, const std::vector<uint32_t>& ids, const std::vector<uint8_t>& mask, int vocabulary) {
    ShardWriter writer(path, vocabulary);
    const size_t half = ids.size() / 2;   // in two pieces
    writer.write(std::span(ids).first(half), std::span(mask).first(half));
    writer.write(std::span(ids).subspan(half), std::span(mask).subspan(half));
    writer.publish();
    return path;
}

/// 1 for tokens whose number is a multiple of 3.
std::vector<uint8_t> every_third(size_t count) {
    std::vector<uint8_t> mask(count);
    for (size_t i = 0; i < count; i++) mask[i] = i % 3 == 0;
    return mask;
}

}   // namespace

TEST_CASE("loss mask: round-trips behind tokens of 16 and 32 bits, under a version of its own") {
    const TemporaryFolder folder;
    for (const int vocabulary : {512, 100000}) {
        const std::string path = write_masked(file_in(folder, "a.bin"), ramp(10), every_third(10), vocabulary);
        const Shard shard(path);
        shard.check_content(vocabulary);
        CHECK(shard.masked());
        CHECK(std::filesystem::file_size(path) == 1024 + 10 * (vocabulary > 65536 ? 4 : 2) + 10);
        std::vector<int32_t> tokens(9);
        shard.copy(1, 9, tokens.data());
        CHECK(tokens == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9});
        shard.hide_targets(1, 9, tokens.data());
        CHECK(tokens == std::vector<int32_t>{-1, -1, 3, -1, -1, 6, -1, -1, 9});
        CHECK(shard.count_targets(1, 9) == 3);
        CHECK(shard.count_targets(0, 10) == 4);
    }
    const Shard plain(write_shard(file_in(folder, "plain.bin"), ramp(10), 512));
    CHECK_FALSE(plain.masked());
    CHECK(plain.count_targets(2, 5) == 5);
}

TEST_CASE("loss mask: a byte that is neither 0 nor 1 is named, and a file without its whole mask is cut short") {
    const TemporaryFolder folder;
    const std::string path = write_masked(file_in(folder, "a.bin"), ramp(10), every_third(10), 512);
    std::string bytes = read_text(path);
    bytes[1024 + 20 + 7] = 2;
    write_text(path, bytes);
    CHECK(says(error_of([&] { Shard(path).check_content(512); }), {path, "has 2 at byte 1051", "for token 7"}));
    CHECK(says(error_of([&] { Shard(path).check_content(1 << 16); }), {"has 2 at byte 1051"}));   // no token can be out of range
    write_text(path, bytes.substr(0, bytes.size() - 1));
    CHECK(says(error_of([&] { Shard shard(path); }), {"cut short", "1053 bytes", "and their mask", "1054"}));
    ShardWriter writer(path, 512);
    writer.write(ramp(3));
    CHECK_THROWS_AS(writer.write(ramp(3), every_third(3)), std::logic_error);
}

TEST_CASE("loss mask: a stream of shards with and without one, over their boundary") {
    const TemporaryFolder folder;
    write_shard(file_in(folder, "s_0.bin"), ramp(4), 512);
    write_masked(file_in(folder, "s_1.bin"), ramp(6, 4), every_third(6), 512);
    const TokenStream stream(file_in(folder, "s_*.bin"), 512);
    CHECK(stream.masked());
    std::vector<int32_t> targets(8);
    stream.copy(2, 8, targets.data());
    stream.hide_targets(2, 8, targets.data());
    CHECK(targets == std::vector<int32_t>{2, 3, 4, -1, -1, 7, -1, -1});
    CHECK(stream.count_targets(2, 8) == 4);
}

TEST_CASE("loss mask: rows have -1 where a target does not count, and ranks agree on how many a step has") {
    const TemporaryFolder folder;
    const std::vector<uint32_t> ids = ramp(200);
    write_masked(file_in(folder, "a.bin"), ids, every_third(200), 512);
    const Mixture stream(file_in(folder, "a.bin"), 512);
    const int T = 7;
    for (int64_t step = 0; step < 3; step++) {
        int64_t counted = 0, expected = 0;
        for (int rank = 0; rank < 2; rank++) {
            Loader loader(stream, {2, T, 2, rank, 3, 5, true});
            expected = loader.targets_of_step(step);
            loader.seek(step);
            for (int micro = 0; micro < 3; micro++) {
                std::vector<int32_t> inputs(2 * T), targets(2 * T);
                loader.next(inputs.data(), targets.data());
                for (int n = 0; n < 2 * T; n++) {
                    const int32_t following = inputs[n] + 1;
                    REQUIRE(targets[n] == (following % 3 == 0 ? following : -1));
                    counted += targets[n] >= 0;
                }
            }
        }
        CHECK(counted == expected);
        CHECK(expected < 2 * 2 * 3 * T);
    }
    std::vector<int32_t> inputs(T), targets(T);
    validation_rows(stream.first(), 1, T, 1, inputs.data(), targets.data());   // tokens 7 to 13
    CHECK(inputs == std::vector<int32_t>{7, 8, 9, 10, 11, 12, 13});
    CHECK(targets == std::vector<int32_t>{-1, 9, -1, -1, 12, -1, -1});
}

TEST_CASE("loss mask: a run none of whose targets count is refused") {
    const TemporaryFolder folder;
    std::vector<uint8_t> mask(100);
    const auto refused = [&](bool shuffle, int64_t steps) {
        const Mixture mixture(write_masked(file_in(folder, "a.bin"), ramp(100), mask, 512), 512);
        const Error error = error_of([&] { Loader(mixture, {1, 16, 1, 0, 1, 1, shuffle}).require_targets(steps); });
        if (error.code != Exit::done) CHECK(says(error, {"a.bin", "hides all targets"}));
        return error.code == Exit::data;
    };
    for (const bool shuffle : {false, true}) CHECK(refused(shuffle, 1 << 30));   // without a look at a thousand million rows
    mask[0] = 1;   // is never a target
    CHECK(refused(false, 1 << 30));
    CHECK(refused(true, 1 << 30));
    mask[97] = 1;   // 6 rows of 16 in order end at token 96, 5 shuffled ones at token 95
    CHECK(refused(false, 1 << 30));
    CHECK(refused(true, 1 << 30));
    mask[95] = 1;
    CHECK(refused(false, 5));
    CHECK_FALSE(refused(false, 6));   // the steps before have none, which is allowed
    CHECK_FALSE(refused(true, 1 << 20));   // of 16 phases only one gets there
    CHECK_FALSE(refused(false, 0));
    const Mixture plain(write_shard(file_in(folder, "plain.bin"), ramp(100), 512), 512);
    CHECK_NOTHROW(Loader(plain, {1, 16, 1, 0, 1, 1, true}).require_targets(1));
}

TEST_CASE("loss mask: the gradient is that of the mean over the targets that count, and of the policy's own loss per token") {
    for (const char* variant : {"causal", "moh"}) {
        Trial<double> weighed(named(variant), ModelShape{}), shared(named(variant), ModelShape{});
        const int BT = weighed.B * weighed.T, counted = (BT + 2) / 3;
        for (int n = 0; n < BT; n++)
            if (n % 3) weighed.targets[n] = shared.targets[n] = -1;
        const double weight = double(BT) / counted;
        weighed.gpt.weigh_targets(CPU{}, weight);
        weighed.loss_and_gradients();

        // The same sums by hand: with the share of a target for all, less what the policy's own loss has too much.
        shared.loss_and_gradients();
        const std::vector<double> per_token = shared.gradients();
        shared.gpt.weigh_targets(CPU{}, 0);
        shared.loss_and_gradients();
        const std::vector<double> own = shared.gradients(), both = weighed.gradients();
        std::vector<double> expected;
        for (size_t n = 0; n < own.size(); n++) expected.push_back(own[n] + weight * (per_token[n] - own[n]));
        CHECK(difference(both, expected, {1e-12, 1e-12}) == "");
        CHECK(*std::max_element(both.begin(), both.end()) > 1e-4);
    }
}
