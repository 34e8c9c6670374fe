#include "data/tokenize_files.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "data/manifest.h"
#include "data/pipeline.h"
#include "data/split.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"

namespace {

namespace fs = std::filesystem;

// Maximum bytes of text in the pipeline: one longest piece per thread, and some read-ahead.
constexpr size_t room(int threads) { return (static_cast<size_t>(threads) + 4) << 22; }

constexpr const char* temporary = ".tmp";             // OutputFile's suffix

using OnProgress = std::function<void(const TokenizeProgress&)>;
using OnNote = std::function<void(const std::string&)>;

void check_options(const TokenizeOptions& options) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (!(options.val_fraction >= 0 && options.val_fraction < 1))
        fail(Exit::usage, "--val-fraction is ", options.val_fraction, ", it must be at least 0 and below 1");
    if (options.val_tokens < 0 || options.val_tokens > most)
        fail(Exit::usage, "--val-tokens is ", options.val_tokens, ", it must be 0 to ", most);
    if (options.shard_tokens < 1 || options.shard_tokens > most)
        fail(Exit::usage, "--shard-tokens is ", options.shard_tokens, ", it must be 1 to ", most);
    if (options.documents < 0) fail(Exit::usage, "--documents is ", options.documents, ", it must not be negative");
    if (options.threads < 0 || options.threads > 1024) fail(Exit::usage, "--threads is ", options.threads, ", it must be 0 to 1024");
    require_encoding(options.rules.encoding);
    if (options.out.empty()) fail(Exit::usage, "--out is missing: the folder to write the shards into");
    if (options.name.find('/') != std::string::npos)
        fail(Exit::usage, "--name '", options.name, "' must not contain a slash; --out names the folder");
    if (std::count(options.inputs.begin(), options.inputs.end(), "-") > 1)
        fail(Exit::usage, "standard input (-) is given more than once");
}

std::string shard_name(const TokenizeOptions& options, const std::string& first_input) {
    if (!options.name.empty()) return options.name;
    if (first_input == "-") return "stdin";
    const fs::path file = fs::path(first_input).filename();
    return compression_of(first_input) == Compression::none ? file.stem().string() : file.stem().stem().string();
}

std::string exactly(double value) {
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::max_digits10);
    text << value;
    return text.str();
}

Fingerprint fingerprint(const TokenizeOptions& options, const Tokenizer& tokenizer, const std::vector<Input>& inputs) {
    const std::string files = tokenizer.json() + tokenizer.config_json();
    Fingerprint made_by = {
        {"--tokenizer", tokenizer.name()},
        {"the hash of its files", hexadecimal(xxh3(files.data(), files.size()))},
        {"--shard-tokens", std::to_string(options.shard_tokens)},
        {"--val-fraction", exactly(options.val_fraction)},
        {"--val-tokens", std::to_string(options.val_tokens)},
        {"--text-field", options.rules.text_field},
        {"--mask-prompts", options.rules.mask_prompts ? "given" : "not given"},
        {"--split-on-blank-line", options.rules.split_on_blank_line ? "given" : "not given"},
        {"--encoding", options.rules.encoding},
        {"--format", options.rules.json_standard_input ? "jsonl" : "txt"},
        {"the number of inputs", std::to_string(inputs.size())},
    };
    for (size_t i = 0; i < inputs.size(); ++i) {
        const std::string number = "input " + std::to_string(i + 1);
        made_by.emplace_back(number, inputs[i].name());
        made_by.emplace_back(number + ", bytes", std::to_string(inputs[i].size()));
        made_by.emplace_back(number + ", modified", std::to_string(inputs[i].modified()));
    }
    return made_by;
}

void remove_file(const std::string& path) {
    std::error_code error;
    fs::remove(path, error);
    if (error) fail(Exit::data, path, ": cannot be removed: ", error.message());
}

// Writes and syncs a file under its temporary name.
std::unique_ptr<OutputFile> write_unpublished(const std::string& path, const std::string& text) {
    auto file = std::make_unique<OutputFile>(path);
    file->write(text.data(), text.size());
    file->finish();
    return file;
}

// The output folder and the files in it that belong to one name.
class Output {
public:
    Output(const std::string& folder, const std::string& name) : folder_(folder), name_(name) {
        make_folder(folder);
        lock_ = lock_folder(folder);
    }

