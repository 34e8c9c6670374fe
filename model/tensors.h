// The one list of named tensors. Weights, gradients and both moments are flat buffers of list.size() numbers laid out by it;
// initialisation, AdamW, checkpoints, the gradient check and the printed table all walk it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

/// Where a tensor lies in every flat buffer that follows the list. A default Slot is a tensor that the model does not have.
struct Slot {
    size_t offset = 0;
    size_t size = 0;
    explicit operator bool() const { return size > 0; }
};

/// How a weight starts: `value` everywhere, or number by number as `values` says, or normal with mean 0 and standard deviation
/// `deviation`.
struct Init {
    double value = 0;
    double deviation = 0;
    std::vector<double> values = {};

    /// Number n of the tensor, where it is not drawn.
    double start(size_t n) const { return values.empty() ? value : values[n]; }
};
inline Init zeros() { return {0, 0}; }
inline Init ones() { return {1, 0}; }
inline Init constant(double value) { return {value, 0}; }
inline Init normal(double deviation) { return {0, deviation}; }
inline Init listed(const std::vector<double>& values) { return {0, 0, values}; }

enum class Decay : bool { no, yes };   // AdamW's weight decay: matrices only

/// Who moves a tensor from one step to the next.
enum class Role {
    decays,      // AdamW, with weight decay
    plain,       // AdamW, without
    statistic,   // follows the data: w -= rate g, whatever the learning rate; in no norm and never clipped
    state,       // the model itself, by a rule of its own (model/sigma_reparam.cuh); in no norm either
    frozen,      // nobody; in no norm either
};

struct Tensor {
    std::string name;              // as in the Hugging Face checkpoint
    std::vector<int64_t> shape;    // weights are (OUT, IN)
    Init init;
    Role role;
    double rate;   // of a statistic
    Slot slot;

    /// Whether the gradient buffer holds the derivative of the loss: a statistic has there what it should move by, a state nothing.
    bool has_gradient() const { return role != Role::statistic && role != Role::state; }
    bool trained() const { return role == Role::decays || role == Role::plain; }
};

class TensorList {
public:
    /// Appends a tensor directly behind the previous one, so that tensors added in a row can be read as one matrix (q, k, v).
    Slot add(const std::string& name, const std::vector<int64_t>& shape, Init init, Decay decay);

    /// The same for a tensor that follows the data instead of the loss (a running quantile, a centroid): every step moves it by
    /// -rate g, where g is what preprocess_backward() adds to its place among the gradients, summed over micro-steps and ranks as
    /// they are. Checkpoints hold it. The rate is above 0.
    Slot add_statistic(const std::string& name, const std::vector<int64_t>& shape, Init init, double rate);

    /// The same for what the model itself carries from step to step; its place among the gradients stays zero.
    Slot add_state(const std::string& name, const std::vector<int64_t>& shape, Init init);

    /// Freezes every tensor whose name `trains` is false for.
    void train_only(const std::function<bool(const std::string&)>& trains);

    /// Lets the next tensor start on a cache line.
    void align() { size_ = (size_ + 15) / 16 * 16; }

    const Tensor* find(const std::string& name) const;
    size_t size() const { return size_; }              // length of a flat buffer, padding included
    size_t parameters() const { return parameters_; }  // numbers of all tensors, padding excluded
    size_t trained() const;                            // those of them that AdamW trains
    auto begin() const { return tensors_.begin(); }
    auto end() const { return tensors_.end(); }
    size_t count() const { return tensors_.size(); }

private:
    Slot add(Tensor tensor);

    std::deque<Tensor> tensors_;
    std::unordered_map<std::string, size_t> by_name_;
    size_t size_ = 0;
    size_t parameters_ = 0;
};

/// Numbers [begin, end) of the flat buffers, all of one tensor that AdamW trains or that is a statistic.
struct UpdateRange {
    size_t begin, end;
    Role role;
    double rate = 0;   // of a statistic
};

/// The ranges of [begin, end) in pieces of at most `longest` numbers, everything else left out.
std::vector<UpdateRange> update_ranges(const TensorList& list, size_t begin, size_t end, size_t longest);

/// Numbers [begin, end) of the flat buffers in the norm of the gradient.
struct NormSpan {
    size_t begin, end;
    double weight;   // 1: AdamW trains them. 0: statistics, which count nothing, but 0 x NaN is NaN: what is not finite shows
};

/// What the global norm runs over: as few spans as there can be, one where AdamW trains every tensor. Padding between their tensors
/// is zero and may be in them.
std::vector<NormSpan> norm_spans(const TensorList& list);

/// ZeRO-1: shard s of `shards` owns the numbers shard_begin(n, s, shards) .. shard_begin(n, s + 1, shards) of a flat buffer.
inline size_t shard_begin(size_t n, int shard, int shards) {
    return shard == shards ? n : n / 16 * size_t(shard) / size_t(shards) * 16;
}

/// Fills `weights` (list.size() numbers) as every tensor's Init says. Each number depends on (seed, tensor name, index) alone,
/// so neither the number of ranks or threads nor the presence of other tensors changes it.
template <class X>
void initialise(const TensorList& list, uint64_t seed, X* weights);
template <class X>
void initialise(const Tensor& tensor, uint64_t seed, X* weights);

/// 64-bit hash (XXH3) over the bytes of all tensors in the list's order: two runs that agree to the last bit agree in it.
uint64_t weights_hash(const TensorList& list, const float* weights);
