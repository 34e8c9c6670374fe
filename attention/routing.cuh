// Routing Transformer (Roy et al. 2020, arXiv 2003.05997): content decides which tokens attend to which. Half of the heads have a
// local window; in the others tokens with similar content form clusters, and a token attends to the earlier tokens of its cluster.
//     n_t = LN(q_t) without affine, q before RoPE;   cluster(t) = argmax_c mu_hc . n_t / |mu_hc|
//     z_ij = n_i.n_j / sqrt(HS)   for j < i in i's cluster; the first token of a cluster sees itself alone
// Queries and keys are the same vectors here, which is why a token does not attend to itself: it would see little else.
// This is the causal form, in which each token decides on its own and clusters differ in size. The paper balances clusters: every
// centroid takes the T / K tokens (rounded down, at least one) of the whole sequence with the largest mu_hc . n_t / |mu_hc|, ties
// going to earlier ones: the first layer has many ties, since a token's n depends on the token alone there. A token in several
// clusters gets the plain average of its outputs in each, a token in none gets 0.
// WHETHER A TOKEN IS IN A CLUSTER THEN DEPENDS ON THE TOKENS AFTER IT: training sees the future. --routing-balanced 1 is this form,
// for comparison; a model trained with it cannot generate text.
// Centroids follow their members instead of the loss: mu moves by rate K / tokens times the sum over members of (r - mu), r = n /
// |n|, which for clusters of equal size is the paper's moving average with decay 1 - rate = 0.999. A centroid without members does
// not move. One implementation (lucidrains) also normalises mu after every step, while here only the choice divides by |mu|: a
// centroid whose members disagree is shorter and turns faster. It also pulls tokens to their centroid by a small loss (commitment,
// 1e-4), which is absent here; its shared keys are unit vectors, so that its scores are ours / sqrt(HS); and it adds 1e-5 to the
// number of clusters that it averages over. Assumptions: routed heads see no positions (the local heads do); values are shared in
// groups as everywhere; routed heads do not use their group's keys. The choice has no gradient. Rows are sorted by cluster, so that
// tiles of two different clusters are never visited.
// In a packed row the tokens of one document in a cluster are a group, whose first token sees itself alone. All documents share the
// centroids.
#pragma once
#include "attention/branches/branches.cuh"
#include "attention/branches/repeated_rows.cuh"
#include "attention/masks/balanced_clusters.cuh"
#include "attention/masks/clusters.cuh"
#include "attention/scores/each_element.cuh"
#include "attention/scores/layernorm.h"

/// The mask over rows, by the positions of ClusterRows. Groups have up to R rows.
struct ClusterPolicy : Policy {
    int local, left, R;
    ClusterPolicy(int local_, int left_, int R_) : Policy(Config{}, 0), local(local_), left(std::min(left_, R_)), R(R_) {}

    constexpr bool visible(int h, int i, int j) const { return h < local ? j <= i && i - j <= left : j < i && i - j <= R; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (h < local) return window_tile(left, i0, i1, j0, j1);
        if (j0 >= i1 - 1 || i0 - (j1 - 1) > R) return Tile::hidden;
        return j1 - 1 < i0 && i1 - 1 - j0 <= R ? Tile::full : Tile::mixed;
    }
};

/// RepeatedRows restricted to heads [first, last): the others have no rows outside the branch.
struct RowsOfHeads {
    int count;
    RepeatedRows all;
    int first, last;
    constexpr int token(int b, int h, int row) const { return all.token(b, h, row); }
    constexpr int next(int b, int h, int row) const { return all.next(b, h, row); }
    constexpr int row(int b, int h, int token) const { return h >= first && h < last ? all.row(b, h, token) : -1; }
};

struct routing : Policy {
    static constexpr const char* name = "routing";
    static constexpr Traits traits{.own_passes = true, .reads_qk_pre = true, .tokens_choose = true, .sorts_tokens = true};
    int NH, HS, local, left, clusters;
    double rate;
    bool balanced;
    Slot mu;   // (NH - local, K, HS), a statistic

    routing(const Config& config, int layer)
        : Policy(config, layer), NH(config.NH), HS(config.HS), local(int(config.setting("routing_local_heads"))),
          left(int(config.setting("attention_window"))), clusters(int(config.setting("routing_clusters"))),
          rate(config.setting("routing_rate")), balanced(config.setting("routing_balanced") == 1) {
        if (local > NH)
            fail(Exit::usage, "--routing-local-heads is ", local, "; with ", NH, " heads it must be from 0 to ", NH, ", or -1");
        if (local < 0) local = NH / 2;
    }