    std::string stem() const { return folder_ + "/" + name_; }
    std::string manifest() const { return stem() + "_manifest.json"; }
    std::string progress() const { return stem() + "_progress.json"; }

    void save(const SavedRun& run) const {
        write_unpublished(progress(), saved_run_to_json(run))->publish();
        sync_folder(folder_);
    }

    // The record of a stopped run with the same options and inputs, if any; leftovers of other runs are removed.
    std::optional<SavedRun> find_saved_run(const Fingerprint& made_by, const Tick& tick, const OnNote& on_note) const {
        std::optional<SavedRun> run;
        if (fs::exists(progress())) {
            run = saved_run_from_json(read_small_file(progress()));
            const std::string why_not = !run ? "its record is not readable" : difference(run->made_by, made_by);
            const std::string damage = why_not.empty() ? first_damaged(*run, tick) : why_not;
            if (!damage.empty()) {
                on_note("a stopped run cannot be continued, so this one starts over: " + damage);
                run.reset();
            }
        }
        if (!run) remove_file(progress());
        remove_temporaries(run ? shards_of(*run) : std::vector<ShardInfo>{});
        return run;
    }

    // The tokenizer's name in the manifest: "bytes", or the copy of its tokenizer.json that publish() puts next to it.
    std::string name_of(const Tokenizer& tokenizer) const {
        return tokenizer.name() == "bytes" ? tokenizer.name() : name_ + "_tokenizer.json";
    }

    // Gives everything its final name. The old manifest is removed first and the new one comes last: a manifest that exists is
    // valid. Can be repeated if interrupted at any point. Returns the removed shards of earlier runs.
    std::vector<std::string> publish(const Manifest& manifest, const Tokenizer& tokenizer) const {
        const bool files = tokenizer.name() != "bytes", files_before = owns_tokenizer_files();
        std::vector<std::unique_ptr<OutputFile>> written;   // everything that could fail on a full disk, before anything is changed
        if (files) written.push_back(write_unpublished(tokenizer_json(), tokenizer.json()));
        if (files) written.push_back(write_unpublished(tokenizer_config(), tokenizer.config_json()));
        const auto last = write_unpublished(this->manifest(), manifest_to_json(manifest));
        remove_file(this->manifest());
        for (const auto& file : written) file->publish();
        for (const ShardInfo& shard : manifest.shards) give_final_name(shard);
        std::vector<std::string> removed = remove_others(manifest.shards);
        if (!files && files_before)
            for (const std::string& path : {tokenizer_json(), tokenizer_config()}) remove_file(path), removed.push_back(path);
        sync_folder(folder_);
        last->publish();
        sync_folder(folder_);
        remove_file(progress());
        return removed;
    }

    // Exit::data if the tokenizer's files would overwrite files that are not from an earlier run.
    void require_place_for(const Tokenizer& tokenizer) const {
        if (tokenizer.name() == "bytes" || owns_tokenizer_files()) return;
        for (const auto& [path, text] : {std::pair(tokenizer_json(), tokenizer.json()),
                                         std::pair(tokenizer_config(), tokenizer.config_json())})
            if (fs::exists(path) && read_small_file(path) != text)
                fail(Exit::data, path, ": exists and is not from an earlier run; give another --name or --out");
    }

    static std::vector<ShardInfo> shards_of(const SavedRun& run) {
        std::vector<ShardInfo> shards = run.val;
        shards.insert(shards.end(), run.train.begin(), run.train.end());
        return shards;
    }

private:
    std::string path_of(const ShardInfo& shard) const { return folder_ + "/" + shard.file; }

    // A finished shard has its temporary name, unless the run was stopped during the final renames.
    std::string place_of(const ShardInfo& shard) const {
        return fs::exists(path_of(shard) + temporary) ? path_of(shard) + temporary : path_of(shard);
    }

    std::string first_damaged(const SavedRun& run, const Tick& tick) const {
        for (const ShardInfo& shard : shards_of(run)) {
            tick();
            if (shard_series(shard.file) != name_) return "'" + shard.file + "' is not the name of a shard of " + name_;
            const std::string path = place_of(shard);
            if (!fs::exists(path)) return path + " is missing";
            if (fs::file_size(path) != shard.bytes || file_hash(path) != shard.xxh64) return path + " is not what that run wrote";
        }
        return "";
    }

    std::string tokenizer_json() const { return stem() + "_tokenizer.json"; }
    std::string tokenizer_config() const { return stem() + "_tokenizer_config.json"; }

