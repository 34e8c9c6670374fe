// Checkpoints: round trips, every kind of damage, weights and tokenizers of other programs.
#include <cstring>
#include <limits>

#include "model/base/hash.h"
#include "model/base/json.h"
#include "model/checkpoint/safetensors.h"
#include "tests/tiny_run.h"
#include "tests/tokenizer_files.h"

namespace {

/// Overwrites one float of a tensor in a safetensors file.
void plant(const fs::path& path, const std::string& tensor, size_t index, float value) {
    std::string bytes = read_text(path);
    const SafetensorsFile file(path);
    const size_t data = 8 + *reinterpret_cast<const uint64_t*>(bytes.data());
    const auto* first = file.tensors()[0].bytes.data();
    const size_t offset = data + size_t(file.find(tensor)->bytes.data() - first) + index * sizeof(float);
    std::memcpy(bytes.data() + offset, &value, sizeof(float));
    fs::remove(path);   // the mapping above keeps the old file
    write_text(path, bytes);
}

/// Changes the list of files in a checkpoint's manifest, with its hash.
template <class Change>
void change_manifest(const fs::path& path, Change change) {
    nlohmann::json manifest = parse_json(read_text(path / "manifest.json"));
    change(manifest["files"]);
    manifest["files_xxh3"] = hexadecimal(xxh3(written(manifest["files"])));
    write_text(path / "manifest.json", written(manifest, 1) + "\n");
}

/// A folder of weights, and tensors that another program may have written there.
struct ForeignWeights : RunFolder {
    std::vector<float> weights = std::vector<float>(run.list.size(), -1);
    const std::vector<float> x = std::vector<float>(64, 0.5f);
    const TensorToWrite norm = {"model.norm.weight", {4}, x.data()}, query = {"model.layers.0.self_attn.q_proj.weight", {3, 5}, x.data()},
                        embedding = {"model.embed_tokens.weight", {16, 4}, x.data()};

    /// The tensors that were initialised.
    std::vector<std::string> load() { return load_weights(folder.path(), run.list, 5, weights.data()); }
    std::string refusal() { return sentence_of([&] { load(); }); }
    void write(const std::string& name, const std::vector<TensorToWrite>& tensors) {
        fs::remove(folder / name);
        write_safetensors(folder / name, tensors);
    }
};

}   // namespace

TEST_CASE_METHOD(RunFolder, "moments of an earlier version's checkpoint are found by their former name", "[checkpoint]") {
    const fs::path path = run.save(folder.path(), 3);
    fs::rename(path / "optimizer.state", path / "optimizer.safetensors");
    change_manifest(path, [](nlohmann::json& files) {
        files["optimizer.safetensors"] = files["optimizer.state"];
        files.erase("optimizer.state");
    });
    CHECK_NOTHROW(verify_checkpoint(path));
    CHECK_NOTHROW(verify_file(path, moments_file(path).filename()));
    std::vector<float> exp_avg(run.list.size()), exp_avg_sq = exp_avg;
    CHECK(load_state(path, run.list, exp_avg.data(), exp_avg_sq.data()).step == 3);
    CHECK(exp_avg == run.exp_avg);
    CHECK(exp_avg_sq == run.exp_avg_sq);
}

TEST_CASE_METHOD(RunFolder, "the data of an earlier version's checkpoint are described as now", "[checkpoint]") {
    for (const char* before : {"", "0123456789abcdef, "}) {
        run.state.train_data = std::string(before) + "bytes 29b8a0a59b21ffad, in order";
        CHECK(load_state(run.save(folder.path(), 3), run.list, nullptr, nullptr).train_data == "bytes 29b8a0a59b21ffad, in order");
    }
}