    static std::vector<Setting> settings() {
        return {
            {"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach of local heads in tokens: query i sees keys i-N..i", true},
            {"--routing-clusters", "routing_clusters", 32, 1, 4096, WHOLE, "clusters of each routed head; about the square root of T",
             true},
            {"--routing-local-heads", "routing_local_heads", -1, -1, 1e6, WHOLE,
             "number of leading heads that are local, with a window; -1: half of them"},
            {"--routing-rate", "routing_rate", 0.001, 1e-9, 1, REAL, "update rate of the centroids towards their members, per step"},
            {"--routing-balanced", "routing_balanced", 0, 0, 1, WHOLE,
             "assignment: 0 tokens choose clusters; 1 clusters of equal size, as published, WHICH LOOKS INTO THE FUTURE"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        if (local < NH)
            mu = list.add_statistic(prefix + "routing.mu", {NH - local, clusters, HS}, normal(1 / std::sqrt(double(HS))), rate);
    }

    /// With a single cluster there is nothing to choose.
    Form form() const { return {.is_causal = !balanced || clusters == 1 || local == NH}; }

    /// A window in local heads; T / K tokens in each cluster of the others, as if they were of equal size.
    PairCount expected_pairs(int heads, int T) const {
        const PairCount window = count_pairs(WindowBranch(left), 1, T);
        const double size = balanced ? size_of_clusters(T) : std::max(1.0, double(T) / clusters);
        const double groups = balanced ? clusters : T / size, tiles = std::ceil(groups * size / TILE);
        const double of_cluster = size * (size - 1) / 2 + 1, across = std::max(1.0, size / TILE);
        return {local * window.pairs + (heads - local) * groups * of_cluster,
                local * window.tiles + (heads - local) * tiles * (across + 1) / 2};
    }

    int size_of_clusters(int T) const { return std::max(1, T / clusters); }
    ClusterShape shape(const LayerShape& s) const {
        return {s.B, s.T, NH, HS, local, clusters, balanced ? size_of_clusters(s.T) : 0};
    }

    // ---- memory

    /// The rows' own outputs and log-sum-exps are kept, as the layer's output is an average over a token's rows.
    template <class X>
    struct Kept {
        BumpAllocator allocator;
        LayerShape s;
        ClusterShape c;
        ClusterRows sorted{take(c.rows_of(c.B, 0)), take(c.rows_of(c.B, 0)), take(c.rows_of(c.B, 0)), take(c.ends_of(c.B, 0))};
        RepeatedRows rows{c.rows(), c.T, c.NH, sorted.tokens, take(c.rows_of(c.B, 0)), take(c.list(c.B, 0))};   // the same tokens
        BranchResults<X> results{allocator, s, c.rows()};
        int* take(size_t count) { return allocator.take<int>(count); }
    };
    template <class X>
    struct ForwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ClusterShape c;
        BranchInputs<X> inputs{allocator, s, c.rows(), s.NH};
        int* nearest = c.size ? nullptr : allocator.take<int>(size_t(s.B) * s.NH * s.T);   // (B, NH, T), where tokens choose
        Wide<X>* cosines = c.size ? allocator.take<Wide<X>>(c.cosines(s.B, c.local, 0)) : nullptr;   // (B, NH - local, K, T)
    };
    template <class X>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        ClusterShape c;
        size_t kernel_bytes, of_rows = size_t(s.B) * c.rows() * s.NH * s.HS;
        BranchInputs<X> inputs{allocator, s, c.rows(), s.NH};
        X *dout = allocator.take<X>(of_rows), *dv = allocator.take<X>(of_rows);                        // (B, R, NH, HS)
        Wide<X>*dq = allocator.take<Wide<X>>(of_rows), *dk = allocator.take<Wide<X>>(of_rows);         // the same
        Wide<X>* dn = allocator.take<Wide<X>>(size_t(s.B) * s.T * s.NH * s.HS);                        // (B, T, NH, HS)
        std::byte* kernel = allocator.take<std::byte>(kernel_bytes);
    };

    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return Kept<X>{BumpAllocator(nullptr), s, shape(s)}.allocator.bytes();
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        const BumpAllocator none(nullptr);
        const ForwardScratch<X> forward{none, s, shape(s)};
        const BackwardScratch<X> backward{none, s, shape(s), kernel_bytes(device, s)};
        return std::max(forward.allocator.bytes(), backward.allocator.bytes());
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const ClusterShape s = shape(in);
        const Kept<X> kept{BumpAllocator(state.kept), in, s};
        const ForwardScratch<X> scratch{BumpAllocator(workspace), in, s};
        form_clusters(device, kept, scratch, in, weights, s);
        AttentionForward<X> a = sorted_inputs(device, scratch.inputs, kept, in);
        a.statistics = kept.results.statistics_for(statistics);
        attention_forward(device, ClusterPolicy(local, left, a.T), a);
        average_rows(device, state.out, state.lse, kept.results.branch(kept.rows), {in.B, in.T, in.NH, in.NH, in.HS}, statistics);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const ClusterShape s = shape(in);
        const Kept<X> kept{BumpAllocator(state.kept), in, s};
        const BackwardScratch<X> scratch{BumpAllocator(workspace), in, s, kernel_bytes(device, in)};
        const RowShape queries{in.B, in.T, in.NH, in.NH, in.HS}, keys{in.B, in.T, in.NH, in.NKV, in.HS};
        const size_t row = size_t(NH) * HS;
        const AttentionForward<X> a = sorted_inputs(device, scratch.inputs, kept, in);
        share_gradient(device, scratch.dout, dout, kept.rows, queries, balanced);
        const QkvGradients<X> sorted{{scratch.dq, row}, {scratch.dk, row}, {scratch.dv, row}};
        attention_backward(device, ClusterPolicy(local, left, a.T), a, kernel_gradients<X>(scratch.dout, sorted, scratch.kernel));