    // Whether the tokenizer's files belong to an earlier run, by its manifest.
    bool owns_tokenizer_files() const {
        if (!fs::exists(manifest())) return false;
        return manifest_from_json(read_small_file(manifest()), manifest()).tokenizer == name_ + "_tokenizer.json";
    }

    void give_final_name(const ShardInfo& shard) const {
        if (!fs::exists(path_of(shard) + temporary)) return;   // already renamed
        std::error_code error;
        fs::rename(path_of(shard) + temporary, path_of(shard), error);
        if (error) fail(Exit::data, path_of(shard), ": cannot be renamed to this name: ", error.message());
    }

    // Files in the folder whose name, without `suffix`, is that of a shard of this name that is not in `keep`.
    std::vector<std::string> others(const std::vector<ShardInfo>& keep, const std::string& suffix) const {
        std::vector<std::string> found;
        std::error_code error;
        fs::directory_iterator entries(folder_, error);
        while (error == std::errc::interrupted) entries = fs::directory_iterator(folder_, error);
        for (const fs::directory_entry& entry : entries) {
            const std::string file = entry.path().filename().string();
            if (!file.ends_with(suffix)) continue;
            const std::string shard = file.substr(0, file.size() - suffix.size());
            const bool kept = std::any_of(keep.begin(), keep.end(), [&](const ShardInfo& one) { return one.file == shard; });
            if (shard_series(shard) == name_ && !kept) found.push_back(entry.path().string());
        }
        if (error) fail(Exit::data, folder_, ": cannot be listed: ", error.message());
        std::sort(found.begin(), found.end());
        return found;
    }

    void remove_temporaries(const std::vector<ShardInfo>& keep) const {
        for (const std::string& path : others(keep, temporary)) remove_file(path);
    }

    // Removes an earlier run's shards of this name: they would match the glob of the new ones.
    std::vector<std::string> remove_others(const std::vector<ShardInfo>& keep) const {
        const std::vector<std::string> removed = others(keep, "");
        for (const std::string& path : removed) remove_file(path);
        return removed;
    }

    std::string folder_, name_;
    Descriptor lock_;     // two runs would overwrite each other's files
};

std::vector<Input> open_inputs(const TokenizeOptions& options, const Tick& tick) {
    std::vector<Input> inputs;
    const std::vector<std::string> paths = options.inputs.empty() ? std::vector<std::string>{"-"} : options.inputs;
    std::set<std::filesystem::path> files_found;   // canonical: a.txt is ./a.txt
    for (const std::string& path : paths) {
        std::error_code unknown;   // opening it reports what cannot be read
        if (path != "-" && !files_found.insert(std::filesystem::weakly_canonical(path, unknown)).second)
            fail(Exit::usage, path, ": is given twice, which would duplicate its documents, perhaps across training and "
                 "validation; give it once");
        inputs.push_back(Input::open(path, options.rules));
        if (options.rules.mask_prompts && !inputs.back().json_lines())
            fail(Exit::usage, inputs.back().name(), ": is text, and --mask-prompts reads JSON Lines",
                 path == "-" ? "; give --format jsonl" : "");
        const bool counted_first = options.val_tokens == 0 && options.val_fraction > 0;
        if (path == "-" && counted_first) inputs.back().copy_standard_input(options.out, tick);
    }
    return inputs;
}

SavedRun new_run(const TokenizeOptions& options, const Fingerprint& made_by, const std::vector<Input>& inputs,
                 const OnProgress& on_progress) {
    SavedRun run;
    run.made_by = made_by;
    if (options.val_tokens > 0 || options.val_fraction == 0) return run;
    run.split = choose_split(inputs, options.rules, options.val_fraction, [&](uint64_t documents) {
        TokenizeProgress progress;
        progress.counting = true;
        progress.documents = documents;
        on_progress(progress);
    });
    return run;
}