TEST_CASE_METHOD(RunFolder, "a checkpoint comes back to the bit", "[checkpoint]") {
    const fs::path path = run.save(folder / "a/b", 123);
    CHECK(path.filename().string() == "step_00000123");
    // Inference servers load every file that ends in .safetensors, .bin, .pt, .pth or .ckpt: only the model's weights may.
    CHECK(names_in(path) == std::vector<std::string>{"README.md", "config.json", "generation_config.json", "manifest.json",
                                                     "model.safetensors", "optimizer.state", "tokenizer.json",
                                                     "tokenizer_config.json", "trainer_state.json"});
    CHECK_NOTHROW(verify_checkpoint(path));
    CHECK(config_to_json(load_config(path)) == config_to_json(run.config));

    std::vector<float> weights(run.list.size(), -1), exp_avg = weights, exp_avg_sq = weights;
    CHECK(load_weights(path, run.list, 9, weights.data()).empty());
    const TrainerState state = load_state(path, run.list, exp_avg.data(), exp_avg_sq.data());
    CHECK(weights == run.weights);
    CHECK(exp_avg == run.exp_avg);
    CHECK(exp_avg_sq == run.exp_avg_sq);
    CHECK(weights_hash(run.list, weights.data()) == weights_hash(run.list, run.weights.data()));
    CHECK(state.step == 123);
    CHECK(state.tokens == 12345);
    CHECK(state.seed == UINT64_MAX);
    CHECK(state.data_rows == 77);
    CHECK(state.options_json == run.state.options_json);
    CHECK(state.last_loss == 1.0 / 3);
    CHECK(std::isnan(state.last_val_loss));
}

TEST_CASE_METHOD(RunFolder, "every flipped bit, cut, zeroed or deleted file is caught and the checkpoint before is used", "[checkpoint]") {
    run.config.variant = "sinks";   // whose folder has Python files too
    const fs::path older = run.save(folder.path(), 10), newer = run.save(folder.path(), 20);
    const auto caught = [&](const std::string& name, const std::string& what) {
        INFO(name << " " << what);
        CHECK(contains(sentence_of([&] { verify_checkpoint(newer); }), name));
        complaints.clear();
        CHECK(latest(folder.path()) == older.string());
        REQUIRE(complaints.size() == 1);
        CHECK(contains(complaints[0], "step_00000020"));
    };
    for (const std::string& name : names_in(newer)) {
        if (name == "README.md") continue;   // for people to edit
        const std::string sound = read_text(newer / name);
        const size_t stride = std::max<size_t>(1, sound.size() / 40);
        for (size_t i = 0; i < sound.size(); i += stride) {
            std::string damaged = sound;
            damaged[i] = char(damaged[i] ^ (1 << (i / stride % 8)));
            write_text(newer / name, damaged);
            caught(name, "with a flipped bit in byte " + std::to_string(i));
        }
        for (size_t size : {size_t(0), size_t(5), sound.size() / 2, sound.size() - 1}) {
            write_text(newer / name, sound.substr(0, size));
            caught(name, "cut to " + std::to_string(size) + " bytes");
        }
        write_text(newer / name, std::string(sound.size(), '\0'));
        caught(name, "zeroed");
        write_text(newer / name, sound + '\0');
        caught(name, "extended");
        fs::remove(newer / name);
        caught(name, "deleted");
        write_text(newer / name, sound);
        CHECK_NOTHROW(verify_checkpoint(newer));
    }
}

TEST_CASE_METHOD(RunFolder, "damage is named by tensor", "[checkpoint]") {
    const fs::path path = run.save(folder.path(), 1);
    plant(path / "model.safetensors", "model.norm.weight", 2, 1.5f);
    CHECK(contains(sentence_of([&] { verify_checkpoint(path); }), "model.safetensors: tensor \"model.norm.weight\""));
    const fs::path second = run.save(folder.path(), 2);
    plant(second / "optimizer.state", "exp_avg_sq.model.embed_tokens.weight", 63, 1.5f);
    CHECK(contains(sentence_of([&] { verify_checkpoint(second); }), "optimizer.state: tensor \"exp_avg_sq.model.embed_tokens.weight\""));
}

TEST_CASE_METHOD(RunFolder, "nothing to resume from is no error", "[checkpoint]") {
    CHECK(latest(folder / "absent").empty());
    fs::create_directories(folder / "step_");
    fs::create_directories(folder / "step_12x");
    fs::create_directories(folder / "step_-1");
    fs::create_directories(folder / "step_99999999999999999999999");
    CHECK(latest(folder.path()).empty());
    CHECK(complaints.empty());
    fs::create_directories(folder / "step_00000005");
    CHECK(latest(folder.path()).empty());
    REQUIRE(complaints.size() == 1);
    CHECK(contains(complaints[0], "manifest.json"));
}

