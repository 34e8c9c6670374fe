#include "data/evaluation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "data/files.h"
#include "data/shard.h"
#include "data/tokenizers/utf8.h"
#include "model/base/error.h"
#include "model/base/json.h"

namespace {

using nlohmann::json;

int code_points(const std::string& text) {
    return int(std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; }));
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
    std::vector<uint32_t> ids;
    tokenizer.encode(text, ids);
    return {ids.begin(), ids.end()};
}

// Unicode white space, as in Python's str.isspace().
bool is_white_space(char32_t c) {
    const auto is_one_of = [c](std::u32string_view set) { return set.find(c) != set.npos; };
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || (c >= 0x2000 && c <= 0x200A) ||
           is_one_of(U"\x85\xA0\x1680\x2028\x2029\x202F\x205F\x3000");
}

// Length in bytes of valid UTF-8 without trailing white space.
size_t without_white_space_at_end(std::string_view text) {
    const size_t bytes = text.size();
    size_t end = 0;
    while (!text.empty())
        if (!is_white_space(take_code_point(text))) end = bytes - text.size();
    return end;
}

// Trailing white space of a context belongs to the answer: "he " + "runs" is " runs" after "he", as in running text.
Answer encode_pair(const Tokenizer& tokenizer, std::string context, const std::string& answer) {
    const size_t end = without_white_space_at_end(context);
    const bool spaced = context.empty() || end < context.size();
    const std::string tail = context.substr(end) + (spaced ? answer : " " + answer);
    context.resize(end);
    Answer both;
    both.characters = code_points(answer);
    both.tokens = encoded(tokenizer, context + tail);
    if (context.empty()) both.tokens.insert(both.tokens.begin(), int32_t(tokenizer.end_of_text()));
    both.begin = context.empty() ? 1 : int(encoded(tokenizer, context).size());
    return both;
}

constexpr const char* of_an_item =
    "; an item has \"query\", \"choices\" and \"gold\", or \"context_options\", \"continuation\" and \"gold\"";

std::vector<std::string> strings_in(const json& object, const char* key, const std::string& where) {
    std::vector<std::string> found;
    if (const json& list = required_field(object, key, where, Exit::data, of_an_item); list.is_array())
        for (const json& one : list) found.push_back(one.is_string() ? one.get<std::string>() : "");
    if (found.size() < 2 || std::count(found.begin(), found.end(), ""))
        fail(Exit::data, where, ": \"", key, "\" is not a list of two or more non-empty strings");
    return found;
}

// One line of a .jsonl file. `labels` becomes its choices, or nothing if it has several contexts.
EvaluationItem read_item(const json& object, const std::string& where, const Tokenizer& tokenizer, std::vector<std::string>& labels) {
    const bool by_context = object.contains("context_options");
    const std::string shared = string_field(object, by_context ? "continuation" : "query", where, Exit::data, of_an_item);
    labels = strings_in(object, by_context ? "context_options" : "choices", where);
    if (by_context && shared.empty()) fail(Exit::data, where, ": an answer is empty: there is nothing to score");
    EvaluationItem item;
    for (const std::string& one : labels)
        item.answers.push_back(encode_pair(tokenizer, by_context ? one : shared, by_context ? shared : one));
    if (by_context) labels.clear();
    const json& gold = required_field(object, "gold", where, Exit::data, of_an_item);
    const int64_t right = gold.is_number_integer() ? gold.get<int64_t>() : -1;
    if (right < 0 || right >= int64_t(item.answers.size()))
        fail(Exit::data, where, ": \"gold\" is ", written(gold), ", expected a whole number from 0 to ", item.answers.size() - 1);
    item.gold = int(right);
    return item;
}

EvaluationTask read_json_lines(const std::string& path, const Tokenizer& tokenizer, int64_t limit) {
    EvaluationTask task;
    bool same = true;
    each_json_line(path, [&](const json& object, const std::string& where, int64_t number) {
        std::vector<std::string> labels;
        task.items.push_back(read_item(object, where, tokenizer, labels));
        task.items.back().line = number;
        if (task.items.size() == 1) task.labels = labels;
        same = same && task.labels == labels;
        return int64_t(task.items.size()) != limit;
    });
    if (!same || task.items.size() < 2) task.labels.clear();
    return task;
}

