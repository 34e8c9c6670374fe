#include "model/run/start.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iostream>
#include <set>
#include <sstream>

#include "attention/layers.h"
#include "data/loader.h"
#include "model/base/disk.h"
#include "model/base/hash.h"
#include "model/base/json.h"
#include "model/base/options.h"
#include "model/base/process.h"
#include "model/base/text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/device/machine.h"

namespace {

// ---- data

// Escapes the characters * ? [ and backslash of `path` for expand_glob().
std::string without_wildcards(const std::string& path) {
    std::string escaped;
    for (char c : path) {
        if (std::string("*?[\\").find(c) != std::string::npos) escaped += '\\';
        escaped += c;
    }
    return escaped;
}

Data open_shards(const Options& o, const Config& config) {
    Data data;
    const std::string bundled = without_wildcards(program_folder()) + "/data/bundled/sotu_";
    const bool shards_are_wanted = !o.evaluate || (config.tokenizer == "bytes" && o.eval_data.empty());
    const bool own_text = o.val_data.empty() && o.train_data.empty() && shards_are_wanted;
    const std::string val = own_text ? bundled + "val_*.bin" : o.val_data;
    if (!o.evaluate)
        data.train = std::make_unique<Mixture>(o.train_data.empty() ? bundled + "train_*.bin" : o.train_data, config.V, o.verify_data);
    if (!val.empty() && (o.evaluate ? o.val_batches : o.val_every))
        data.val = std::make_unique<Mixture>(val, config.V, o.verify_data);
    return data;
}

void require_rows(const Data& data, const Options& o, int ranks) {
    const int64_t fewest = o.evaluate ? 1 : int64_t(o.batch_size) * ranks;   // rows; --evaluate may leave ranks without any
    if (!data.val) return;
    for (const auto& [stream, share] : data.val->sources())
        if (windows(stream, o.seq_len) < fewest)
            fail(Exit::data, stream.name(), ": ", stream.size(), " tokens are fewer than one validation batch of ",
                 fewest * o.seq_len, " tokens plus the one after it; lower ",
                 o.evaluate ? "--seq-len, or set --val-batches 0" : "--batch-size or --seq-len, or set --val-every 0");
}

// The tokenizer that made the shards, "" if unknown. Exit::data if it is not the model's.
std::string tokenizer_of(const Data& data, const Config& config) {
    if (data.train && !config.tokenizer.empty() && !data.train->tokenizer().empty() &&
        !same_tokenizer(data.train->tokenizer(), config.tokenizer))
        fail(Exit::data, data.train->name(), ": was made with the tokenizer ", data.train->tokenizer(), ", but the model's is ",
             config.tokenizer, "; make shards with that (./tokenize --tokenizer) and give them as --train-data and --val-data");
    std::string made_by = data.train ? data.train->tokenizer() : config.tokenizer;   // "" if unknown
    if (data.val && !made_by.empty() && !data.val->tokenizer().empty() && !same_tokenizer(data.val->tokenizer(), made_by))
        fail(Exit::data, data.val->name(), ": was made with the tokenizer ", data.val->tokenizer(), ", and ",
             data.train ? data.train->name() : "the model", " with ", made_by, "; use shards of one tokenizer");
    if (!data.train && made_by.empty() && data.val) made_by = data.val->tokenizer();
    return made_by;
}

// Exit::data if the first tokens are all of one document.
void require_borders(const TokenStream& stream, const Config& config) {
    const uint64_t looked_at = std::min<uint64_t>(stream.size(), 1 << 26);
    std::vector<int32_t> tokens(size_t(1) << 16);
    for (uint64_t at = 1; at < looked_at; at += tokens.size()) {   // the first token begins a document, if there is only one
        const size_t count = size_t(std::min<uint64_t>(tokens.size(), looked_at - at));
        stream.copy(at, count, tokens.data());
        if (std::find(tokens.begin(), tokens.begin() + count, config.end_of_text) != tokens.begin() + count) return;
    }
    fail(Exit::data, stream.name(), ": the first ", looked_at, " tokens are of one document (none is ", config.end_of_text,
         ", the token between documents): --document-mask has nothing to keep apart; make shards of documents with ./tokenize, or leave "
         "it out");
}

Schedule schedule_of(const ScheduleOptions& o, int64_t steps) {
    static const std::map<std::string, Schedule::Form> forms = {{"cosine", Schedule::Form::cosine}, {"linear", Schedule::Form::linear},
                                                                {"constant", Schedule::Form::constant}, {"wsd", Schedule::Form::wsd}};
    const bool cools = o.schedule == "wsd";
    if (cools && o.cooldown_frac == 0)
        fail(Exit::usage, "--cooldown-frac 0 leaves --schedule wsd without a cool-down; give --schedule constant");
    const Schedule s{forms.at(o.schedule), o.adamw.lr, o.min_lr_frac, o.warmup_steps >= 0 ? o.warmup_steps : steps / 20,
                     cools ? std::max<int64_t>(1, std::llround(o.cooldown_frac * double(steps))) : 0, steps};
    if (cools && s.warmup + s.cooldown > steps)
        fail(Exit::usage, "--cooldown-frac ", o.cooldown_frac, " is ", s.cooldown, " of ", steps, " steps, which with ", s.warmup,
             " of warm-up is longer than the run; lower it, or --warmup-steps");
    return s;
}

void cut_into_steps(Data& data, const Options& o, int ranks) {
    const int64_t micro_batch = int64_t(o.batch_size) * o.seq_len * ranks;
    data.tokens_per_step = o.total_batch_tokens ? o.total_batch_tokens : micro_batch;
    if (data.tokens_per_step % micro_batch)
        fail(Exit::usage, "--total-batch-tokens ", data.tokens_per_step,
             " is not a multiple of batch-size x seq-len x ranks = ", o.batch_size, " x ", o.seq_len, " x ", ranks, " = ",
             micro_batch);
    if (data.tokens_per_step / micro_batch > INT_MAX)
        fail(Exit::usage, "--total-batch-tokens ", data.tokens_per_step, " is more than ", INT_MAX, " micro-steps of ", micro_batch,
             " tokens; lower it, or raise --batch-size");
    data.micro_steps = int(data.tokens_per_step / micro_batch);
    const double steps_of_epochs = std::ceil(o.epochs * double(data.train->size()) / double(data.tokens_per_step));
    data.steps = o.epochs > 0 ? std::max<int64_t>(1, std::llround(steps_of_epochs)) : o.steps;
    data.schedule = schedule_of(o, data.steps);
}

// ---- where weights come from

// The newest undamaged checkpoint of --out, or none if there is no checkpoint at all; Exit::checkpoint if all are damaged. Damaged ones
// are named on stderr.
std::optional<std::filesystem::path> find_checkpoint(const std::string& out) {
    std::vector<std::string> complaints;
    const auto found = latest_checkpoint(out, complaints);
    for (const std::string& complaint : complaints) std::cerr << "warning: " << complaint << "\n";
    if (!found && !complaints.empty())
        fail(Exit::checkpoint, out, ": no undamaged checkpoint is left to resume from; give another --out to start over");
    if (!found) std::cerr << "note: no checkpoint in " << out << "; starting at step 0\n";
    return found;
}

std::filesystem::path given_checkpoint(const Options& o) {
    if (!std::filesystem::exists(std::filesystem::path(o.checkpoint) / "manifest.json"))
        fail(Exit::checkpoint, o.checkpoint, ": is not a checkpoint of this program (it has no manifest.json); give one of a run's step_* "
             "folders, or start from it with --model");
    if (!o.evaluate && is_set_aside(o.checkpoint, o.out))
        fail(Exit::usage, "--checkpoint ", o.checkpoint, " has been set aside by another run in --out; give another --out, or move it");
    verify_checkpoint(o.checkpoint);
    return o.checkpoint;
}

// Exit::usage if --model names a shape other than the resumed run's.
void require_shape(const Origin& origin, const Config& wanted, const std::string& name) {
    const Config& c = origin.config;
    const bool same = c.V == wanted.V && c.C == wanted.C && c.L == wanted.L && c.NH == wanted.NH && c.NKV == wanted.NKV &&
                      c.HS == wanted.HS && c.F == wanted.F;
    if (!same)
        fail(Exit::usage, "--model ", name, " has a different shape from ", origin.resume_from->string(),
             "; leave --model out, or give another --out to start over");
}

// Exit::checkpoint for a folder with other attention, unless this run is to start from its weights: the variant's own tensors, the moments
// and the step count then start from zero. `has` and `wants` are the attention of the folder and of this run; `way_out` is an alternative
// for the message.
void require_new_tensors_allowed(const Origin& origin, const std::string& has, const std::string& wants, const std::string& way_out,
                                 const Options& o, bool prints) {
    const std::string folder = origin.folder()->string();
    if (origin.resume_from || !o.allow_new_tensors)
        fail(Exit::checkpoint, folder, ": is a checkpoint of ", has, ", and this program trains ", wants, "; ", way_out, "start ", wants,
             " from its weights with --model ", folder, " --allow-new-tensors and another --out");
    if (prints) std::cout << "note: " << folder << " is a checkpoint of " << has << "; " << wants << " starts from its weights\n";
}

void require_variant(Origin& origin, const std::string& variant, const Options& o, bool prints) {
    if (!origin.folder() || !origin.config.names_variant || origin.config.variant == variant) return;
    const std::string other = origin.config.variant;
    const std::string way_out = "use ./train_" + other + ", or, where " + other + " has no tensors of its own, ";
    require_new_tensors_allowed(origin, other, variant, way_out, o, prints);
    origin.config.layers.clear();   // of the other variant
}

// Prints a note for each setting that was given for all layers, but that every layer of the own variant has for itself.
void note_ignored_settings(const AttentionOptions& o, const std::vector<LayerAttention>& layers, const Variant& own, bool prints) {
    const auto has_its_own = [&](const std::string& key) {
        return std::all_of(layers.begin(), layers.end(), [&](const LayerAttention& layer) {
            return layer.variant != own.name || layer.settings.count(key) > 0;
        });
    };
    for (const Setting& s : own.settings())
        if (prints && !layers.empty() && o.settings.count(s.key) && has_its_own(s.key))
            std::cerr << "note: " << s.option << " has no effect: every layer of " << own.name << " has its own\n";
}

// --layers and --dense-layers. Precondition: require_variant().
void choose_layers(Origin& origin, const Options& o, const Variants& variants, bool prints) {
    complete_layers(origin.config, variants);   // with the given settings
    if (!o.layers.empty() && !o.dense_layers.empty())
        fail(Exit::usage, "--layers and --dense-layers both set the attention of layers; give one");
    if (o.layers.empty() && o.dense_layers.empty()) return note_ignored_settings(o, origin.config.layers, variants.own, prints);
    Config chosen = origin.config;
    chosen.layers = !o.layers.empty() ? layers_of_pattern(o.layers, chosen.L, variants)
                                      : layers_beside_dense(o.dense_layers, chosen.L, variants);
    note_ignored_settings(o, chosen.layers, variants.own, prints);
    for (int l = 0; l < chosen.L; l++) {
        Config layer = chosen.of_layer(l);
        const std::vector<Setting> settings = settings_of(*variants.find(layer.variant));
        try {
            complete_settings(layer, settings);
            require_within_sequence(settings, chosen.layers[size_t(l)].settings, layer, o.seq_len);
        } catch (const Error& error) {
            fail(error.code, "layer ", l, ": ", error.what());
        }
    }
    complete_layers(chosen, variants);
    if (origin.folder() && origin.config.names_variant && chosen.layers != origin.config.layers)
        require_new_tensors_allowed(origin, pattern_of(origin.config, variants), pattern_of(chosen, variants),
                                    "leave --layers and --dense-layers out to keep its layers, or ", o, prints);
    origin.config.layers = chosen.layers, origin.config.settings = chosen.settings;
}

// --qk-norm, for models from scratch: a folder's weights have been trained with QK-norm or without it.
void choose_qk_norm(Origin& origin, const ModelOptions& o) {
    const bool wanted = o.qk_norm == "auto" ? origin.config.qk_norm : o.qk_norm == "1";
    if (wanted == origin.config.qk_norm) return;
    if (origin.folder() && has_weights(*origin.folder()))
        fail(Exit::usage, "--qk-norm ", o.qk_norm, ": the weights in ", origin.folder()->string(), " are of a model with",
             wanted ? "out" : "", " QK-norm; leave --qk-norm out, or start from scratch");
    origin.config.qk_norm = wanted;
    origin.config.qkv_bias = false;   // Qwen3's form or Llama's
}

// Reports a prompt that cannot be encoded at the start rather than at the first sample.
void require_prompt(const Tokenizer& tokenizer, const std::string& prompt) {
    std::vector<uint32_t> ids;
    try {
        tokenizer.encode(prompt, ids);
    } catch (const Error& error) {
        fail(error.code, "--prompt \"", prompt, "\": ", error.what(), ", or leave --prompt out");
    }
}

// Identifies a folder by its manifest or, as old checkpoints have none, by the state of the run that saved it.
std::string hash_of_folder(const std::filesystem::path& folder) {
    std::string all;
    for (const char* name : {"manifest.json", "trainer_state.json"})
        if (path_exists(folder / name)) all += read_text(folder / name);
    return all.empty() ? "none" : hexadecimal(xxh3(all.data(), all.size()));
}

}   // namespace