TEST_CASE_METHOD(RunFolder, "files beside the weights are those of the manifest, wherever they are read", "[checkpoint]") {
    write_text(folder / "x_tokenizer.json", small_tokenizer().dump());
    run.config.tokenizer = (folder / "x_tokenizer.json").string();
    const fs::path path = run.save(folder / "out", 1, open_tokenizer(run.config.tokenizer).get());
    CHECK_NOTHROW(load_config(path));
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
        const std::string sound = read_text(path / name);
        write_text(path / name, sound + " ");
        const std::string sentence = sentence_of([&] { load_config(path); });
        CHECK((contains(sentence, std::string(name) + ": ") && contains(sentence, "remove the folder's manifest.json")));
        fs::remove(path / name);
        CHECK(contains(sentence_of([&] { load_config(path); }), std::string(name) + ": "));
        write_text(path / name, sound);
    }
    std::string other = read_text(path / "config.json");
    other.replace(other.find("1e-06"), 5, "1e-05");
    write_text(path / "config.json", other);
    CHECK(contains(sentence_of([&] { load_config(path); }), "config.json"));
    fs::remove(path / "manifest.json");
    CHECK(load_config(path).norm_eps == 1e-5);
}

TEST_CASE_METHOD(RunFolder, "a changed manifest promises no less than before", "[checkpoint]") {
    const fs::path path = run.save(folder.path(), 1);
    const std::string sound = read_text(path / "manifest.json");
    write_text(path / "config.json", read_text(path / "config.json") + " ");
    const auto refused = [&](const std::string& text) {
        write_text(path / "manifest.json", text);
        INFO(text.substr(0, 200));
        CHECK(contains(sentence_of([&] { load_config(path); }), (path / "manifest.json").string() + ": is damaged"));
    };
    for (const char* key : {"files_xxh3", "files", "format"}) {
        nlohmann::json object = nlohmann::json::parse(sound);
        object[key] = nullptr;
        refused(object.dump(1) + "\n");
        object.erase(key);
        refused(object.dump(1) + "\n");
        object[std::string(key) + "x"] = "0123456789abcdef";
        refused(object.dump(1) + "\n");
    }
    refused("{}");   // beside trainer_state.json nothing else can be meant
    fs::remove(path / "trainer_state.json");
    write_text(path / "manifest.json", "{\"name\": \"of a web page\"}");
    CHECK_NOTHROW(load_config(path));
}

TEST_CASE_METHOD(RunFolder, "a manifest names files of its own folder only", "[checkpoint]") {
    const fs::path path = run.save(folder / "run", 1);
    const std::string sound = read_text(path / "manifest.json");
    fs::copy(path / "config.json", folder / "run/outside");
    for (const std::string& name : {std::string("../outside"), (folder / "run/outside").string(), std::string("a/../config.json"),
                                    std::string(".."), std::string()}) {
        write_text(path / "manifest.json", sound);
        change_manifest(path, [&](nlohmann::json& files) { files[name] = files["config.json"]; });
        INFO(name);
        CHECK(contains(sentence_of([&] { verify_checkpoint(path); }), "is not the name of a file in the manifest's folder"));
        CHECK(contains(sentence_of([&] { load_config(path); }), "is not the name of a file in the manifest's folder"));
    }
    write_text(path / "manifest.json", sound);
    change_manifest(path, [](nlohmann::json& files) { files.erase("config.json"); });
    CHECK(contains(sentence_of([&] { load_config(path); }), "does not list config.json"));
    write_text(path / "manifest.json", sound);
    fs::remove(path / "config.json");
    fs::create_symlink("../outside", path / "config.json");
    CHECK(contains(sentence_of([&] { verify_checkpoint(path); }), "config.json: is a link to"));
    CHECK(contains(sentence_of([&] { load_config(path); }), "outside the manifest's folder"));
    fs::remove(path / "config.json");
    fs::rename(folder / "run/outside", path / "config.json");
    fs::create_directory_symlink(path, folder / "link");   // the folder itself may be one
    CHECK_NOTHROW((verify_checkpoint(folder / "link"), load_config(folder / "link")));
}

