// Every operation of one training step as data: how often a step runs it, the fewest bytes and the arithmetic it needs, and how to
// run it on the tensors of a model. The order and the counts are those of model/gpt.cu.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dev/timing.cuh"
#include "dev/trainee.cuh"
#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/gpt.h"
#include "model/operations/linear.cuh"
#include "model/operations/rmsnorm.cuh"
#include "model/operations/swiglu.cuh"
#include "model/run/summary.h"

enum class Kind { matmul, attention, other };

/// Bytes: every input read once, every output written once, sums read and written. `again`: what its kernels move besides, reading
/// a second time what does not stay on the multiprocessor, and by way of partial sums.
struct StepKernel {
    std::string name;
    Kind kind;
    double count;          // per step
    double bytes, flops;   // of one run; flops 0 where memory is what counts
    std::function<void()> run;
    std::function<void()> prepare = {};   // gives buffers numbers that have held something else; not timed
    double again = 0;                     // bytes
};

/// The kernels of a step of `gpt`, which must have done a step, so that its tensors hold what they hold in training; where tensors
/// share memory, random numbers take their place. `batch` and `gpt` must outlive the list. `different`: tokens of the batch.
template <class X>
class StepKernels {
public:
    StepKernels(GPU device, GPT<GPU, X>& gpt, const Batch& batch, size_t different)
        : device_(device), gpt_(gpt), batch_(batch), c_(gpt.net.config), layer_(gpt.net.layers[0]),
          facts_(layer_.attention->facts), BT_(batch.B * batch.T) {
        embedding(double(different));
        norms();
        linears();
        attention();
        head();
        update();
    }
    const std::vector<StepKernel>& list() const { return list_; }

private:
    using W = Wide<X>;
    static constexpr double NARROW = sizeof(X), WIDE = sizeof(W);

    using Work = std::function<void()>;
    void add(const std::string& name, Kind kind, double count, double bytes, double flops, Work run, Work prepare = {}) {
        list_.push_back({name, kind, count, bytes, flops, std::move(run), std::move(prepare)});
    }

    /// Overwrites a buffer of (rows, width) with random numbers.
    template <class Y>
    void renew(Y* x, size_t rows, size_t width) {
        fill_random(device_, x, rows * width, 1);
    }

    /// Numbers of the kind (B, T, width) in X, and in W.
    double rows(double width) const { return NARROW * BT_ * width; }
    double wide_rows(double width) const { return WIDE * BT_ * width; }

    void embedding(double different) {
        add("embedding_forward", Kind::other, 1, rows(2 * c_.C), 0, [this] {
            embedding_forward(device_, gpt_.residual, batch_.tokens, gpt_.weights + gpt_.net.embedding.offset, BT_, c_.C);
        });
        add("embedding_backward", Kind::other, 1, rows(c_.C) + 2 * WIDE * different * c_.C, 0, [this] {
            embedding_backward(device_, gpt_.gradients + gpt_.net.embedding.offset, gpt_.scratch.dresidual, batch_.by_token, c_.C);
        });
        cleared("embedding's gradient = 0", 1, c_.tied ? Slot{} : gpt_.net.embedding);
        cleared("attention's gradients = 0", c_.L, layer_.own);
    }

    /// Gradients that the micro-step's first sum does not overwrite.
    void cleared(const std::string& name, double count, Slot slot) {
        if (!slot) return;
        add(name, Kind::other, count, WIDE * double(slot.size), 0,
            [this, slot] { fill(device_, gpt_.gradients + slot.offset, slot.size, W{}); });
    }

    /// The last operation's kernels write rows of partial sums, `width` numbers each, and read them back.
    void by_partial_sums(double rows, double width) { list_.back().again += 2 * WIDE * rows * width; }

