#include "model/ranks/agreement.h"

#include <algorithm>

#include "model/base/hash.h"

namespace {

constexpr char SEPARATOR = '\0';

std::string packed(const std::vector<Fact>& facts) {
    std::string all;
    for (const Fact& fact : facts) all += fact.name + SEPARATOR + fact.value + SEPARATOR;
    return all;
}

std::vector<Fact> unpacked(const std::string& all) {
    std::vector<std::string> parts;
    for (size_t at = 0, end; (end = all.find(SEPARATOR, at)) != std::string::npos; at = end + 1) parts.push_back(all.substr(at, end - at));
    std::vector<Fact> facts;
    for (size_t n = 0; n + 1 < parts.size(); n += 2) facts.push_back({parts[n], parts[n + 1]});
    return facts;
}

const Fact* find(const std::vector<Fact>& facts, const std::string& name) {
    const auto found = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) { return fact.name == name; });
    return found == facts.end() ? nullptr : &*found;
}

std::string shown(const Fact* fact) {
    if (!fact) return "nothing";
    if (fact->value.empty()) return "\"\"";
    return fact->value.size() <= 200 ? fact->value : fact->value.substr(0, 200) + "...";
}

/// The first fact of `ours`, then of `theirs`, that the other list lacks or has with another value.
const Fact* first_difference(const std::vector<Fact>& ours, const std::vector<Fact>& theirs) {
    for (const auto& [one, other] : {std::pair(&ours, &theirs), std::pair(&theirs, &ours)})
        for (const Fact& fact : *one)
            if (const Fact* same = find(*other, fact.name); !same || same->value != fact.value) return &fact;
    return nullptr;
}

}   // namespace

int find_unlike_rank(Ranks& ranks, const std::string& text) {
    const std::vector<uint64_t> hashes = ranks.gathered(xxh3(text.data(), text.size()));
    const auto other = std::find_if(hashes.begin(), hashes.end(), [&](uint64_t hash) { return hash != hashes[0]; });
    return other == hashes.end() ? 0 : int(other - hashes.begin());
}

void require_agreement(Ranks& ranks, const std::vector<Fact>& facts) {
    if (ranks.size() == 1) return;
    const std::string mine = packed(facts);
    const int rank = find_unlike_rank(ranks, mine);
    if (rank == 0) return;
    const std::vector<Fact> firsts = unpacked(ranks.broadcast(mine, 0)), theirs = unpacked(ranks.broadcast(mine, rank));
    const Fact* const different = first_difference(firsts, theirs);
    if (!different) fail(Exit::rank, "ranks 0 and ", rank, " list the same facts in another order");
    const Fact* const coded = find(facts, different->name);   // codes do not travel; a fact that this rank lacks is one of options
    ranks.fail_together(coded ? coded->code : Exit::usage,
                        different->name + " is " + shown(find(theirs, different->name)) + " on rank " + std::to_string(rank) + " and " +
                            shown(find(firsts, different->name)) + " on rank 0; all ranks of a job must have the same");
}