TEST_CASE_METHOD(RunFolder, "generation_config.json comes back byte for byte, and a broken one is refused", "[checkpoint]") {
    const fs::path first = run.save(folder / "run", 1);
    CHECK(load_config(first).generation_config.empty());   // our own follows config.json
    fs::remove(first / "manifest.json");
    const std::string theirs = "{\"eos_token_id\":[63, 23],  \"top_p\": 0.8}";
    write_text(first / "generation_config.json", theirs);
    run.config = load_config(first);
    const fs::path second = run.save(folder / "run", 2);
    CHECK(read_text(second / "generation_config.json") == theirs);
    run.config = load_config(second);
    CHECK(read_text(run.save(folder / "run", 3) / "generation_config.json") == theirs);
    for (const char* broken : {"", "{", "[]", "{\"top_k\": -1}"}) {
        write_text(first / "generation_config.json", broken);
        CHECK(contains(sentence_of([&] { load_config(first); }), "generation_config.json"));
    }
}

TEST_CASE_METHOD(ForeignWeights, "a tied model's head is the embedding, alone or as a copy of it", "[checkpoint]") {
    write("model.safetensors", {norm, query, {"lm_head.weight", {16, 4}, x.data()}});   // a tied head stored alone is the embedding
    CHECK(load().empty());
    CHECK((weights[0] == 0.5f && weights[run.list.find("model.norm.weight")->slot.offset] == 0.5f));
    std::vector<float> y = x;
    write("model.safetensors", {norm, query, embedding, {"lm_head.weight", {16, 4}, y.data()}});   // or a copy of it
    CHECK(load().empty());
    y[63] = std::nextafter(0.5f, 1.0f);
    write("model.safetensors", {norm, query, embedding, {"lm_head.weight", {16, 4}, y.data()}});
    for (const char* part : {"\"lm_head.weight\"", "\"model.embed_tokens.weight\"", "tie_word_embeddings"})
        CHECK(contains(refusal(), part));
    write("model.safetensors", {norm, query, embedding, {"lm_head.weight", {4, 16}, x.data()}});
    CHECK(contains(refusal(), "lm_head.weight"));
}

TEST_CASE_METHOD(ForeignWeights, "weights of other programs: parts, other names, other shapes, missing tensors", "[checkpoint]") {
    std::vector<float> fresh = weights;
    initialise(run.list, 5, fresh.data());
    CHECK(load().size() == 3);   // no weights at all: training from scratch
    CHECK(weights == fresh);
    write("model.safetensors", {norm, query});
    CHECK(contains(refusal(), "its weights lack the tensor \"model.embed_tokens.weight\""));
    run.list.add_mechanism([&] { run.list.add("model.layers.0.self_attn.new.scale", {2}, ones(), Decay::no); });
    weights.resize(run.list.size());
    write("model.safetensors", {norm, query, embedding});
    CHECK(load() == std::vector<std::string>{"model.layers.0.self_attn.new.scale"});   // a mechanism's own may be new

    write("model.safetensors", {{"model.extra.weight", {4}, x.data()}});
    CHECK(contains(refusal(), "no tensor \"model.extra.weight\""));
    write("model.safetensors", {{"model.norm.weight", {2, 2}, x.data()}});
    for (const char* part : {"\"model.norm.weight\"", "[2, 2]", "[4]"}) CHECK(contains(refusal(), part));
    for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> y = {1, 2, bad, bad};
        write("model.safetensors", {{"model.norm.weight", {4}, y.data()}});
        CHECK(contains(refusal(), "tensor \"model.norm.weight\" holds"));
        CHECK(contains(refusal(), "index 2"));
    }

    fs::remove(folder / "model.safetensors");
    write("part-1.safetensors", {norm});
    write("part-2.safetensors", {embedding});
    const auto refused = [&](const nlohmann::json& map, const std::string& part) {
        write_text(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
        CHECK(contains(refusal(), part));
    };
    const nlohmann::json in_both = {{"model.norm.weight", "part-1.safetensors"}, {"model.embed_tokens.weight", "part-2.safetensors"}};
    refused(in_both, "its weights lack the tensor \"model.layers.0.self_attn.q_proj.weight\"");
    refused({{"model.norm.weight", "part-1.safetensors"}, {"model.embed_tokens.weight", "part-1.safetensors"}},
            "\"model.embed_tokens.weight\" should be in part-1.safetensors");
    refused({{"model.norm.weight", "part-3.safetensors"}}, "part-3.safetensors: cannot be opened");
    refused({{"model.norm.weight", "../part-1.safetensors"}}, "model.norm.weight");
    refused({{"model.norm.weight", 3}}, "model.norm.weight");
    refused({"model.norm.weight"}, "weight_map");
    write("part-2.safetensors", {norm, embedding});
    refused(in_both, "in another part too");

    for (const char* name : {"model.safetensors.index.json", "part-1.safetensors", "part-2.safetensors"}) fs::remove(folder / name);
    CHECK(load().size() == 4);
}

