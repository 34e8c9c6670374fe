// The program of libFuzzer that dev/fuzz.sh runs from the repository's root: FUZZ_TARGET in the environment names a parser, which gets
// any bytes. A target may throw an Error, which refuses them; every other exception, a failed require(), a crash or a hang is a finding.
#include <sys/mman.h>
#include <unistd.h>
#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/documents/byte_stream.h"
#include "data/documents/documents.h"
#include "data/evaluation.h"
#include "data/files.h"
#include "data/manifest.h"
#include "data/shard.h"
#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/checkpoint/safetensors.h"
#include "model/config.h"
#include "tests/tokenizer_files.h"

namespace {

void require(bool fine) {
    if (!fine) std::abort();
}

/// A file in memory.
Descriptor file_of(std::string_view bytes) {
    Descriptor file(memfd_create("input", MFD_CLOEXEC));
    require(write_all(file.get(), bytes.data(), bytes.size()));
    return file;
}

// ---- compressed inputs of ./tokenize; the first byte chooses the format. Reads of any size give the same text.

constexpr size_t ENOUGH = size_t{1} << 24;   // a few bytes can be gigabytes of text

/// None where the file is refused.
std::optional<std::string> text_of_file(int file, Compression compression, size_t at_a_time) {
    try {
        lseek(file, 0, SEEK_SET);
        const auto stream = compression == Compression::gzip ? open_gzip("file", open_plain("file", file, to_its_end, [] {}))
                                                             : open_archive("file", file, compression);
        std::string text, buffer(at_a_time, '\0');
        for (size_t got = 1; got > 0 && text.size() < ENOUGH; text.append(buffer, 0, got)) {
            got = stream->read(buffer.data(), buffer.size());
            require(got <= buffer.size());
        }
        return text;
    } catch (const Error&) {
        return std::nullopt;
    }
}

void fuzz_compressed(std::string_view bytes) {
    if (bytes.empty()) return;
    const Descriptor file = file_of(bytes.substr(1));
    const Compression kinds[] = {Compression::gzip, Compression::xz, Compression::zstd};
    const Compression compression = kinds[uint8_t(bytes[0]) % 3];
    const auto whole = text_of_file(file.get(), compression, size_t{1} << 16), parts = text_of_file(file.get(), compression, 1000);
    for (const auto& text : {whole, parts})
        if (text && text->size() >= ENOUGH) return;   // an error may lie behind what one of them has read
    require(whole == parts);
}

// ---- config.json: a configuration survives writing and reading

void write_and_read(const Config& config) noexcept {
    const std::string written = config_to_json(config);
    require(config_to_json(config_from_json(written, "written")) == written);
}

void fuzz_config(std::string_view bytes) { write_and_read(config_from_json(std::string(bytes), "fuzz")); }

// ---- text. Ids of GPT-2's rules decode to the text, with U+FFFD in place of invalid UTF-8. Ids of Qwen's rules decode to its NFC form,
// which encodes to the same ids. The library utf8proc normalises whole texts too: nfc(), which looks for the places that need it,
// must agree.

std::string nfc_by_utf8proc(const std::string& text) {
    utf8proc_uint8_t* form = nullptr;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto* units = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto bytes = utf8proc_map(units, static_cast<utf8proc_ssize_t>(text.size()), &form, options);
    require(bytes >= 0);
    const std::string result(reinterpret_cast<const char*>(form), static_cast<size_t>(bytes));
    std::free(form);
    return result;
}

void fuzz_encode(std::string_view text) noexcept {
    static const auto gpt2 = open_tokenizer("tests/fixtures/tokenizers/gpt2_tokenizer.json");
    static const auto qwen = open_tokenizer("tests/fixtures/tokenizers/qwen_tokenizer.json");
    const std::string valid = replace_invalid_utf8(std::string(text));
    require(text_of(*gpt2, ids_of(*gpt2, text)) == valid);
    const std::string form = nfc_of(valid);
    require(form == nfc_by_utf8proc(valid));
    if (text.find('<') != std::string::npos) return;   // an added token would be a border over which nothing composes
    const std::vector<uint32_t> ids = ids_of(*qwen, text);
    require(text_of(*qwen, ids) == form && ids_of(*qwen, form) == ids);
}

// ---- evaluation items; the first byte chooses JSON Lines or llm.c's layout. Items that are read can be scored.

void fuzz_evaluation(std::string_view bytes) {
    if (bytes.empty()) return;
    static const std::string stem = "/dev/shm/fuzz_evaluation_" + std::to_string(getpid());
    static const auto tokenizer = open_tokenizer("bytes");
    const uint8_t choice = uint8_t(bytes[0]);
    const std::string path = stem + (choice % 2 ? ".jsonl" : ".bin");
    std::ofstream(path, std::ios::binary) << bytes.substr(1);
    const EvaluationTask task = read_evaluation({path, "items"}, tokenizer.get(), 512, 1024, choice / 2);
    size_t answers = 0;
    for (const EvaluationItem& item : task.items) answers += item.answers.size();
    const EvaluationScores scores = score(task, std::vector<float>(answers, -1.0f));
    require(scores.items > 0 && scores.chosen.size() == task.items.size() && scores.sum >= 0 && scores.sum <= 1);
}

// ---- inputs of ./tokenize; the first byte chooses JSON Lines, text, or text divided at blank lines. Reading gives every byte of a text; a
// line is an Error or a text.

std::vector<std::string> pieces(const Input& input, const DocumentRules& rules) {
    DocumentReader reader(input, rules, [] {});
    std::vector<std::string> found;
    for (Piece piece; reader.next(piece);) found.emplace_back(piece.text);
    require(reader.consumed() == input.size());
    return found;
}

template <class Parse>
void may_refuse(Parse parse) {
    try {
        parse();
    } catch (const Error&) {
    }
}

void fuzz_jsonl(std::string_view bytes) {
    if (bytes.empty()) return;
    const std::string_view text = bytes.substr(1);
    const int choice = uint8_t(bytes[0]) % 3;
    DocumentRules rules;
    rules.split_on_blank_line = choice == 1;
    const std::vector<std::string> all = pieces(Input("input", choice == 0, file_of(text), Compression::none), rules);
    for (const std::string& piece : all) {
        require(text.find(piece) != std::string::npos);
        if (choice != 0) continue;
        may_refuse([&] { text_of_json_line(piece, "text", "input:1"); });
        may_refuse([&] { prompt_of_json_line(piece, "input:1"); });
    }
    if (choice == 2 && !all.empty()) require(all[0] == text.substr(text.starts_with("\xEF\xBB\xBF") ? 3 : 0));
}

// ---- safetensors: every number of a tensor can be read

void fuzz_safetensors(std::string_view bytes) {
    for (const StoredTensor& tensor : parse_safetensors(std::as_bytes(std::span(bytes)), "fuzz")) {
        if (tensor.dtype[0] != 'F' && tensor.dtype[0] != 'B') continue;
        std::vector<float> out(tensor.count);
        convert_to_float(tensor, out.data(), "fuzz");
    }
}

// ---- progress.json of a stopped ./tokenize: an accepted file survives writing and reading

void fuzz_saved_run(std::string_view bytes) noexcept {
    const auto run = saved_run_from_json(std::string(bytes));
    if (!run) return;
    const std::string json = saved_run_to_json(*run);
    const auto again = saved_run_from_json(json);
    require(again && saved_run_to_json(*again) == json);
}

// ---- token shards: all tokens are below the vocabulary

void fuzz_shard(std::string_view bytes) {
    constexpr int VOCABULARY = 512;
    const Descriptor file = file_of(bytes);
    const Shard shard("/proc/self/fd/" + std::to_string(file.get()));
    shard.check_content(VOCABULARY);
    std::vector<int32_t> tokens(shard.size());
    shard.copy(0, tokens.size(), tokens.data());
    for (const int32_t token : tokens) require(token >= 0 && token < VOCABULARY);
}

// ---- tokenizer.json: JSON is a change (merge patch, RFC 7396) to a sound file, other bytes a whole one. A tokenizer encodes to ids of its
// vocabulary and decodes.

void fuzz_tokenizer_json(std::string_view bytes) {
    nlohmann::json file = small_tokenizer();
    const nlohmann::json patch = nlohmann::json::parse(bytes, nullptr, false);
    if (patch.is_object()) file.merge_patch(patch);
    const auto tokenizer = make_bpe_tokenizer(patch.is_object() ? file.dump() : std::string(bytes), "", "fuzz");
    const std::vector<uint32_t> ids = ids_of(*tokenizer, "The 1st e\u0301 abcabc  \n\t x<think>'s \xFF");
    for (const uint32_t id : ids) require(id < static_cast<uint32_t>(tokenizer->vocabulary()));
    text_of(*tokenizer, ids);
}

const std::map<std::string, void (*)(std::string_view)> TARGETS = {
    {"compressed", fuzz_compressed}, {"config", fuzz_config}, {"encode", fuzz_encode}, {"evaluation", fuzz_evaluation},
    {"jsonl", fuzz_jsonl}, {"safetensors", fuzz_safetensors}, {"saved_run", fuzz_saved_run}, {"shard", fuzz_shard},
    {"tokenizer_json", fuzz_tokenizer_json}};

}   // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const auto target = TARGETS.at(std::getenv("FUZZ_TARGET"));
    may_refuse([&] { target({reinterpret_cast<const char*>(data), size}); });
    return 0;
}
