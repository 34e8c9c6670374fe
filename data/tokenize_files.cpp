#include "data/tokenize_files.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>

#include "data/tokenizer.h"
#include "model/error.h"

namespace {

namespace fs = std::filesystem;

using OnProgress = std::function<void(const TokenizeProgress&)>;

// The shards of one split, numbered; a new one starts when the last one is full. None exists before the first token.
class ShardSeries {
public:
    ShardSeries(const std::string& stem, int first_number, const TokenizeOptions& options, int vocabulary)
        : stem_(stem), next_number_(first_number), shard_tokens_(static_cast<uint64_t>(options.shard_tokens)), vocabulary_(vocabulary) {}

    void write(std::span<const uint32_t> ids) {
        tokens_ += ids.size();
        while (!ids.empty()) {
            if (writers_.empty() || writers_.back().tokens() == shard_tokens_) start_shard();
            const size_t part = std::min<uint64_t>(ids.size(), shard_tokens_ - writers_.back().tokens());
            writers_.back().write(ids.first(part));
            ids = ids.subspan(part);
        }
    }

    // Completes the last shard; all of them still have their temporary names.
    std::vector<ShardInfo> finish() {
        if (!writers_.empty()) finished_.push_back(writers_.back().finish());
        return finished_;
    }

    void publish() {
        for (ShardWriter& writer : writers_) writer.publish();
    }

    uint64_t tokens() const { return tokens_; }

private:
    void start_shard() {
        finish();
        char number[16];
        std::snprintf(number, sizeof number, "_%06d.bin", next_number_++);
        writers_.emplace_back(stem_ + number, vocabulary_);
    }

    std::string stem_;
    int next_number_;
    uint64_t shard_tokens_;
    int vocabulary_;
    uint64_t tokens_ = 0;
    std::deque<ShardWriter> writers_;     // finished ones too: they keep the temporary files until publish()
    std::vector<ShardInfo> finished_;
};

// Where training ends and validation begins.
struct Split {
    uint64_t train_documents;
    uint64_t train_bytes;     // of the one document where there is only one, else no limit
};

struct Survey {
    uint64_t documents = 0;
    uint64_t bytes = 0;       // of their text
};

// Reads all inputs once without tokenizing. Unparsed is enough to count documents, but not the bytes of their text.
Survey survey(const std::vector<Input>& inputs, const DocumentRules& rules, bool parse, const OnProgress& on_progress) {
    Survey found;
    for (const Input& input : inputs) {
        DocumentReader reader(input, rules);
        Piece piece;
        while (parse ? reader.next(piece) : reader.next_unparsed(piece)) {
            found.documents += piece.begins;
            found.bytes += piece.text.size();
            on_progress({0, 0, found.documents, 0});
        }
    }
    return found;
}

// floor(n * (1 - val_fraction)), but at least 1; the small term undoes rounding as in 98.99999 for 99.
uint64_t train_part(uint64_t n, double val_fraction) {
    const double part = std::floor(static_cast<double>(n) * (1.0 - val_fraction) + 1e-6);
    return std::clamp<uint64_t>(static_cast<uint64_t>(part), 1, std::max<uint64_t>(n, 1));
}

Split choose_split(const std::vector<Input>& inputs, const TokenizeOptions& options, const OnProgress& on_progress) {
    constexpr uint64_t all = std::numeric_limits<uint64_t>::max();
    if (options.val_fraction == 0) return {all, all};
    const Survey found = survey(inputs, options.rules, false, on_progress);
    if (found.documents > 1) return {train_part(found.documents, options.val_fraction), all};
    const uint64_t bytes = survey(inputs, options.rules, true, on_progress).bytes;
    return {1, train_part(bytes, options.val_fraction)};
}

// Sends documents to the split they belong to, each behind an end-of-text token.
class Tokenizing {
public:
    Tokenizing(const Tokenizer& tokenizer, const Split& split, ShardSeries& train, ShardSeries& val)
        : tokenizer_(tokenizer), split_(split), train_(train), val_(val) {}

    void add(const Piece& piece) {
        if (piece.begins) begin_document();
        const size_t head = part_before_cut(piece.text);
        write(piece.text.substr(0, head));
        if (head == piece.text.size()) return;
        begin_validation();
        write(piece.text.substr(head));
    }

    uint64_t documents() const { return documents_; }

private:
    void begin_document() {
        ++documents_;
        if (documents_ > split_.train_documents) return begin_validation();
        series_ = &train_;
        write_end_of_text();
    }

    void begin_validation() {
        series_ = &val_;
        write_end_of_text();
    }

    // How much of the text belongs to the split that is being written. A single document is cut at a character of UTF-8.
    size_t part_before_cut(std::string_view text) {
        const uint64_t before = bytes_;
        bytes_ += text.size();
        if (series_ == &val_ || bytes_ <= split_.train_bytes) return text.size();
        size_t cut = split_.train_bytes - before;
        while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
        return cut;
    }

    void write(std::string_view text) {
        ids_.clear();
        tokenizer_.encode(text, ids_);
        series_->write(ids_);
    }