    void norms() {
        auto& a = gpt_.layers[0];
        auto& s = gpt_.scratch;
        const Slot norm = layer_.post_attention_norm;
        const int heads = c_.NH + c_.NKV, L = c_.L;
        const double qk = double(heads) * c_.HS, extra = facts_.reads_qk_pre ? 1 : 0;
        add("rmsnorm_forward", Kind::other, 2 * L + 1, rows(2 * c_.C) + wide_rows(1), 0, [this, &a, norm] {
            rmsnorm_forward(device_, a.normed1, a.rstd1, gpt_.residual, gpt_.weights + norm.offset, BT_, c_.C, c_.norm_eps);
        });
        for (Write write : {Write::overwrite, Write::add}) {   // the final norm's, and all others
            const bool add_to = write == Write::add;
            add(add_to ? "rmsnorm_backward" : "final rmsnorm_backward", Kind::other, add_to ? 2 * L : 1,
                rows((add_to ? 4 : 3) * c_.C) + wide_rows(1), 0, [this, &a, &s, norm, write] {
                    rmsnorm_backward(device_, s.dresidual, gpt_.gradients + norm.offset, s.dnormed, a.middle,
                                     gpt_.weights + norm.offset, a.rstd2, BT_, c_.C, write, Write::overwrite);
                });
            by_partial_sums(rmsnorm::blocks_backward(BT_, c_.C), c_.C);
        }
        add("qk_norm_rope_forward", Kind::other, L, rows((2 + extra) * qk) + wide_rows(heads), 0, [this, &a, &s] {
            qk_norm_rope_forward(device_, a.qk, s.qk_pre, a.qk_rstd, a.qkv, gpt_.qk_shape(0, batch_.B, batch_.T), c_.norm_eps);
        });
        auto backward = [this, &a, &s] {
            W* g = gpt_.gradients;
            qk_norm_rope_backward(device_, s.dqkv, g + layer_.q_norm.offset, g + layer_.k_norm.offset, s.dqk, s.dqk_pre, a.qkv,
                                  a.qk_rstd, gpt_.qk_shape(0, batch_.B, batch_.T), Write::overwrite);
        };
        auto prepare = [=, this, &s] {
            renew(s.dqk, BT_, size_t(qk));
            if (s.dqk_pre) renew(s.dqk_pre, BT_, size_t(qk));
        };
        const double read_back = rows(2 * qk) + wide_rows((1 + extra) * qk + heads);
        add("qk_norm_rope_backward", Kind::other, L, read_back, 0, backward, prepare);
        if (c_.qk_norm) by_partial_sums(2.0 * qk_rope::BLOCKS, c_.HS);
        add("swiglu_forward", Kind::other, L, rows(3 * c_.F), 0,
            [this, &a] { swiglu_forward(device_, a.activated, a.gate_up, BT_, c_.F); });
        add("swiglu_backward", Kind::other, L, rows(5 * c_.F), 0,
            [this, &a, &s] { swiglu_backward(device_, s.dgate_up, s.dactivated, a.gate_up, BT_, c_.F); },
            [this, &s] { renew(s.dactivated, BT_, c_.F); });
    }

    /// The three products of y (rows, OUT) = added + x (rows, IN) W^T; `added` may be null.
    void linear(const std::string& name, double count, X* y, X* x, Slot weight, Slot bias, int rows, int IN, int OUT, Write write,
                const X* added = nullptr) {
        const double flops = 2.0 * rows * IN * OUT, ends = NARROW * rows * (double(IN) + OUT), matrix = double(IN) * OUT;
        const X* w = gpt_.weights + weight.offset;
        const X* b = bias ? gpt_.weights + bias.offset : nullptr;
        W *dw = gpt_.gradients + weight.offset, *db = bias ? gpt_.gradients + bias.offset : nullptr;
        auto prepare = [=, this] { renew(y, rows, OUT), renew(x, rows, IN); };
        add(name + " forward", Kind::matmul, count, ends + NARROW * (matrix + (added ? double(rows) * OUT : 0)), flops,
            [=, this] { matmul(device_, y, Transpose::no, x, Transpose::yes, w, b, added, rows, OUT, IN); }, prepare);
        add(name + " dinput", Kind::matmul, count, ends + NARROW * matrix, flops,
            [=, this] { linear_backward_input(device_, x, y, w, rows, IN, OUT, Write::overwrite); }, prepare);
        add(name + " dweight", Kind::matmul, count, ends + (write == Write::add ? 2 : 1) * WIDE * matrix, flops,
            [=, this] { linear_backward_weight(device_, dw, db, y, x, rows, IN, OUT, write); }, prepare);
    }

