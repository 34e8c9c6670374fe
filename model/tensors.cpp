#include "model/tensors.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "model/base/error.h"
#include "model/base/hash.h"
#include "model/base/splitmix64.h"

namespace {

/// Box-Muller: two independent uniform variates become two independent normal ones, the real and the imaginary part.
std::complex<double> normal_pair(uint64_t key, uint64_t pair) {
    using namespace splitmix64;
    const double u = 1 - uniform(element(key, 2 * pair));   // in (0, 1]: its logarithm is finite
    return std::polar(std::sqrt(-2 * std::log(u)), 2 * std::numbers::pi * uniform(element(key, 2 * pair + 1)));
}

}   // namespace

Slot TensorList::add(const std::string& name, const std::vector<int64_t>& shape, Init init, Decay decay) {
    return add({name, shape, init, decay == Decay::yes ? Role::decays : Role::plain, 0, {}});
}

Slot TensorList::add_matrix(const std::string& name, const std::vector<int64_t>& shape, Init init) {
    return add({name, shape, init, Role::decays, 0, {}, matrices_});
}

Slot TensorList::add_hidden_matrix(const std::string& name, const std::vector<int64_t>& shape, Init init) {
    return add({name, shape, init, hidden_, 0, {}, matrices_});
}

Slot TensorList::add_statistic(const std::string& name, const std::vector<int64_t>& shape, Init init, double rate) {
    if (!(rate > 0)) fail(Exit::usage, "the statistic ", name, " has a rate of ", rate, "; it must be above 0");
    return add({name, shape, init, Role::statistic, rate, {}});
}

Slot TensorList::add_state(const std::string& name, const std::vector<int64_t>& shape, Init init) {
    return add({name, shape, init, Role::state, 0, {}});
}

Slot TensorList::add(Tensor tensor) {
    const std::string& name = tensor.name;
    size_t size = 1;
    for (int64_t dimension : tensor.shape) {
        const bool overflows = dimension < 1 || __builtin_mul_overflow(size, size_t(dimension), &size);
        if (overflows) fail(Exit::usage, "the tensor ", name, " has a dimension of ", dimension, "; its size makes no sense");
    }
    if (!by_name_.emplace(name, tensors_.size()).second) fail(Exit::usage, "the tensor ", name, " was added twice to the model's list");
    size_t& end = tensor.stored == Stored::as_bf16 ? bf16_size_ : size_;
    tensor.slot = {end, size};
    tensor.of_mechanism = in_mechanism_;
    end += size;
    parameters_ += size;
    tensors_.push_back(std::move(tensor));
    return tensors_.back().slot;
}

void TensorList::add_mechanism(const std::function<void()>& declare) {
    in_mechanism_ = true;
    declare();
    in_mechanism_ = false;
}

void TensorList::train_only(const std::function<bool(const std::string&)>& trains) {
    for (Tensor& tensor : tensors_)
        if (!trains(tensor.name)) tensor.role = Role::frozen;
}

size_t TensorList::trained() const {
    size_t count = 0;
    for (const Tensor& tensor : tensors_) count += tensor.trained() ? tensor.slot.size : 0;
    return count;
}

bool TensorList::has(Role role) const {
    return std::any_of(begin(), end(), [role](const Tensor& tensor) { return tensor.role == role; });
}

const Tensor* TensorList::find(const std::string& name) const {
    const auto entry = by_name_.find(name);
    return entry == by_name_.end() ? nullptr : &tensors_[entry->second];
}

static size_t rounded_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

Shards::Shards(size_t n, int shard, int count, size_t bucket) : shard_(shard), count_(count), size_(n), bucket_(n) {
    if (count == 1) return;
    const size_t unit = size_t(16) * count;
    size_ = rounded_up(n, unit), bucket_ = rounded_up(bucket, unit);
}

std::vector<HeldSpan> owned_spans(const Shards& shards) {
    std::vector<HeldSpan> spans;
    for (size_t k = 0; k < shards.buckets(); k++) spans.push_back({shards.own(k).begin, shards.own(k).end, shards.held(k)});
    return spans;
}

std::vector<HeldSpan> second_moment_spans(const TensorList& list, const Shards& shards) {
    std::vector<HeldSpan> spans;
    const auto append = [&](size_t begin, size_t end) {
        if (begin >= end) return;
        const size_t held = stored_size(spans);
        spans.push_back({begin, end, held + (begin - held) % 16});
    };
    for (const HeldSpan& owned : owned_spans(shards)) {
        size_t begin = owned.begin;
        for (const Tensor& t : list) {
            const size_t last = t.slot.offset + t.slot.size;
            if (t.role != Role::muon || last <= begin || t.slot.offset >= owned.end) continue;
            append(begin, t.slot.offset);
            begin = last;
        }
        append(begin, owned.end);
    }
    return spans;
}

