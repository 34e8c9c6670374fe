#include "model/generate/prompts.h"

#include "data/tokenizers/utf8.h"
#include "model/base/error.h"
#include "model/base/json.h"

using nlohmann::json;

Prompt make_prompt(const std::string& text, const std::vector<int64_t>& ids, const Tokenizer* tokenizer, int V, int64_t positions,
                   const std::string& what) {
    std::vector<uint32_t> encoded;
    if (!text.empty()) tokenizer->encode(text, encoded);
    Prompt prompt;
    prompt.ids.assign(encoded.begin(), encoded.end());
    for (int64_t id : ids) {
        if (id < 0 || id >= V) fail(Exit::usage, what, ": ", id, " is not in the model's vocabulary 0..", V - 1);
        prompt.ids.push_back(int32_t(id));
    }
    if (prompt.ids.empty() && tokenizer) prompt.ids.push_back(int32_t(tokenizer->end_of_text()));
    if (prompt.ids.empty()) fail(Exit::usage, what, ": is empty; give at least one id");
    if (int64_t(prompt.ids.size()) > positions)
        fail(Exit::usage, what, ": the prompt has ", prompt.ids.size(), " tokens, but the model reads ", positions,
             " (max_position_embeddings); shorten it");
    return prompt;
}

/// The ids under "prompt_ids". Exit::data if they are something else.
static std::vector<int64_t> ids_of(const json& object, const std::string& where) {
    std::vector<int64_t> ids;
    const json& list = object["prompt_ids"];
    if (!list.is_array()) fail(Exit::data, where, ": \"prompt_ids\" is not a list of ids");
    for (const json& id : list) {
        if (!id.is_number_integer()) fail(Exit::data, where, ": \"prompt_ids\" has ", shown(id), ", which is not an id");
        ids.push_back(id.get<int64_t>());
    }
    return ids;
}

static Prompt prompt_of(const json& object, const std::string& where, const Tokenizer* tokenizer, int V, int64_t positions) {
    const bool as_text = object.contains("prompt"), as_ids = object.contains("prompt_ids");
    if (as_text == as_ids) fail(Exit::data, where, ": expected either \"prompt\" or \"prompt_ids\"");
    if (as_text && !object["prompt"].is_string()) fail(Exit::data, where, ": \"prompt\" is ", shown(object["prompt"]), ", expected text");
    if (as_text && !tokenizer)
        fail(Exit::data, where, ": has a \"prompt\", but the checkpoint has no tokenizer.json: give \"prompt_ids\"");
    Prompt prompt;
    try {
        prompt = as_text ? make_prompt(object["prompt"].get<std::string>(), {}, tokenizer, V, positions, where)
                         : make_prompt("", ids_of(object, where), tokenizer, V, positions, where);
    } catch (const Error& error) {
        fail(Exit::data, error.what());
    }
    if (object.contains("seed")) {
        if (!object["seed"].is_number_unsigned()) fail(Exit::data, where, ": \"seed\" is ", shown(object["seed"]), ", expected 0, 1, ...");
        prompt.seed = object["seed"].get<uint64_t>();
    }
    return prompt;
}

std::vector<Prompt> read_prompts(const std::string& path, const Tokenizer* tokenizer, int V, int64_t positions) {
    std::vector<Prompt> prompts;
    each_json_line(path, [&](const json& object, const std::string& where, int64_t) {
        prompts.push_back(prompt_of(object, where, tokenizer, V, positions));
        prompts.back().line = written(object);
        return true;
    });
    if (prompts.empty()) fail(Exit::data, path, ": has no prompts; a line is {\"prompt\": \"We the people\"}");
    return prompts;
}

std::string line_with_text(const Prompt& prompt, const std::vector<int32_t>& written_ids, const Tokenizer* tokenizer, TextEnd end) {
    json object = parse_json(prompt.line);
    for (const char* of_before : {"text", "ids", "stopped"}) object.erase(of_before);   // if the file is another run's --out
    if (tokenizer) object["text"] = replace_invalid_utf8(tokenizer->decode(written_ids));
    else object["ids"] = written_ids;
    object["tokens"] = written_ids.size(), object["ended"] = end == TextEnd::end_of_text;
    if (end == TextEnd::stopped) object["stopped"] = true;
    return written(object);
}