// The next item of llm.c's layout in `rest`: marker, size, index, gold, number of answers; then context and answers, each after its
// number of tokens.
EvaluationItem read_item(std::span<const uint32_t>& rest, uint32_t marker, const std::string& where, const Tokenizer* tokenizer) {
    const auto take = [&](size_t count) {
        if (count > rest.size()) fail(Exit::data, where, ": needs ", count, " more numbers, but the file has ", rest.size());
        const std::span<const uint32_t> taken = rest.first(count);
        rest = rest.subspan(count);
        return taken;
    };
    const auto begin = take(5);
    if (begin[0] != marker) fail(Exit::data, where, ": does not begin with the marker of an item");
    EvaluationItem item;
    item.gold = int(begin[3]);
    const uint32_t count = begin[4];
    if (count < 2 || count > 1024 || item.gold < 0 || item.gold >= int(count))
        fail(Exit::data, where, ": has ", count, " answers, of which number ", item.gold, " is right; expected 2 to 1024 answers");
    const auto context = take(take(1)[0]);
    if (context.empty()) fail(Exit::data, where, ": has no context");
    for (uint32_t n = 0; n < count; n++) {
        const auto ending = take(take(1)[0]);
        if (ending.empty()) fail(Exit::data, where, ": answer ", n, " has no tokens");
        Answer answer{{context.begin(), context.end()}, int(context.size()), 0};
        answer.tokens.insert(answer.tokens.end(), ending.begin(), ending.end());
        if (tokenizer) {
            const std::string words = tokenizer->decode(std::span(answer.tokens).subspan(context.size()));
            answer.characters = code_points(words.substr(words.starts_with(' ') ? 1 : 0));
        }
        item.answers.push_back(answer);
    }
    return item;
}

// `bytes` as little-endian numbers of type X.
template <class X>
std::vector<uint32_t> numbers_in(std::string_view bytes) {
    std::vector<X> numbers(bytes.size() / sizeof(X));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(X));
    return {numbers.begin(), numbers.end()};
}

EvaluationTask read_binary(const std::string& path, const Tokenizer* tokenizer, int64_t limit) {
    constexpr uint32_t magic = 20240522, narrow = 1, wide = 7;
    const std::string bytes = read_small_file(path);
    if (bytes.size() < shard_header_bytes)
        fail(Exit::data, path, ": has ", bytes.size(), " bytes, less than a header's ", shard_header_bytes);
    const std::vector<uint32_t> header = numbers_in<uint32_t>(bytes.substr(0, shard_header_bytes));
    const uint32_t version = header[1], items = header[2];
    if (header[0] != magic || (version != narrow && version != wide))
        fail(Exit::data, path, ": begins with ", header[0], ", version ", version, "; evaluation items have magic ", magic, ", version ",
             narrow, " or ", wide);
    const std::string_view behind = std::string_view(bytes).substr(shard_header_bytes);
    const std::vector<uint32_t> numbers = version == narrow ? numbers_in<uint16_t>(behind) : numbers_in<uint32_t>(behind);
    std::span<const uint32_t> rest(numbers);
    EvaluationTask task;
    for (uint32_t n = 0; n < items && (!limit || n < limit); n++)
        task.items.push_back(read_item(rest, version == narrow ? 0xFFFF : 0xFFFFFFFF, path + ": item " + std::to_string(n), tokenizer));
    const bool odd = behind.size() != numbers.size() * (version == narrow ? 2 : 4);
    if (task.items.size() == items && (odd || !rest.empty())) fail(Exit::data, path, ": has more data after its ", items, " items");
    return task;
}

void require_fitting(const EvaluationTask& task, const std::string& path, int vocabulary, int context) {
    size_t longest = 0;
    for (const EvaluationItem& item : task.items)
        for (const Answer& answer : item.answers) longest = std::max(longest, answer.tokens.size() - 1);
    for (size_t n = 0; n < task.items.size(); n++)
        for (const Answer& answer : task.items[n].answers) {
            const int64_t line = task.items[n].line;
            const std::string where = line ? path + ":" + std::to_string(line) : path + ": item " + std::to_string(n);
            if (answer.begin < 1 || answer.length() < 1) fail(Exit::data, where, ": an answer adds no token to its context");
            if (int(answer.tokens.size()) - 1 > context)
                fail(Exit::data, where, ": an answer with its context has ", answer.tokens.size(),
                     " tokens, all but the last are read, and the model reads ", context, " at a time; raise --seq-len to ", longest,
                     " for the longest item");
            for (int32_t id : answer.tokens)
                if (id < 0 || id >= vocabulary)
                    fail(Exit::data, where, ": token ", uint32_t(id), " is not in the model's vocabulary 0..", vocabulary - 1);
        }
}