// Tokenizes what `run` has not done yet and passes it to `writer`.
void encode_inputs(const TokenizeOptions& options, const std::vector<Input>& inputs, const Tokenizer& tokenizer,
                   const SavedRun& run, SplitWriter& writer, const OnProgress& on_progress, const OnNote& on_note) {
    const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::atomic<bool> stop = false;
    BatchReader reader(inputs, options.rules, stop, run.input, run.place);
    const auto encode = [&](TextBatch& batch) {
        encode_batch(batch, inputs[batch.input], options.rules, tokenizer, run.split.train_bytes);
    };
    Pipeline pipeline(threads, room(threads), [&](TextBatch& batch) { return reader.next(batch); }, encode, stop);
    if (pipeline.encoders() < threads)
        on_note("the system starts " + std::to_string(pipeline.encoders()) + " of " + std::to_string(threads) + " threads");

    std::vector<uint64_t> invalid(inputs.size());
    TokenizeProgress progress;
    progress.documents_total = static_cast<uint64_t>(options.documents);
    for (const Input& input : inputs) progress.bytes_total += input.size();
    std::vector<uint64_t> before(1, 0);   // bytes of all inputs before each
    for (const Input& input : inputs) before.push_back(before.back() + input.size());
    const Tick tick = [&] { on_progress(progress); };
    while (const std::unique_ptr<TextBatch> batch = pipeline.next(tick)) {
        writer.add(*batch);
        progress.bytes_read = before[batch->input] + std::min(batch->consumed, inputs[batch->input].size());
        progress.text_bytes += batch->text.size();
        progress.documents = writer.documents();
        progress.tokens = writer.train_tokens() + writer.val_tokens();
        invalid[batch->input] += batch->invalid;
    }
    for (size_t i = 0; i < inputs.size(); ++i)
        if (invalid[i] > 0)
            on_note(inputs[i].name() + ": is not UTF-8 in " + std::to_string(invalid[i]) + " places, which " +
                    (tokenizer.name() == "bytes" ? "are kept as bytes" : "count as U+FFFD") + "; --encoding names another encoding");
}

void check_result(const SplitWriter& writer, const TokenizeOptions& options, const std::vector<Input>& inputs) {
    const std::string name = inputs[0].name() + (inputs.size() > 1 ? " and the other inputs hold" : ": holds");
    if (writer.documents() == 0) fail(Exit::data, name, " no text");
    if (options.documents > 0 && writer.documents() != static_cast<uint64_t>(options.documents))
        fail(Exit::data, name, " ", writer.documents(), " documents, but --documents is ", options.documents,
             writer.documents() < static_cast<uint64_t>(options.documents) ? "; did the program that writes them end early?" : "");
    if (options.val_tokens > 0 && writer.train_tokens() == 0)
        fail(Exit::data, name, " only ", writer.val_tokens(), " tokens: --val-tokens ", options.val_tokens,
             " leaves nothing to train on");
}

}  // namespace

TokenizeReport tokenize_files(const TokenizeOptions& options, const OnProgress& on_progress, const OnNote& on_note) {
    check_options(options);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
    const Output output(options.out, shard_name(options, options.inputs.empty() ? "-" : options.inputs[0]));
    const Tick tick = [&] { on_progress({}); };
    const std::vector<Input> inputs = open_inputs(options, tick);

    output.require_place_for(*tokenizer);
    const Fingerprint made_by = fingerprint(options, *tokenizer, inputs);
    const std::optional<SavedRun> saved = output.find_saved_run(made_by, tick, on_note);
    const SavedRun run = saved ? *saved : new_run(options, made_by, inputs, on_progress);
    const SplitWriterOptions writing = {output.stem(), tokenizer->vocabulary(), static_cast<uint64_t>(options.shard_tokens),
                                        static_cast<uint64_t>(options.val_tokens)};
    SplitWriter writer(writing, run, [&](const SavedRun& finished) { output.save(finished); });
    if (saved)
        on_note("resuming where a stopped run ended: " + std::to_string(Output::shards_of(run).size()) + " shards with " +
                std::to_string(writer.train_tokens() + writer.val_tokens()) + " tokens are finished");
    if (!run.complete) {
        encode_inputs(options, inputs, *tokenizer, run, writer, on_progress, on_note);
        check_result(writer, options, inputs);
    }

    const SavedRun& finished = run.complete ? run : writer.finish();
    TokenizeReport report;
    report.train_tokens = writer.train_tokens();
    report.val_tokens = writer.val_tokens();
    report.manifest = {output.name_of(*tokenizer), tokenizer->vocabulary(), writer.documents(), report.train_tokens + report.val_tokens,
                       Output::shards_of(finished)};
    report.manifest_path = output.manifest();
    tick();   // the last moment to stop
    report.removed = output.publish(report.manifest, *tokenizer);
    return report;
}