Data open_data(const Options& o, int ranks, Config& config) {
    if (int64_t(o.batch_size) * o.seq_len > (1 << 28))
        fail(Exit::usage, "--batch-size ", o.batch_size, " x --seq-len ", o.seq_len,
             " is more than 2^28 tokens in one micro-step; use --total-batch-tokens");
    const std::vector<EvaluationFile> tasks = find_evaluation_files(o.eval_data);
    for (const EvaluationFile& file : tasks) require_two_files("--eval-out", o.eval_out, "--eval-data", file.path);
    Data data = open_shards(o, config);
    require_rows(data, o, ranks);
    const std::string made_by = tokenizer_of(data, config);
    if (!made_by.empty()) config.tokenizer = made_by;
    if (!config.tokenizer.empty()) data.tokenizer = open_tokenizer(config.tokenizer, config.V);
    if (data.tokenizer) config.end_of_text = int(data.tokenizer->end_of_text());
    if (o.document_mask && config.end_of_text < 0)
        fail(Exit::usage, "--document-mask needs the token between documents, and the data's tokenizer is unknown; make shards with "
             "./tokenize, or give --model a folder whose config.json has one eos_token_id");
    for (const Mixture* mixture : {data.train.get(), data.val.get()})
        for (size_t n = 0; o.document_mask && mixture && n < mixture->sources().size(); n++)
            require_borders(mixture->sources()[n].stream, config);
    if (data.tokenizer && o.sample_every) require_prompt(*data.tokenizer, o.prompt);
    for (const EvaluationFile& file : tasks)
        data.tasks.push_back(read_evaluation(file, data.tokenizer.get(), config.V, o.seq_len, o.eval_items));
    if (!data.train) return data;
    cut_into_steps(data, o, ranks);
    Loader(*data.train, {o.batch_size, o.seq_len, ranks, 0, data.micro_steps, o.seed, o.shuffle}).require_targets(data.steps);
    return data;
}