    void linears() {
        auto& s = gpt_.scratch;
        const X* const stream = gpt_.residual;
        const int Q = c_.NH * c_.HS, QKV = Q + 2 * c_.NKV * c_.HS;
        linear("qkv", c_.L, s.dqkv, s.dnormed, layer_.qkv, layer_.qkv_bias, BT_, c_.C, QKV, Write::overwrite);
        linear("o_proj", c_.L, s.dresidual, s.dout, layer_.o_proj, {}, BT_, Q, c_.C, Write::overwrite, stream);
        linear("gate_up", c_.L, s.dgate_up, s.dnormed, layer_.gate_up, {}, BT_, c_.C, 2 * c_.F, Write::overwrite);
        linear("down_proj", c_.L, s.dresidual, s.dactivated, layer_.down_proj, {}, BT_, c_.F, c_.C, Write::overwrite, stream);
    }

    /// Two products forward, five backward (the scores are computed again), over the pairs that are visible; with what makes the
    /// features of queries and keys.
    void attention() {
        const Features f = facts_.features;
        const double flop = 2.0 * c_.HS * batch_.B * layer_.attention->expected_pairs(c_.NH, batch_.T).pairs;   // of one product
        const double Q = double(c_.NH) * c_.HS, KV = double(c_.NKV) * c_.HS, features = wide_rows(c_.NH * double(f.row + f.column));
        const double qk = f.head + f.row + f.column > 0 || facts_.gates_output ? Q + KV : 0;   // read once more for the features
        add("attention forward", Kind::attention, c_.L, rows(2 * Q + 2 * KV + qk) + wide_rows(c_.NH) + 2 * features, 2 * flop,
            [this] { gpt_.layer_attention(device_, 0, batch_); });
        add("attention backward", Kind::attention, c_.L, rows(3 * Q + 3 * KV + qk) + wide_rows(c_.NH + Q + KV + qk) + 3 * features,
            5 * flop, [this] { attention_backward_of_first_layer(device_, gpt_, batch_); },
            [this, Q] { renew(gpt_.scratch.dout, BT_, size_t(Q)); });
    }

    void head() {
        auto& s = gpt_.scratch;
        const int n = std::min(gpt_.logit_rows, BT_);
        const double chunks = double(BT_) / n;
        linear("head", chunks, s.logits, s.dnormed, gpt_.net.head, {}, n, c_.C, c_.V, chunks > 1 ? Write::add : Write::overwrite);
        add("cross_entropy", Kind::other, chunks, NARROW * n * 2.0 * c_.V, 0,
            [=, this, &s] { cross_entropy(device_, s.losses, s.logits, batch_.targets, n, c_.V, W(1.0f / float(BT_))); },
            [=, this, &s] { renew(s.logits, n, c_.V); });
        if (softmax::bytes_to_keep<X>(c_.V) > max_shared_memory()) list_.back().again = NARROW * n * double(c_.V);
        add("sum_of_losses", Kind::other, 1, wide_rows(1), 0,
            [this, &s] { sum_of_losses(device_, &gpt_.totals->loss, s.losses, BT_, Write::overwrite); });
    }

    void update() {
        const double n = double(gpt_.net.tensors.size()), owned = double(gpt_.shards.owned());
        add("sum_of_squares", Kind::other, 1, WIDE * n, 0,
            [this] { gpt_.norm(device_); },
            [this] { renew(gpt_.gradients, gpt_.net.tensors.size(), 1); });
        add("adamw_update", Kind::other, 1, (7 * WIDE + (gpt_.rounds ? NARROW : 0)) * owned, 0,
            [this] { gpt_.update(device_, AdamW{}, 1); });
    }

    GPU device_;
    GPT<GPU, X>& gpt_;
    const Batch& batch_;
    const Config& c_;
    const Layer& layer_;
    const LayerFacts& facts_;
    int BT_;
    std::vector<StepKernel> list_;
};
