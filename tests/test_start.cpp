// What ranks must have in common when a run starts, and what its checkpoints say of the data.
#include "tests/catch.h"

#include "model/run/start.h"
#include "tests/shards.h"
#include "tests/tokenizer_files.h"

namespace {

std::string fact(const Data& data, const std::string& name) {
    Origin origin;
    origin.config = preset("qwen-tiny");
    for (const Fact& fact : facts_of_start(origin, data))
        if (fact.name.find(name) != std::string::npos) return fact.value;
    return "no such fact";
}

}   // namespace

TEST_CASE("a checkpoint describes the bytes of its data, and an older one their ends") {
    const TemporaryFolder folder;
    const Mixture stream(write_shard(file_in(folder, "a.bin"), ramp(400), 500), 512);
    CHECK(describe_data(stream, true).find(stream.contents()) != std::string::npos);
    for (const bool shuffle : {false, true}) {
        const std::string order = shuffle ? "" : ", in order";
        CHECK(describes_data(describe_data(stream, shuffle), stream, shuffle));
        CHECK(describes_data(stream.fingerprint() + order, stream, shuffle));
        CHECK_FALSE(describes_data(describe_data(stream, !shuffle), stream, shuffle));
        CHECK_FALSE(describes_data(stream.fingerprint() + ", bytes 0123456789abcdef" + order, stream, shuffle));
    }
    CHECK(describes_data("", stream, true));
}

TEST_CASE("tokenizers whose ids or config differ are different facts") {
    nlohmann::json file = small_tokenizer();
    const auto fact_of = [&](const std::string& config) {
        Data data;
        data.tokenizer = made(file, config);
        return fact(data, "the tokenizer");
    };
    const std::string config = "{\"eos_token\": \"<|endoftext|>\"}", held = fact_of(config);
    CHECK(fact_of(config) == held);
    CHECK(fact_of(config + " ") != held);
    std::swap(file["model"]["vocab"]["ab"], file["model"]["vocab"]["abc"]);
    CHECK(fact_of(config) != held);
    CHECK(fact(Data(), "the tokenizer") == "none");
}