        const RepeatedRows& all = kept.rows;
        const RowsOfHeads of_local{all.count, all, 0, local}, of_routed{all.count, all, local, NH};
        const W *dq = scratch.dq, *dk = scratch.dk;
        scatter_add_rows(device, to.q, dq, of_local, queries, Write::overwrite);
        scatter_add_rows(device, to.k, dk, of_local, keys, Write::overwrite);
        scatter_add_rows(device, to.v, static_cast<const X*>(scratch.dv), all, keys, Write::overwrite);
        scatter_add_rows(device, Heads<W>{scratch.dn, row}, dq, of_routed, queries, Write::overwrite);
        scatter_add_rows(device, Heads<W>{scratch.dn, row}, dk, of_routed, queries, Write::add);
        content_vectors_backward(device, more.dq_pre, in.qk_row, scratch.dn, in, s);
        clear_heads(device, Heads<W>{more.dk_pre, in.qk_row}, in.B * in.T, in.NKV, in.HS);
        if (local < NH)
            pull_centroids(device, more.dweights + mu.offset, static_cast<const X*>(scratch.inputs.q), kept.sorted.ends,
                           weights + mu.offset, s, more.dloss);
    }

    // ---- the formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        std::fill_n(out, size_t(in.B) * in.T * NH * HS, X(0));
        std::vector<X> found(size_t(in.B) * in.T * NH * HS);
        for (int b = 0; b < in.B; b++) {
            std::vector<X> n(size_t(NH) * in.T * HS);
            for (int h = local; h < NH; h++)
                for (int t = 0; t < in.T; t++)
                    layernorm_row(&n[(size_t(h) * in.T + t) * HS], in.query(in.q_pre, b, t, h), HS, CLUSTER_EPS);
            const std::vector<char> member = naive_members(n, weights, in.T);
            auto is_member = [&](int h, int c, int t) { return bool(member[(size_t(h) * clusters + c) * in.T + t]); };
            auto modify = [&](int, int h, int i, int j, X a) {
                if (h < local) return a;
                const X z = dot(&n[(size_t(h) * in.T + i) * HS], &n[(size_t(h) * in.T + j) * HS], HS) / std::sqrt(X(HS));
                return i == j ? X(-5e4) : z;   // sees itself only where it is alone
            };
            for (int c = 0; c < clusters; c++) {   // the average of a token's outputs in each of its clusters
                dense_softmax_of_sequence(in, b, found.data(), modify, [&](int h, int i, int j) {
                    return j <= i && is_member(h, c, i) && is_member(h, c, j) && (h >= local || j >= i - left);
                });
                for (int t = 0; t < in.T; t++)
                    for (int h = 0; h < NH; h++) {
                        int times = 0;
                        for (int any = 0; any < clusters; any++) times += is_member(h, any, t);
                        const size_t at = (in.token(b, t) * NH + h) * HS;
                        for (int d = 0; times && d < HS; d++) out[at + d] += found[at + d] / times;
                    }
            }
        }
    }

