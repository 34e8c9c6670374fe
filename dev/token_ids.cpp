// The ids of many texts, for tests/check_tokenizer.py:  build/dev/token_ids TOKENIZER < texts > ids
// Both streams are records of a 32-bit count and that many bytes (texts) or 32-bit ids. Every text is decoded again, too:
// where the tokenizer changes nothing, the bytes must come back (--round-trip).
#include <cstdio>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"
#include "model/base/options.h"

static bool read_record(std::string& text) {
    uint32_t bytes;
    if (std::fread(&bytes, sizeof bytes, 1, stdin) != 1) return false;
    text.resize(bytes);
    if (std::fread(text.data(), 1, bytes, stdin) != bytes) fail(Exit::data, "standard input ends inside a text");
    return true;
}

static void require_round_trip(const Tokenizer& tokenizer, const std::string& text, const std::vector<uint32_t>& ids) {
    if (tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end())) != text)
        fail(Exit::data, "decoding does not give back the text \"", text.substr(0, 200), "\"");
}

int main(int argc, char** argv) {
    return run_program("token_ids", [&] {
        const bool round_trip = argc == 3 && argv[2] == std::string("--round-trip");
        if (argc != 2 && !round_trip) fail(Exit::usage, "usage: token_ids TOKENIZER [--round-trip] < texts > ids");
        const auto tokenizer = open_tokenizer(argv[1]);
        std::string text;
        std::vector<uint32_t> ids;
        while (read_record(text)) {
            ids.clear();
            tokenizer->encode(text, ids);
            if (round_trip) require_round_trip(*tokenizer, text, ids);
            const auto count = static_cast<uint32_t>(ids.size());
            std::fwrite(&count, sizeof count, 1, stdout);
            std::fwrite(ids.data(), sizeof ids[0], ids.size(), stdout);
        }
        if (std::fflush(stdout) != 0) fail(Exit::data, "standard output cannot be written: ", last_os_error());
    });
}