double macro_f1(const EvaluationTask& task, const std::vector<int>& chosen) {
    double total = 0;
    for (int label = 0; label < int(task.labels.size()); label++) {
        int64_t both = 0, predicted = 0, actual = 0;
        for (size_t n = 0; n < chosen.size(); n++) {
            predicted += chosen[n] == label, actual += task.items[n].gold == label;
            both += chosen[n] == label && task.items[n].gold == label;
        }
        if (predicted + actual) total += 2.0 * double(both) / double(predicted + actual);
    }
    return total / double(task.labels.size());
}

}   // namespace

std::vector<EvaluationFile> find_evaluation_files(const std::vector<std::string>& globs) {
    std::vector<EvaluationFile> files;
    std::map<std::string, int> of_name;
    std::set<std::filesystem::path> files_found;   // canonical: a.jsonl is ./a.jsonl
    for (const std::string& glob : globs)
        for (const std::string& path : expand_glob(glob, "evaluation items")) {
            std::error_code unknown;   // the reader reports files that cannot be read
            if (!files_found.insert(std::filesystem::weakly_canonical(path, unknown)).second)
                fail(Exit::usage, path, ": is given twice, which would count its items twice; give it once");
            files.push_back({path, std::filesystem::path(path).stem().string()});
            of_name[files.back().name]++;
        }
    for (EvaluationFile& file : files)
        if (of_name[file.name] > 1) file.name = file.path;
    return files;
}

EvaluationTask read_evaluation(const EvaluationFile& file, const Tokenizer* tokenizer, int vocabulary, int context, int64_t limit) {
    const std::string& path = file.path;
    const bool binary = path.ends_with(".bin");
    if (!binary && !path.ends_with(".jsonl")) fail(Exit::usage, path, ": evaluation items are in .jsonl or .bin files");
    if (!binary && !tokenizer)
        fail(Exit::usage, path, ": the model's tokenizer is unknown; give items as token ids (.bin)");
    EvaluationTask task = binary ? read_binary(path, tokenizer, limit) : read_json_lines(path, *tokenizer, limit);
    if (task.items.empty()) fail(Exit::data, path, ": holds no items");
    require_fitting(task, path, vocabulary, context);
    task.name = file.name;
    return task;
}

EvaluationScores score(const EvaluationTask& task, const std::vector<float>& log_likelihoods) {
    EvaluationScores s;
    s.items = int64_t(task.items.size());
    bool characters = true;
    const float* of = log_likelihoods.data();
    for (const EvaluationItem& item : task.items) {
        const auto best = [&](auto divisor) {
            int choice = 0;
            double most = -std::numeric_limits<double>::infinity();
            for (int n = 0; n < int(item.answers.size()); n++)
                if (const double value = of[n] / std::max(1, divisor(item.answers[n])); value > most) choice = n, most = value;
            return choice;
        };
        s.chosen.push_back(best([](const Answer&) { return 1; }));
        s.sum += s.chosen.back() == item.gold;
        s.token_mean += best([](const Answer& a) { return a.length(); }) == item.gold;
        s.character_mean += best([](const Answer& a) { return a.characters; }) == item.gold;
        for (const Answer& answer : item.answers) characters = characters && answer.characters > 0;
        of += item.answers.size();
    }
    const auto share = [&](double& accuracy, double& error) {
        accuracy /= double(s.items);
        error = s.items > 1 ? std::sqrt(accuracy * (1 - accuracy) / double(s.items - 1)) : NAN;
    };
    share(s.sum, s.sum_error), share(s.token_mean, s.token_mean_error), share(s.character_mean, s.character_mean_error);
    if (!characters) s.character_mean = s.character_mean_error = NAN;
    s.macro_f1 = task.labels.empty() ? NAN : macro_f1(task, s.chosen);
    return s;
}