    void write_end_of_text() {
        const uint32_t id = tokenizer_.end_of_text();
        series_->write({&id, 1});
    }

    const Tokenizer& tokenizer_;
    Split split_;
    ShardSeries& train_;
    ShardSeries& val_;
    ShardSeries* series_ = nullptr;
    uint64_t documents_ = 0;
    uint64_t bytes_ = 0;        // of text, over all documents
    std::vector<uint32_t> ids_;
};

void check_options(const TokenizeOptions& options) {
    if (!(options.val_fraction >= 0 && options.val_fraction < 1))
        fail(Exit::usage, "--val-fraction is ", options.val_fraction, ", it must be at least 0 and below 1");
    if (options.shard_tokens < 1 || options.shard_tokens > std::numeric_limits<int32_t>::max())
        fail(Exit::usage, "--shard-tokens is ", options.shard_tokens, ", it must be 1 to ", std::numeric_limits<int32_t>::max());
    if (options.out.empty()) fail(Exit::usage, "--out is missing: the folder to write the shards into");
    if (options.name.find('/') != std::string::npos)
        fail(Exit::usage, "--name '", options.name, "' must not contain a slash; --out names the folder");
    if (std::count(options.inputs.begin(), options.inputs.end(), "-") > 1)
        fail(Exit::usage, "standard input (-) is given more than once");
}

std::string shard_name(const TokenizeOptions& options, const std::string& first_input) {
    if (!options.name.empty()) return options.name;
    return first_input == "-" ? "stdin" : fs::path(first_input).stem().string();
}

void remove_file(const std::string& path) {
    std::error_code error;
    fs::remove(path, error);
    if (error) fail(Exit::data, path, ": cannot be removed: ", error.message());
}

// Removes shards that an earlier run left under this name: they would match the glob of the new ones.
std::vector<std::string> remove_others(const std::string& folder, const std::string& name, const std::vector<ShardInfo>& keep) {
    std::vector<std::string> removed;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const std::string file = entry.path().filename().string();
        const bool ours = shard_series(file) == name;
        const bool kept = std::any_of(keep.begin(), keep.end(), [&](const ShardInfo& shard) { return shard.file == file; });
        if (ours && !kept) removed.push_back(entry.path().string());
    }
    if (error) fail(Exit::data, folder, ": cannot be listed: ", error.message());
    std::sort(removed.begin(), removed.end());
    for (const std::string& path : removed) remove_file(path);
    return removed;
}

// Gives everything its final name. The old manifest goes first and the new one comes last: a manifest that is there is right.
std::vector<std::string> publish(ShardSeries& train, ShardSeries& val, const Manifest& manifest, const std::string& folder,
                                 const std::string& name) {
    const std::string path = folder + "/" + name + "_manifest.json";
    OutputFile file(path);
    const std::string text = manifest_to_json(manifest);
    file.write(text.data(), text.size());
    file.finish();
    remove_file(path);
    val.publish();
    train.publish();
    const std::vector<std::string> removed = remove_others(folder, name, manifest.shards);
    sync_folder(folder);
    file.publish();
    sync_folder(folder);
    return removed;
}

}  // namespace

TokenizeReport tokenize_files(const TokenizeOptions& options, const OnProgress& on_progress) {
    check_options(options);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
    make_folder(options.out);

    const std::vector<std::string> paths = options.inputs.empty() ? std::vector<std::string>{"-"} : options.inputs;
    std::vector<Input> inputs;
    for (const std::string& path : paths)
        inputs.push_back(Input::open(path, options.out, [&] { on_progress({}); }));
    const std::string name = shard_name(options, paths[0]);
    const std::string stem = options.out + "/" + name;

    ShardSeries train(stem + "_train", 1, options, tokenizer->vocabulary());
    ShardSeries val(stem + "_val", 0, options, tokenizer->vocabulary());
    Tokenizing tokenizing(*tokenizer, choose_split(inputs, options, on_progress), train, val);

    TokenizeProgress progress;
    for (const Input& input : inputs) progress.bytes_total += input.size();
    uint64_t bytes_before = 0;
    for (const Input& input : inputs) {
        DocumentReader reader(input, options.rules);
        Piece piece;
        while (reader.next(piece)) {
            tokenizing.add(piece);
            progress.bytes_read = bytes_before + reader.offset();
            progress.documents = tokenizing.documents();
            progress.tokens = train.tokens() + val.tokens();
            on_progress(progress);
        }
        bytes_before += input.size();
    }
    if (tokenizing.documents() == 0)
        fail(Exit::data, inputs[0].name(), inputs.size() > 1 ? " and the other inputs hold" : ": holds", " no text");

    TokenizeReport report;
    report.manifest = {tokenizer->name(), tokenizer->vocabulary(), tokenizing.documents(), train.tokens() + val.tokens(), val.finish()};
    for (const ShardInfo& shard : train.finish()) report.manifest.shards.push_back(shard);
    report.manifest_path = stem + "_manifest.json";
    report.train_tokens = train.tokens();
    report.val_tokens = val.tokens();
    report.removed = publish(train, val, report.manifest, options.out, name);
    return report;
}
