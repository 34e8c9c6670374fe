#include "data/documents/tokenize_files.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <filesystem>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <set>
#include <sstream>
#include <thread>

#include "data/documents/split.h"
#include "data/documents/text_batch.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/disk.h"
#include "model/base/error.h"

namespace {

namespace fs = std::filesystem;

using OnProgress = std::function<void(const TokenizeProgress&)>;
using OnNote = std::function<void(const std::string&)>;
using BatchPointer = std::shared_ptr<TextBatch>;

std::string shard_name(const TokenizeOptions& options, const std::string& first_input) {
    if (options.name.find('/') != std::string::npos)
        fail(Exit::usage, "--name '", options.name, "' must not contain a slash; --out names the folder");
    if (!options.name.empty()) return options.name;
    if (first_input == "-") return "stdin";
    const fs::path file = fs::path(first_input).filename();
    return compression_of(first_input) == Compression::none ? file.stem().string() : file.stem().stem().string();
}

// What a stopped run must have been started with to be resumed, a line each.
std::string description(const TokenizeOptions& options, const Tokenizer& tokenizer, const std::vector<Input>& inputs) {
    const DocumentRules& rules = options.rules;
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::max_digits10);
    text << "--tokenizer " << tokenizer.name() << ", hash " << hexadecimal(xxh3(tokenizer.json() + tokenizer.config_json())) << '\n'
         << "--shard-tokens " << options.shard_tokens << '\n'
         << "--val-fraction " << options.val_fraction << '\n'
         << "--val-tokens " << options.val_tokens << '\n'
         << "--text-field " << rules.text_field << '\n'
         << "--mask-prompts " << rules.mask_prompts << '\n'
         << "--split-on-blank-line " << rules.split_on_blank_line << '\n'
         << "--encoding " << rules.encoding << '\n'
         << "--format " << (rules.json_standard_input ? "jsonl" : "txt") << '\n'
         << inputs.size() << " inputs\n";
    for (size_t i = 0; i < inputs.size(); ++i)
        text << "input " << i + 1 << ": " << inputs[i].name() << ", " << inputs[i].size() << " bytes, modified " << inputs[i].modified()
             << '\n';
    return replace_invalid_utf8(text.str());
}

// A clause on the first line of `now` that `before` lacks; "" if none.
std::string first_difference(const std::string& before, const std::string& now) {
    std::istringstream lines(now);
    for (std::string line; std::getline(lines, line);)
        if (('\n' + before).find('\n' + line + '\n') == std::string::npos) return "it was not made with " + line;
    return "";
}

void write_file(const fs::path& path, const std::string& text) {
    OutputFile file(path.string());
    file.write(text.data(), text.size());
    file.publish();
}

void remove_file(const fs::path& path) {
    std::error_code error;
    do fs::remove_all(path, error);
    while (error == std::errc::interrupted);
    if (error) fail(Exit::data, path.string(), ": cannot be removed: ", error.message());
}

// The output folder and the files in it that belong to one name. Until all are complete they lie in NAME_unfinished.
class Output {
public:
    Output(const std::string& folder, const std::string& name) : folder_(folder), name_(name) {
        as_data([&] { make_folders(folder_); });
        lock_ = as_data([&] { return lock_folder(folder_); });
    }
    ~Output() {
        std::error_code not_empty;
        fs::remove(unfinished(), not_empty);
    }

    const std::string& name() const { return name_; }
    fs::path manifest() const { return folder_ / (name_ + "_manifest.json"); }
    fs::path unfinished() const { return folder_ / (name_ + "_unfinished"); }

    void save(const SavedRun& run) const { write_file(record(), saved_run_to_json(run)); }

    // The record of a stopped run with the same options and inputs, if any; leftovers of other runs are removed.
    std::optional<SavedRun> find_saved_run(const std::string& made_by, const Tick& tick, const OnNote& on_note) const {
        if (fs::exists(record())) {
            std::optional<SavedRun> run = saved_run_from_json(read_small_file(record().string()));
            const std::string other = run ? first_difference(run->made_by, made_by) : "its record is not readable";
            const std::string why_not = other.empty() ? first_damaged(*run, tick) : other;
            if (why_not.empty()) return run;
            on_note("a stopped run cannot be continued, so this one starts over: " + why_not);
        }
        remove_file(unfinished());
        as_data([&] { make_folders(unfinished()); });
        return {};
    }

    // The tokenizer's name in the manifest: "bytes", or the copy of its tokenizer.json that publish() puts next to it.
    std::string name_of(const Tokenizer& tokenizer) const {
        return tokenizer.name() == "bytes" ? tokenizer.name() : name_ + "_tokenizer.json";
    }