static std::map<std::string, std::string> values_of(const std::string& resolved) {
    std::map<std::string, std::string> values;
    std::istringstream lines(resolved);
    for (std::string line; std::getline(lines, line);)
        if (const size_t equals = line.find('='); equals != std::string::npos && line[0] != '#')
            values[line.substr(0, equals)] = line.substr(equals + 1);
    return values;
}

/// Whether two values are the same number or the same text: 1e-3 is 0.001.
static bool same_value(const std::string& x, const std::string& y) {
    char *end_x = nullptr, *end_y = nullptr;
    const double number_x = std::strtod(x.c_str(), &end_x), number_y = std::strtod(y.c_str(), &end_y);
    return x == y || (end_x != x.c_str() && end_y != y.c_str() && !*end_x && !*end_y && number_x == number_y);
}

std::string changes_of_schedule(const std::string& now, const std::string& before) {
    auto values = values_of(now), old = values_of(before);
    std::string changes;
    for (const char* key : {"steps", "epochs", "lr", "schedule", "cooldown-frac", "warmup-steps", "min-lr-frac", "weight-decay", "beta1",
                            "beta2", "adam-eps", "grad-clip"})
        if (values.contains(key) && old.contains(key) && !same_value(values[key], old[key]))
            changes += (changes.empty() ? "--" : ", --") + std::string(key) + " " + values[key] + " (" + old[key] + ")";
    return changes;
}