TEST_CASE_METHOD(ForeignWeights,
                 "a folder without model.safetensors starts from scratch only where nothing in it may hold weights", "[checkpoint]") {
    fs::create_directories(folder / ".git/objects");
    fs::create_directories(folder / "__pycache__");
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
                             "vocab.json", "vocab.bpe", "merges.txt", "chat_template.jinja", "README.md", "LICENSE",
                             "modeling_x.py", ".gitattributes", "a.png"})
        write_text(folder / name, "x");
    CHECK(load().size() == 3);
    for (const char* name : {"tf_model.h5", "flax_model.msgpack", "model.ckpt", "model.onnx", "model.bin", "pytorch_model.bin",
                             "model.safetensors.part", "model.safetensors.incomplete", "model.SAFETENSORS",
                             "model.safetensors.aria2", "optimizer.safetensors", "optimizer.state", "optimizer.pt", "pytorch_model.bin.index.json",
                             "README.safetensors", "vocab.bin", "weights"}) {
        INFO(name);
        write_text(folder / name, "x");
        CHECK(contains(refusal(), std::string("but ") + name + ","));
        CHECK(contains(sentence_of([&] { has_weights(folder.path()); }), name));
        fs::remove(folder / name);
    }
    for (const char* name : {"model.safetensors", "model.safetensors.index.json", "chat_template.json"}) {
        INFO(name);
        fs::create_symlink("/nowhere/of_it", folder / name);
        CHECK(contains(refusal(), std::string(name) + ": is a link to /nowhere/of_it, which is not there"));
        fs::remove(folder / name);
    }
    fs::create_directories(folder / "original");
    CHECK(contains(refusal(), "but original,"));
}

TEST_CASE_METHOD(RunFolder, "trainer state and moments must be complete", "[checkpoint]") {
    const fs::path path = run.save(folder.path(), 1);
    std::vector<float> m(run.list.size()), v = m;
    const auto load = [&] { load_state(path, run.list, m.data(), v.data()); };
    const std::string sound = read_text(path / "trainer_state.json");
    for (const char* key : {"step", "tokens", "seed", "data_rows", "options"})
        for (const char* value : {"-1", "1.5", "[1]", "99999999999999999999"}) {
            nlohmann::json object = nlohmann::json::parse(sound);
            object[key] = nlohmann::json::parse(value);
            write_text(path / "trainer_state.json", object.dump());
            const std::string sentence = sentence_of(load);
            CHECK((contains(sentence, "trainer_state.json") && contains(sentence, key)));
        }
    write_text(path / "trainer_state.json", sound);
    CHECK_NOTHROW(load());

    run.list.add("model.new.weight", {2}, zeros(), Decay::no);
    m.resize(run.list.size()), v = m;
    CHECK(contains(sentence_of(load), "\"exp_avg.model.new.weight\" is missing"));
    TensorList fewer;
    fewer.add("model.norm.weight", {4}, ones(), Decay::no);
    CHECK(contains(sentence_of([&] { load_state(path, fewer, m.data(), v.data()); }), "model.embed_tokens.weight"));
}