    // Gives everything its final name. The old manifest is removed first and the new one comes last: a manifest that exists is
    // valid. Can be repeated if interrupted at any point. Removes an earlier run's files: its shards would match the glob of the new.
    void publish(const Manifest& manifest, const Tokenizer& tokenizer, const OnNote& on_note) const {
        std::set<std::string> names;   // written before anything is changed: the disk may be full
        for (const auto& [name, text] : tokenizer_files(tokenizer)) write_file(unfinished() / name, text), names.insert(name);
        for (const ShardInfo& shard : manifest.shards) names.insert(shard.file);
        const std::string last = this->manifest().filename().string();
        write_file(unfinished() / last, manifest_to_json(manifest));

        const std::set<std::string> earlier = files_of_earlier_run();
        remove_file(this->manifest());
        for (const std::string& name : earlier) {
            if (names.contains(name)) continue;
            remove_file(folder_ / name);
            on_note("removed " + (folder_ / name).string() + " of an earlier run");
        }
        for (const std::string& name : names) give_final_name(name);
        as_data([&] { sync_directory(folder_); });
        give_final_name(last);
        as_data([&] { sync_directory(folder_); });
        remove_file(unfinished());
    }

    // Exit::data if the tokenizer's files would overwrite files that are not from an earlier run.
    void require_place_for(const Tokenizer& tokenizer) const {
        if (owns_tokenizer_files()) return;
        for (const auto& [name, text] : tokenizer_files(tokenizer))
            if (const std::string path = (folder_ / name).string(); fs::exists(path) && read_small_file(path) != text)
                fail(Exit::data, path, ": exists and is not from an earlier run; give another --name or --out");
    }

    static std::vector<ShardInfo> shards_of(const SavedRun& run) {
        std::vector<ShardInfo> shards = run.val;
        shards.insert(shards.end(), run.train.begin(), run.train.end());
        return shards;
    }

private:
    fs::path record() const { return unfinished() / "progress.json"; }

    std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer) const {
        if (tokenizer.name() == "bytes") return {};
        return {{name_ + "_tokenizer.json", tokenizer.json()}, {name_ + "_tokenizer_config.json", tokenizer.config_json()}};
    }

    // A finished shard may have its final name, if the run was stopped during the renames.
    std::string first_damaged(const SavedRun& run, const Tick& tick) const {
        for (const ShardInfo& shard : shards_of(run)) {
            tick();
            if (shard_series(shard.file) != name_) return "'" + shard.file + "' is not the name of a shard of " + name_;
            const fs::path path = (fs::exists(unfinished() / shard.file) ? unfinished() : folder_) / shard.file;
            if (!fs::exists(path)) return path.string() + " is missing";
            if (fs::file_size(path) != shard.bytes || file_hash(path.string()) != shard.xxh64)
                return path.string() + " is not what that run wrote";
        }
        return "";
    }

    // Whether the tokenizer's files belong to an earlier run, by its manifest.
    bool owns_tokenizer_files() const {
        const std::string path = manifest().string();
        return fs::exists(path) && manifest_from_json(read_small_file(path), path).tokenizer == name_ + "_tokenizer.json";
    }

    void give_final_name(const std::string& name) const {
        if (!fs::exists(unfinished() / name)) return;   // has it already
        as_data([&] { rename_file(unfinished() / name, folder_ / name); });
    }

    std::set<std::string> files_of_earlier_run() const {
        std::set<std::string> found;
        if (owns_tokenizer_files()) found = {name_ + "_tokenizer.json", name_ + "_tokenizer_config.json"};
        for (const fs::path& entry : as_data([&] { return entries_of(folder_); }))
            if (shard_series(entry.filename().string()) == name_) found.insert(entry.filename().string());
        return found;
    }

    fs::path folder_;
    std::string name_;
    Descriptor lock_;     // two runs would overwrite each other's files
};