std::string tokens_of(const Mixture& mixture) {
    return text("%llu tokens in %zu shards, %s", static_cast<unsigned long long>(mixture.size()), mixture.shards(), mixture.name().c_str());
}

RunFacts facts_of(const Data& data, const std::string& pattern) {
    auto describe = [](const std::unique_ptr<Mixture>& mixture) {
        return mixture ? tokens_of(*mixture) + ", fingerprint " + mixture->fingerprint() : "";
    };
    return {pattern, describe(data.train), describe(data.val)};
}

std::string describe_data(const Mixture& train, bool shuffle) {
    return "bytes " + train.fingerprint() + (shuffle ? "" : ", in order");
}

DocumentBorders borders(const DataOptions& o, const Config& config) {
    return {o.document_mask ? config.end_of_text : -1, o.document_positions};
}

bool is_of_run(const std::filesystem::path& folder, const std::string& out) {
    const std::filesystem::path named = std::filesystem::absolute(folder / "").parent_path();   // a checkpoint may be a link
    const std::filesystem::path run = resolved(out);                                             // which need not exist yet
    return resolved(named.parent_path()) == run || resolved(folder).parent_path() == run;
}

std::optional<std::filesystem::path> chosen_checkpoint(const Options& o) {
    Descriptor lock;
    if (o.resume && aside_interrupted(o.out)) {
        lock = lock_run(o.out);
        undo_interrupted(o.out);
    }
    if (!o.checkpoint.empty()) return given_checkpoint(o);
    return o.resume ? find_checkpoint(o.out) : std::nullopt;
}