/// The ranges of tensors with one of `roles`, in flat order.
static std::vector<UpdateRange> ranges_of(std::initializer_list<Role> roles, const TensorList& list, const Shards& shards, size_t longest) {
    std::vector<UpdateRange> ranges;
    for (const HeldSpan& own : owned_spans(shards))
        for (const Tensor& t : list) {
            if (std::find(roles.begin(), roles.end(), t.role) == roles.end()) continue;
            const size_t last = std::min(t.slot.offset + t.slot.size, own.end);
            for (size_t at = std::max(t.slot.offset, own.begin); at < last; at += longest)
                ranges.push_back({at, std::min(at + longest, last), t.role, t.rate, own.held + at - own.begin});
        }
    return ranges;
}

std::vector<UpdateRange> update_ranges(const TensorList& list, const Shards& shards, size_t longest) {
    std::vector<UpdateRange> ranges = ranges_of({Role::decays, Role::plain, Role::statistic}, list, shards, longest);
    const std::vector<HeldSpan> spans = second_moment_spans(list, shards);
    auto span = spans.begin();
    for (UpdateRange& range : ranges) {
        while (range.begin >= span->end) ++span;
        range.second = span->held + range.begin - span->begin;
    }
    return ranges;
}

std::vector<UpdateRange> muon_ranges(const TensorList& list, const Shards& shards, size_t longest) {
    return ranges_of({Role::muon}, list, shards, longest);
}

std::vector<MuonMatrix> muon_matrices(const TensorList& list, const std::vector<UpdateRange>& ranges) {
    std::vector<MuonMatrix> matrices;
    int next = 0;
    for (const Tensor& t : list) {
        const int first = next;
        while (next < int(ranges.size()) && ranges[size_t(next)].begin - t.slot.offset < t.slot.size) next++;
        if (next > first) matrices.push_back({t.slot.offset, int(t.shape[0]), int(t.shape[1]), first, next - first});
    }
    return matrices;
}

/// The spans of an unsharded model.
static std::vector<NormSpan> all_norm_spans(const TensorList& list) {
    std::vector<NormSpan> spans;
    bool joins = false;   // only padding lies between the last span and this tensor
    for (const Tensor& t : list) {
        const bool counts = t.trained() || t.role == Role::statistic;
        const double weight = t.trained() ? 1 : 0;
        const size_t end = t.slot.offset + t.slot.size;
        if (counts && joins && spans.back().weight == weight) spans.back().end = end;
        else if (counts) spans.push_back({t.slot.offset, end, weight});
        joins = counts;
    }
    if (joins) spans.back().end = list.size();
    return spans;
}

std::vector<NormSpan> norm_spans(const TensorList& list, const Shards& shards) {
    const std::vector<NormSpan> all = all_norm_spans(list);
    std::vector<NormSpan> owned;
    for (size_t k = 0; k < shards.buckets(); k++)
        for (const NormSpan& span : all) {
            const size_t begin = std::max(span.begin, shards.own(k).begin), end = std::min(span.end, shards.own(k).end);
            if (begin < end) owned.push_back({begin, end, span.weight});
        }
    return owned;
}

// `weights` is the whole flat buffer; only the tensor's slot is filled. Values are drawn in double and rounded to X last, so that a
// float model and its double oracle start alike.
template <class X>
void initialise(const Tensor& tensor, uint64_t seed, X* weights) {
    X* out = weights + tensor.slot.offset;
    const size_t n = tensor.slot.size;
    if (tensor.init.deviation == 0) {
        for (size_t i = 0; i < n; i++) out[i] = X(tensor.init.start(i));
        return;
    }
    const uint64_t key = xxh3(tensor.name.data(), tensor.name.size(), seed);
    const double deviation = tensor.init.deviation;
    #pragma omp parallel for schedule(static)
    for (size_t pair = 0; pair < (n + 1) / 2; pair++) {
        const std::complex<double> z = normal_pair(key, pair);
        out[2 * pair] = X(deviation * z.real());
        if (2 * pair + 1 < n) out[2 * pair + 1] = X(deviation * z.imag());
    }
}

template <class X>
void initialise(const TensorList& list, uint64_t seed, X* weights, StoredBf16* matrices) {
    std::fill(weights, weights + list.size(), X(0));   // padding must be zero: norms may run over it
    for (const Tensor& tensor : list)
        if (tensor.stored == Stored::as_bf16) initialise(tensor, seed, matrices);
        else initialise(tensor, seed, weights);
}

template void initialise<float>(const Tensor&, uint64_t, float*);
template void initialise<double>(const Tensor&, uint64_t, double*);
template void initialise<StoredBf16>(const Tensor&, uint64_t, StoredBf16*);
template void initialise<float>(const TensorList&, uint64_t, float*, StoredBf16*);
template void initialise<double>(const TensorList&, uint64_t, double*, StoredBf16*);

uint64_t weights_hash(const TensorList& list, const float* weights) {
    Hasher hasher;
    for (const Tensor& tensor : list) hasher.add(weights + tensor.slot.offset, tensor.slot.size * sizeof(float));
    return hasher.digest();
}
