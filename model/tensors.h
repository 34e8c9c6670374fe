// The one list of named tensors. It lays out weights, gradients and moments, each a flat buffer of list.size() elements;
// initialisation, the optimiser, checkpoints, the gradient check and the printed table all iterate over it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/base/bf16.h"

/// The place of a tensor in every flat buffer, or of a matrix that is Stored::as_bf16 in the buffer of those. A default Slot is a tensor
/// that the model does not have.
struct Slot {
    size_t offset = 0;
    size_t size = 0;
    explicit operator bool() const { return size > 0; }
};

/// The initialisation of a tensor: `value` everywhere, or `values` element by element, or normal with mean 0 and standard deviation
/// `deviation`.
struct Init {
    double value = 0;
    double deviation = 0;
    std::vector<double> values = {};

    /// Precondition: deviation == 0. Element n of the tensor.
    double start(size_t n) const { return values.empty() ? value : values[n]; }
};
inline Init zeros() { return {0, 0}; }
inline Init ones() { return {1, 0}; }
inline Init constant(double value) { return {value, 0}; }
inline Init normal(double deviation) { return {0, deviation}; }
inline Init listed(const std::vector<double>& values) { return {0, 0, values}; }

enum class Decay : bool { no, yes };   // AdamW's weight decay: matrices only

/// The optimiser of the layers' matrices. All other tensors are AdamW's.
enum class Optimizer { adamw, muon };

/// The update rule of a tensor. Only the first three count in the gradient norm.
enum class Role {
    muon,        // Muon with weight decay (model/operations/muon.cuh)
    decays,      // AdamW with weight decay
    plain,       // AdamW without weight decay
    statistic,   // by the data: w -= rate g, independent of the learning rate, never clipped
    state,       // by the model's own rule (model/operations/sigma_reparam.cuh)
    frozen,      // no update
};

struct Tensor {
    std::string name;              // as in the Hugging Face checkpoint
    std::vector<int64_t> shape;    // weights are (OUT, IN)
    Init init;
    Role role;
    double rate;   // of a statistic
    Slot slot;
    Stored stored = Stored::as_computed;
    bool of_mechanism = false;   // a folder of weights may lack the tensor, which then starts from `init`

    /// Whether its part of the gradient buffer is the derivative of the loss. A statistic keeps its update there, a state nothing.
    bool has_gradient() const { return role != Role::statistic && role != Role::state; }
    bool trained() const { return role == Role::muon || role == Role::decays || role == Role::plain; }
};

class TensorList {
public:
    /// `matrices` is the storage type of add_matrix() and add_hidden_matrix(), `optimizer` trains the latter.
    explicit TensorList(Stored matrices = Stored::as_computed, Optimizer optimizer = Optimizer::adamw)
        : matrices_(matrices), hidden_(optimizer == Optimizer::muon ? Role::muon : Role::decays) {}

    /// Appends a tensor directly after the previous one, so that consecutive tensors can be read as one matrix (q, k, v).
    /// Exit::usage if the name is taken or the size overflows.
    Slot add(const std::string& name, const std::vector<int64_t>& shape, Init init, Decay decay);

    /// The same for a matrix of the embedding or of a linear layer, which only products and look-ups read. Matrices stored as bf16 have a
    /// buffer of their own, each directly after the previous one.
    Slot add_matrix(const std::string& name, const std::vector<int64_t>& shape, Init init);

    /// The same for a linear layer between two hidden states: neither the embedding nor the head.
    Slot add_hidden_matrix(const std::string& name, const std::vector<int64_t>& shape, Init init);

    /// Precondition: rate > 0 (Exit::usage).
    /// The same for a tensor that tracks the data instead of the loss (a running quantile, a centroid): every step adds -rate g,
    /// where g is what preprocess_backward() adds to its part of the gradients, averaged over micro-steps and ranks as they are.
    /// Saved in checkpoints.
    Slot add_statistic(const std::string& name, const std::vector<int64_t>& shape, Init init, double rate);

    /// The same for state that the model itself carries from step to step; its part of the gradients stays zero.
    Slot add_state(const std::string& name, const std::vector<int64_t>& shape, Init init);

    /// Tensors that `declare` adds belong to a mechanism (Tensor::of_mechanism).
    void add_mechanism(const std::function<void()>& declare);

    /// Freezes every tensor for whose name `trains` returns false.
    void train_only(const std::function<bool(const std::string&)>& trains);

    /// Starts the next tensor on a cache line.
    void align() { size_ = (size_ + 15) / 16 * 16, bf16_size_ = (bf16_size_ + 31) / 32 * 32; }

    const Tensor* find(const std::string& name) const;   // null if there is none
    bool has(Role role) const;                           // of any tensor
    Stored matrices() const { return matrices_; }
    size_t size() const { return size_; }                // length of a flat buffer, padding included
    size_t bf16_size() const { return bf16_size_; }      // length of the buffer of matrices stored as bf16
    size_t parameters() const { return parameters_; }    // elements of all tensors, padding excluded
    size_t trained() const;                              // elements that an optimiser trains
    auto begin() const { return tensors_.begin(); }
    auto end() const { return tensors_.end(); }
    size_t count() const { return tensors_.size(); }

private:
    Slot add(Tensor tensor);