std::optional<std::filesystem::path> choose_checkpoint(const Options& o, Ranks& ranks, Descriptor& lock) {
    std::optional<std::filesystem::path> chosen;
    std::error_code not_there;
    ranks.first_does("choosing a checkpoint", 0, [&] {
        if (!o.evaluate && !o.dry_run && std::filesystem::is_directory(o.out, not_there)) lock = lock_run(o.out);
        if (lock.is_open()) undo_interrupted(o.out);
        chosen = chosen_checkpoint(o);
    });
    const std::string path = ranks.broadcast(chosen ? chosen->string() : "");
    if (!path.empty()) chosen = path;
    return chosen;
}

Origin find_origin(const Options& o, const Variants& variants, const std::optional<std::filesystem::path>& checkpoint, bool prints) {
    Origin origin;
    origin.resume_from = checkpoint;
    if (!origin.resume_from && !is_preset(o.model) && std::filesystem::is_directory(o.model)) origin.weights_from = o.model;
    if (origin.weights_from && !o.evaluate && is_of_run(*origin.weights_from, o.out))
        fail(Exit::usage, "--model ", o.model, " is inside --out, where a new run moves earlier checkpoints aside; give another --out, or "
             "resume with --checkpoint ", o.model);
    origin.config = origin.folder() ? load_config(*origin.folder()) : preset(o.model);
    if (origin.resume_from && o.model_given && !std::filesystem::is_directory(o.model))
        require_shape(origin, preset(o.model), o.model);
    choose_qk_norm(origin, o);
    require_variant(origin, variants.own.name, o, prints);
    if (origin.folder()) require_known_settings(origin.config, variants, (*origin.folder() / "config.json").string());
    try {
        complete_layers(origin.config, variants);
    } catch (const Error& error) {
        fail(error.code, origin.folder().value_or(o.model).string(), ": ", error.what());
    }
    for (const auto& [key, value] : o.settings) origin.config.settings[key] = value;
    choose_layers(origin, o, variants, prints);
    require_within_sequence(settings_of(variants.own), o.settings, origin.config, o.seq_len);
    origin.config.max_positions =
        std::max(origin.config.max_positions, o.seq_len);   // RoPE has no limit; this records how far the model was trained
    return origin;
}