private:
    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        const int R = shape(s).rows();
        return attention_workspace(device, ClusterPolicy(local, left, R), s.B, R, R, s.NH);
    }

    /// Assigns tokens to rows.
    template <class Device, class X>
    void form_clusters(Device device, const Kept<X>& kept, const ForwardScratch<X>& scratch, const LayerInputs<X>& in,
                       const X* weights, const ClusterShape& s) const {
        if (local < NH && !balanced) nearest_centroids(device, scratch.nearest, in, weights + mu.offset, s);
        sort_by_cluster(device, kept.sorted, scratch.nearest, s);
        if (local < NH && balanced) {
            centroid_cosines(device, scratch.cosines, in, weights + mu.offset, s);
            take_greatest(device, kept.sorted, scratch.cosines, s);
        }
        link_rows(device, kept.rows, s.B, balanced ? s.size : s.rows());
        if (!in.documents) return;
        if (!DivideByDocument::fits(s))
            fail(Exit::usage, "--seq-len ", s.T, " is too long for routing with --document-mask 1, which supports up to about 46,000 "
                 "tokens; lower it");
        each_element(device, size_t(s.B) * s.NH, s.rows(), DivideByDocument{kept.sorted, s, in.documents});
    }

    /// q, k and v in the order of the clusters: the arguments of a kernel call.
    template <class Device, class X>
    AttentionForward<X> sorted_inputs(Device device, const BranchInputs<X>& to, const Kept<X>& kept,
                                      const LayerInputs<X>& in) const {
        content_rows(device, to.q, to.k, in, kept.rows.tokens, shape(in));
        gather_rows(device, to.v, Heads<const X>{in.v, in.v_row}, kept.rows, {in.B, in.T, in.NH, in.NKV, in.HS});
        const size_t row = size_t(NH) * HS;
        AttentionForward<X> a{};
        a.B = in.B, a.T = a.S = kept.rows.count, a.NH = a.NKV = NH, a.HS = HS;
        a.q = Heads<const X>{to.q, row}, a.k = Heads<const X>{to.k, row}, a.v = Heads<const X>{to.v, row};
        a.q_position = kept.sorted.queries, a.k_position = kept.sorted.keys;
        a.out = kept.results.out, a.lse = kept.results.lse;
        return a;
    }

    /// (NH, K, T) whether a token is in a cluster; local heads are one cluster of everything. n (NH, T, HS).
    template <class X>
    std::vector<char> naive_members(const std::vector<X>& n, const X* weights, int T) const {
        std::vector<char> member(size_t(NH) * clusters * T, 0);
        auto set = [&](int h, int c, int t) { member[(size_t(h) * clusters + c) * T + t] = 1; };
        for (int h = 0; h < NH; h++) {
            if (h < local) {
                for (int t = 0; t < T; t++) set(h, 0, t);
                continue;
            }
            std::vector<X> cosine(size_t(clusters) * T);
            for (size_t at = 0; at < cosine.size(); at++) {
                const X* centroid = weights + mu.offset + (size_t(h - local) * clusters + at / T) * HS;
                cosine[at] = dot(centroid, &n[(size_t(h) * T + at % T) * HS], HS) / std::sqrt(dot(centroid, centroid, HS));
            }
            for (size_t at = 0; at < cosine.size(); at++) {
                const int c = int(at / T), t = int(at % T);
                int nearer_centroids = 0, nearer_tokens = 0;
                for (int other = 0; other < clusters; other++) nearer_centroids += cosine[size_t(other) * T + t] > cosine[at];
                for (int other = 0; other < T; other++) nearer_tokens += cosine[size_t(c) * T + other] > cosine[at];
                if (balanced ? nearer_tokens < std::max(1, T / clusters) : nearer_centroids == 0) set(h, c, t);
            }
        }
        return member;
    }
};