    std::deque<Tensor> tensors_;
    std::unordered_map<std::string, size_t> by_name_;
    Stored matrices_;
    Role hidden_;
    bool in_mechanism_ = false;
    size_t size_ = 0, bf16_size_ = 0;
    size_t parameters_ = 0;
};

/// Elements [begin, end) of a flat buffer.
struct Span {
    size_t begin, end;
    size_t size() const { return end - begin; }
};

/// ZeRO-1 (Rajbhandari et al. 2020): the distribution of moments over ranks. A flat buffer is divided into buckets, which ranks exchange
/// one by one while the backward pass completes the others, from the buffer's end to its beginning. Each bucket has `count` equal parts;
/// shard s owns part s of every bucket and stores its parts contiguously. A single shard has one bucket.
class Shards {
public:
    static constexpr size_t BUCKET = size_t(1) << 22;   // elements: 16 MiB of gradients

    /// For flat buffers of n elements in buckets of `bucket`. With several shards both are rounded up to a multiple of 16 elements
    /// per shard, so that every part begins on a cache line.
    Shards(size_t n, int shard, int count, size_t bucket = BUCKET);

    int shard() const { return shard_; }
    int count() const { return count_; }
    size_t size() const { return size_; }             // length of a flat buffer, padding included
    size_t owned() const { return size_ / count_; }   // elements per shard

    size_t buckets() const { return (size_ + bucket_ - 1) / bucket_; }
    Span bucket(size_t k) const { return {k * bucket_, std::min((k + 1) * bucket_, size_)}; }
    size_t part_size(size_t k) const { return bucket(k).size() / count_; }
    Span part(size_t k, int s) const {
        const size_t begin = bucket(k).begin + part_size(k) * s;
        return {begin, begin + part_size(k)};
    }
    Span own(size_t k) const { return part(k, shard_); }

    /// Offset of a part of bucket k within its owner's storage.
    size_t held(size_t k) const { return bucket(k).begin / count_; }

private:
    int shard_, count_;
    size_t size_, bucket_;
};

/// Elements [begin, end) of the flat buffers. A shard's storage has them from offset `held` on.
struct HeldSpan {
    size_t begin, end, held;
};

/// The storage of first moments and of master weights: all that the shard owns, in flat order.
std::vector<HeldSpan> owned_spans(const Shards& shards);

/// The storage of second moments, which Muon's matrices lack: the rest in as few spans as possible, each with `held` equal to `begin`
/// modulo 16.
std::vector<HeldSpan> second_moment_spans(const TensorList& list, const Shards& shards);

/// Length of a storage in elements.
inline size_t stored_size(const std::vector<HeldSpan>& spans) {
    return spans.empty() ? 0 : spans.back().held + spans.back().end - spans.back().begin;
}

/// Elements [begin, end) of the flat buffers, all in one tensor that is updated, and in one part.
struct UpdateRange {
    size_t begin, end;
    Role role;
    double rate = 0;         // of a statistic
    size_t held = begin;     // offset of element `begin` within the shard's storage
    size_t second = held;    // the same in the storage of second moments, which Muon's matrices lack
};

/// The elements that the shard updates by AdamW or as statistics, in ranges of at most `longest` elements.
std::vector<UpdateRange> update_ranges(const TensorList& list, const Shards& shards, size_t longest);

/// The same for Muon's matrices, in flat order.
std::vector<UpdateRange> muon_ranges(const TensorList& list, const Shards& shards, size_t longest);

/// A matrix (OUT, IN) of Muon's at `offset` of the flat buffers, of which the shard owns ranges [first, first + count) of muon_ranges().
struct MuonMatrix {
    size_t offset;
    int OUT, IN;
    int first, count;
};

/// Muon's matrices of which the shard owns a part.
std::vector<MuonMatrix> muon_matrices(const TensorList& list, const std::vector<UpdateRange>& ranges);

/// Elements [begin, end) of the flat buffers that count in the gradient norm.
struct NormSpan {
    size_t begin, end;
    double weight;   // 1 if an optimiser trains them; 0 for statistics, which count only if they are not finite: 0 x NaN is NaN
};

/// The shard's elements in the global norm, in as few spans as possible: one per bucket if every tensor is trained. Spans may include
/// padding, which is zero.
std::vector<NormSpan> norm_spans(const TensorList& list, const Shards& shards);

/// Initialises `weights` (list.size()) and `matrices` (list.bf16_size()) by each tensor's Init. Each element depends only on (seed, tensor
/// name, index), not on the number of ranks or threads, nor on other tensors.
template <class X>
void initialise(const TensorList& list, uint64_t seed, X* weights, StoredBf16* matrices = nullptr);
template <class X>
void initialise(const Tensor& tensor, uint64_t seed, X* weights);   // the buffer that it lies in

/// XXH3 hash (64 bits) of all tensors in list order: equal for runs that agree bit for bit.
uint64_t weights_hash(const TensorList& list, const float* weights);

/// A linear layer that reads (gamma / sigma(W)) W instead of its matrix W (model/operations/sigma_reparam.cuh). Kernels read this
/// struct, so it is trivially copyable.
struct SigmaLinear {
    Slot weight, gamma, u;   // (OUT, IN), (1), (IN)
    int OUT, IN;
    size_t v, next_u;   // offsets of this layer's (OUT) and (IN) in the buffers of all layers
    bool moves;         // whether u is updated from step to step
};