std::vector<Fact> facts_of_options(const Options& o, const char* variant) {
    std::vector<Fact> facts = {{"the program", std::string("train_") + variant + " of commit " + source_commit()}};
    for (auto [key, value] : values_of(o.resolved)) {
        static const std::set<std::string> own = {"device", "threads", "out", "watchdog-seconds", "plot", "eval-out", "eval-log"};
        static const std::set<std::string> paths = {"train-data", "val-data", "eval-data", "checkpoint"};
        if (own.contains(key)) continue;
        if (paths.contains(key) && value != "\"\"") value = "given";
        if (key == "model" && !is_preset(o.model)) value = "a folder";
        facts.push_back({"--" + key, value});
    }
    if (!o.checkpoint.empty())   // all ranks start from rank 0's
        facts.push_back({"the hash of --checkpoint's manifest.json", hash_of_folder(o.checkpoint), Exit::checkpoint});
    return facts;
}

/// Ranks with different ids for the same bytes would count different bytes, and read different prompts and items.
static std::string hash_of(const Tokenizer* tokenizer) {
    if (!tokenizer) return "none";
    Hasher files;
    for (const std::string& text : {tokenizer->json(), tokenizer->config_json()}) files.add(text.c_str(), text.size() + 1);
    return hexadecimal(files.digest());
}

std::vector<Fact> facts_of_start(const Origin& origin, const Data& data) {
    std::vector<Fact> facts;
    const auto config = parse_json(config_to_json_line(origin.config));
    for (const auto& [key, value] : config.items())
        if (key != "engine_tokenizer") facts.push_back({"the model's " + key, written(value)});   // that may be a path
    for (const auto& [name, stream] : {std::pair("training", data.train.get()), {"validation", data.val.get()}})
        facts.push_back({std::string("the fingerprint of the ") + name + " data", stream ? stream->fingerprint() : "none"});
    facts.push_back({"the hash of the tokenizer", hash_of(data.tokenizer.get())});
    for (const EvaluationTask& task : data.tasks) {
        Hasher items;
        for (const EvaluationItem& item : task.items) {
            items.add(&item.gold, sizeof item.gold);
            for (const Answer& answer : item.answers) items.add(answer.tokens.data(), answer.tokens.size() * sizeof answer.tokens[0]);
        }
        facts.push_back({"the hash of the items of " + task.name, hexadecimal(items.digest())});
    }
    const auto number = [](int64_t n) { return std::to_string(n); };
    facts.push_back({"the number of steps", number(data.steps)});
    facts.push_back({"the number of tokens per step", number(data.tokens_per_step)});
    facts.push_back({"the number of warm-up steps", number(data.schedule.warmup)});
    if (origin.folder())
        facts.push_back({"the hash of the starting folder's manifest.json", hash_of_folder(*origin.folder()), Exit::checkpoint});
    return facts;
}

void require_memory(const std::vector<MemoryUse>& plan, const Options& o, size_t available, int sharers) {
    const size_t needed = total_bytes(plan), most = available / sharers;
    const MemoryUse& taken = plan.back();   // in use before training begins
    const size_t space = address_space_left();
    if (needed - taken.bytes > space)
        fail(Exit::out_of_memory, "training needs ", human_bytes(double(needed - taken.bytes)),
             " more, and the limit on address space (ulimit -v) leaves ", human_bytes(double(space)),
             ": raise it, or lower --batch-size or --seq-len");
    if (needed <= most) return;
    fail(Exit::out_of_memory, "training needs ", human_bytes(double(needed)), " on each of ", sharers, " ranks, ",
         human_bytes(double(taken.bytes)), " of it for ", taken.what, ", and the device has ", human_bytes(double(available)),
         ": lower --batch-size or --seq-len",
         o.recompute == 2 ? "" : o.recompute ? ", or set --recompute 2" : ", or set --recompute 1 or 2",
         o.zero_stage || sharers == 1 ? "" : ", or --zero-stage 1",
         needed - taken.bytes <= most ? ", or stop other programs on it" : "");
}