TEST_CASE("moments have torch's names, and are those of one optimiser", "[checkpoint]") {
    TemporaryFolder folder;
    TinyRun adamw, muon;
    muon.list = TensorList(Stored::as_computed, Optimizer::muon);
    for (const Tensor& t : adamw.list) {
        if (t.shape.size() == 2 && t.name != "model.embed_tokens.weight") muon.list.add_hidden_matrix(t.name, t.shape, t.init);
        else muon.list.add(t.name, t.shape, t.init, Decay::yes);
        muon.list.align();
    }
    const std::string matrix = "model.layers.0.self_attn.q_proj.weight";
    const size_t size = muon.list.size();
    muon.weights.assign(size, 1), muon.exp_avg.assign(size, 2), muon.exp_avg_sq.assign(size, 3);
    const fs::path by_adamw = adamw.save(folder.path(), 1), by_muon = muon.save(folder.path(), 2);
    const SafetensorsFile file(by_muon / "optimizer.state");
    CHECK((file.find("momentum_buffer." + matrix) && !file.find("exp_avg." + matrix) && !file.find("exp_avg_sq." + matrix)));
    CHECK((file.find("exp_avg.model.norm.weight") && file.find("exp_avg_sq.model.norm.weight")));
    std::vector<float> m(size, -1), v = m;
    CHECK(load_state(by_muon, muon.list, m.data(), v.data()).step == 2);
    const Slot slot = muon.list.find(matrix)->slot, norm = muon.list.find("model.norm.weight")->slot;
    CHECK((m[slot.offset] == 2 && v[slot.offset] == 0 && m[norm.offset] == 2 && v[norm.offset] == 3));
    const auto refused = [&](const fs::path& path, const TensorList& list) {
        return sentence_of([&] { load_state(path, list, m.data(), v.data()); });
    };
    CHECK(contains(refused(by_muon, adamw.list), "moments of --optimizer muon; resume with that"));
    CHECK(contains(refused(by_adamw, muon.list), "moments of --optimizer adamw; resume with that"));
    CHECK(load_state(by_muon, adamw.list, nullptr, nullptr).step == 2);   // an evaluation reads no moments
}

TEST_CASE_METHOD(RunFolder, "a checkpoint carries its tokenizer, wherever it is moved", "[checkpoint]") {
    const std::string text = small_tokenizer().dump(), config_text = R"({"eos_token": "<|endoftext|>"})";
    write_text(folder / "x_tokenizer.json", text);
    write_text(folder / "x_tokenizer_config.json", config_text);
    fs::create_directories(folder / "source");
    write_text(folder / "source/merges.txt", "a b");
    write_text(folder / "source/tokenizer.json", "{}");
    run.config.tokenizer = (folder / "x_tokenizer.json").string();
    const auto tokenizer = open_tokenizer(run.config.tokenizer);
    run.config.end_of_text = int(tokenizer->end_of_text());
    const fs::path path = run.save(folder / "out", 1, tokenizer.get(), folder / "source");
    CHECK_FALSE(fs::exists(path / "merges.txt"));   // the source's files are of another tokenizer
    fs::remove(folder / "x_tokenizer.json");
    fs::rename(path, folder / "moved");
    const Config back = load_config(folder / "moved");
    CHECK(back.tokenizer == (folder / "moved/tokenizer.json").string());
    CHECK(back.end_of_text == 259);
    CHECK(open_tokenizer(back.tokenizer)->json() == text);
    CHECK(open_tokenizer(back.tokenizer)->config_json() == config_text);
    CHECK(contains(read_text(folder / "moved/generation_config.json"), "\"eos_token_id\": 259"));
    CHECK_NOTHROW(verify_checkpoint(folder / "moved"));

    write_text(folder / "source/tokenizer.json", text);
    const fs::path with_source = run.save(folder / "out", 2, tokenizer.get(), folder / "source");
    CHECK(read_text(with_source / "merges.txt") == "a b");
    CHECK_NOTHROW(verify_checkpoint(with_source));
    run.config.tokenizer = "";   // unknown: all files of the source go along
    const fs::path unknown = run.save(folder / "out", 3, nullptr, folder / "source");
    CHECK((read_text(unknown / "merges.txt") == "a b" && read_text(unknown / "tokenizer.json") == text));
}