std::vector<Input> open_inputs(const TokenizeOptions& options, const Tick& tick) {
    std::vector<Input> inputs;
    const std::vector<std::string> paths = options.inputs.empty() ? std::vector<std::string>{"-"} : options.inputs;
    std::set<fs::path> files_found;   // canonical: a.txt is ./a.txt
    for (const std::string& path : paths) {
        std::error_code unknown;   // opening it reports what cannot be read
        if (!files_found.insert(path == "-" ? fs::path(path) : fs::weakly_canonical(path, unknown)).second)
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

SavedRun new_run(const TokenizeOptions& options, const std::string& made_by, const std::vector<Input>& inputs,
                 const OnProgress& on_progress) {
    SavedRun run;
    run.made_by = made_by;
    if (options.val_tokens > 0 || options.val_fraction == 0) return run;
    const auto on_document = [&](uint64_t documents) { on_progress({.documents = documents}); };
    run.split = choose_split(inputs, options.rules, options.val_fraction, on_document);
    return run;
}

// Calls encode(batch) on several threads, then use(batch) in the order of the reader, in which errors are thrown, too. Of text, 4 MiB for
// each thread and a few more are ahead of use(), or one larger batch.
template <class Encode, class Use>
void for_batches(BatchReader& reader, int threads, const Tick& tick, Encode encode, Use use) {
    const size_t most_ahead = static_cast<size_t>(threads) + 4, most_bytes = most_ahead << 22;
    std::counting_semaphore<> turns(threads);
    std::deque<std::future<BatchPointer>> ahead;
    size_t bytes = 0;
    const auto start = [&](BatchPointer batch) {
        const auto in_turn = [&turns, encode](BatchPointer one) {
            turns.acquire();
            const std::shared_ptr<void> turn(nullptr, [&](void*) { turns.release(); });
            encode(*one);
            return one;
        };
        bytes += batch->text.size();
        // Deferred where the system starts no more threads. The batch is copied: libstdc++ loses a moved one there.
        ahead.push_back(std::async(std::launch::async | std::launch::deferred, in_turn, batch));
    };
    const auto use_first = [&] {
        do tick();
        while (ahead.front().wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
        const BatchPointer batch = ahead.front().get();
        ahead.pop_front();
        bytes -= batch->text.size();
        use(*batch);
    };
    std::exception_ptr unreadable;
    const auto read = [&](TextBatch& batch) {
        try {
            return reader.next(batch);
        } catch (...) {   // after all batches before it
            unreadable = std::current_exception();
            return false;
        }
    };
    for (auto batch = std::make_shared<TextBatch>(); read(*batch); batch = std::make_shared<TextBatch>()) {
        while (!ahead.empty() && (ahead.size() >= most_ahead || bytes + batch->text.size() > most_bytes)) use_first();
        start(std::move(batch));
    }
    while (!ahead.empty()) use_first();
    if (unreadable) std::rethrow_exception(unreadable);
}

// Tokenizes what `run` has not done yet and passes it to `writer`.
void encode_inputs(const TokenizeOptions& options, const std::vector<Input>& inputs, const Tokenizer& tokenizer,
                   const SavedRun& run, SplitWriter& writer, const OnProgress& on_progress, const OnNote& on_note) {
    const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    TokenizeProgress progress;
    const Tick tick = [&] { on_progress(progress); };
    BatchReader reader(inputs, options.rules, tick, run.split.divide_at);
    std::vector<uint64_t> invalid(inputs.size());
    std::vector<uint64_t> before(1, 0);   // bytes of all inputs before each
    for (const Input& input : inputs) before.push_back(before.back() + input.size());
    const auto encode = [&](TextBatch& batch) {
        if (batch.number >= run.batches) encode_batch(batch, inputs[batch.input], options.rules, tokenizer);
    };
    for_batches(reader, threads, tick, encode, [&](const TextBatch& batch) {
        writer.add(batch);
        invalid[batch.input] += batch.invalid;
        if (batch.number < run.batches) return;
        progress.documents = writer.documents();
        progress.tokens = writer.train_tokens() + writer.val_tokens();
        progress.text_bytes += batch.text.size();
        const uint64_t read = before[batch.input] + std::min(batch.consumed, inputs[batch.input].size());
        if (before.back() > 0) progress.share = double(read) / double(before.back());
        else if (options.documents > 0) progress.share = double(progress.documents) / double(options.documents);
    });
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
    require_encoding(options.rules.encoding);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.tokenizer);
    const Output output(options.out, shard_name(options, options.inputs.empty() ? "-" : options.inputs[0]));
    const Tick tick = [&] { on_progress({}); };
    const std::vector<Input> inputs = open_inputs(options, tick);

    output.require_place_for(*tokenizer);
    const std::string made_by = description(options, *tokenizer, inputs);
    const std::optional<SavedRun> saved = output.find_saved_run(made_by, tick, on_note);
    const SavedRun run = saved ? *saved : new_run(options, made_by, inputs, on_progress);
    const SplitWriterOptions writing = {output.unfinished().string(), output.name(), tokenizer->vocabulary(),
                                        static_cast<uint64_t>(options.shard_tokens), static_cast<uint64_t>(options.val_tokens)};
    SplitWriter writer(writing, run, [&](const SavedRun& finished) { output.save(finished); });
    if (saved)
        on_note("resuming where a stopped run ended: " + std::to_string(Output::shards_of(run).size()) + " shards with " +
                std::to_string(writer.train_tokens() + writer.val_tokens()) + " tokens are finished");
    encode_inputs(options, inputs, *tokenizer, run, writer, on_progress, on_note);
    check_result(writer, options, inputs);
    const SavedRun& finished = writer.finish();

    TokenizeReport report;
    report.train_tokens = writer.train_tokens();
    report.val_tokens = writer.val_tokens();
    report.manifest = {output.name_of(*tokenizer), tokenizer->vocabulary(), writer.documents(), report.train_tokens + report.val_tokens,
                       Output::shards_of(finished)};
    report.manifest_path = output.manifest().string();
    tick();   // the last moment to stop
    output.publish(report.manifest, *tokenizer, on_note);
    return report;
}
