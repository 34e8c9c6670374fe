// What checkpoints say of the data.
#include "tests/catch.h"

#include "model/run/start.h"
#include "tests/shards.h"

TEST_CASE("a checkpoint describes the bytes of its data, and an older one their ends") {
    const TemporaryFolder folder;
    const TokenStream stream(write_shard(file_in(folder, "a.bin"), ramp(400), 500), 512);
    CHECK(described_data(stream, true).find(stream.contents()) != std::string::npos);
    for (const bool shuffle : {false, true}) {
        const std::string order = shuffle ? "" : ", in order";
        CHECK(describes_data(described_data(stream, shuffle), stream, shuffle));
        CHECK(describes_data(stream.fingerprint() + order, stream, shuffle));
        CHECK_FALSE(describes_data(described_data(stream, !shuffle), stream, shuffle));
        CHECK_FALSE(describes_data(stream.fingerprint() + ", bytes 0123456789abcdef" + order, stream, shuffle));
    }
    CHECK(describes_data("", stream, true));
}
