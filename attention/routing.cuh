// Routing Transformer (Roy et al. 2020, arXiv 2003.05997): content decides who attends to whom. Half of the heads have a local
// window; in the others every token joins the cluster with the nearest centroid, and attends to the tokens of its cluster before
// it.
//     n_t = LN(q_t) without affine, q before RoPE;   cluster(t) = argmax_c mu_hc . n_t / |mu_hc|
//     z_ij = n_i.n_j / sqrt(HS)   for j < i in i's cluster; the first token of a cluster sees itself alone
// Queries and keys are the same vectors here, which is why a token does not look at itself: it would see little else.
// The paper balances clusters: every centroid takes its top T / K tokens of the whole sequence, so that WHETHER A TOKEN IS IN A
// CLUSTER DEPENDS ON THE TOKENS AFTER IT. This file has the causal form, in which each token decides by itself and clusters differ
// in size. Centroids follow their members instead of the loss: mu moves by rate K / tokens times the sum over members of (r - mu),
// r = n / |n|, which for clusters of one size is the paper's moving average with decay 1 - rate = 0.999. A centroid without members
// stays. Left open, and read here: routed heads see no positions (the local heads do); values are shared in groups as everywhere;
// routed heads do not use their group's keys. The choice has no gradient. Rows are sorted by cluster, so that tiles of two clusters
// are never visited.
#pragma once
#include "attention/core/branches.cuh"
#include "attention/core/clusters.cuh"

/// Judges rows by positions: the token in local heads, cluster T + place in the cluster in the others.
struct ClusterPolicy : Policy {
    int local, left, T;
    ClusterPolicy(int local_, int left_, int T_) : Policy(Config{}, 0), local(local_), left(left_), T(T_) {}

    constexpr bool visible(int h, int i, int j) const {
        if (h < local) return j <= i && i - j <= left;
        return i / T == j / T && (j < i || (j == i && i % T == 0));
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (h < local) return window_tile(left, i0, i1, j0, j1);
        if (j0 > i1 - 1 || (j1 - 1) / T < i0 / T) return Tile::hidden;
        return i0 / T == (i1 - 1) / T && j0 / T == i0 / T && j1 - 1 < i0 ? Tile::full : Tile::mixed;
    }
};

/// ListedRows for the heads [first, last) alone: the others have no rows outside of the branch.
struct RowsOfHeads {
    int count;
    ListedRows all;
    int first, last;
    constexpr int token(int b, int h, int row) const { return all.token(b, h, row); }
    constexpr int row(int b, int h, int token) const { return h >= first && h < last ? all.row(b, h, token) : -1; }
};

struct routing : Policy {
    static constexpr const char* name = "routing";
    static constexpr bool tokens_choose = true;
    static constexpr bool composite = true;
    static constexpr bool reads_qk_pre = true;
    static constexpr bool sorts_tokens = true;
    int NH, HS, local, left, clusters;
    double rate;
    Slot mu;   // (NH - local, K, HS), a statistic

    routing(const Config& config, int layer)
        : Policy(config, layer), NH(config.NH), HS(config.HS), local(int(config.setting("routing_local_heads"))),
          left(int(config.setting("attention_window"))), clusters(int(config.setting("routing_clusters"))),
          rate(config.setting("routing_rate")) {
        if (local > NH)
            fail(Exit::usage, "--routing-local-heads is ", local, "; with ", NH, " heads it must be from 0 to ", NH, ", or -1");
        if (local < 0) local = NH / 2;
    }

    static std::vector<Setting> settings() {
        return {
            {"--window", "attention_window", 256, 0, 1e9, true, "left reach of the local heads: keys i-N..i are visible"},
            {"--routing-clusters", "routing_clusters", 32, 1, 4096, true, "clusters of each routed head; about the root of T"},
            {"--routing-local-heads", "routing_local_heads", -1, -1, 1e6, true, "the first heads, with a window; -1: half of them"},
            {"--routing-rate", "routing_rate", 0.001, 1e-9, 1, false, "how fast centroids follow their members"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        if (local < NH)
            mu = list.add_statistic(prefix + "routing.mu", {NH - local, clusters, HS}, normal(1 / std::sqrt(double(HS))), rate);
    }

    /// A window in local heads; T / K tokens in each cluster of the others, if they are of one size.
    PairCount expected_pairs(int heads, int T) const {
        const PairCount window = count_pairs(WindowBranch(left), 1, T);
        const double size = std::max(1.0, double(T) / clusters), groups = T / size, tiles = std::ceil(T / double(TILE));
        const double of_cluster = size * (size - 1) / 2 + 1, across = std::max(1.0, size / TILE);
        return {local * window.pairs + (heads - local) * groups * of_cluster,
                local * window.tiles + (heads - local) * tiles * (across + 1) / 2};
    }

    // ---- memory

    template <class X>
    struct Kept {
        Carve carve;
        int *tokens, *rows, *positions;   // (B, NH, T)
        Kept(std::byte* block, const LayerShape& s) : carve(block) {
            for (int** array : {&tokens, &rows, &positions}) *array = carve.take<int>(size_t(s.B) * s.NH * s.T);
        }
        ListedRows listed(const LayerShape& s) const { return {s.T, s.T, s.NH, tokens, rows}; }
    };
    template <class X>
    struct ForwardScratch {
        Carve carve;
        X *q, *k;       // (B, T, NH, HS) content vectors
        int* nearest;   // (B, NH, T)
        BranchInputs<X> inputs;
        BranchResults<X> results;
        ForwardScratch(std::byte* block, const LayerShape& s)
            : carve(block), inputs(take_inputs(s)), results(carve, carve, s, s.T) {}

    private:
        BranchInputs<X> take_inputs(const LayerShape& s) {
            const size_t heads = size_t(s.B) * s.T * s.NH;
            q = carve.take<X>(heads * s.HS), k = carve.take<X>(heads * s.HS), nearest = carve.take<int>(heads);
            return {carve, s, s.T, s.NH};
        }
    };
    template <class X>
    struct BackwardScratch {
        Carve carve;
        X *q, *k;      // (B, T, NH, HS)
        Wide<X>* dn;   // (B, T, NH, HS)
        BranchInputs<X> inputs;
        BranchGradients<X> gradients;
        BackwardScratch(std::byte* block, const LayerShape& s, size_t kernel_bytes)
            : carve(block), inputs(take_inputs(s)), gradients(carve, s, s.T, s.NH, kernel_bytes) {}

    private:
        BranchInputs<X> take_inputs(const LayerShape& s) {
            const size_t numbers = size_t(s.B) * s.T * s.NH * s.HS;
            q = carve.take<X>(numbers), k = carve.take<X>(numbers), dn = carve.take<Wide<X>>(numbers);
            return {carve, s, s.T, s.NH};
        }
    };

    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return Kept<X>(nullptr, s).carve.bytes();
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return std::max(ForwardScratch<X>(nullptr, s).carve.bytes(),
                        BackwardScratch<X>(nullptr, s, kernel_bytes(device, s)).carve.bytes());
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const Kept<X> kept(state.kept, in);
        const ForwardScratch<X> scratch(workspace, in);
        const ClusterShape s = shape(in);
        content_vectors(device, scratch.q, scratch.k, in, s);
        if (local < NH) nearest_centroids(device, scratch.nearest, scratch.q, weights + mu.offset, s);
        sort_by_cluster(device, kept.tokens, kept.rows, kept.positions, scratch.nearest, s);
        AttentionForward<X> a = sorted_inputs(device, scratch.inputs, scratch.q, scratch.k, kept, in);
        a.out = scratch.results.out, a.lse = scratch.results.lse, a.statistics = scratch.results.statistics_for(statistics);
        attention_forward(device, ClusterPolicy(local, left, in.T), a);
        Branches<X, ListedRows> sorted;
        sorted.add(scratch.results.branch(kept.listed(in)));
        merge_forward(device, state.out, state.lse, sorted, {in.B, in.T, in.NH, in.NH, in.HS}, statistics);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ExtraGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const Kept<X> kept(state.kept, in);
        const BackwardScratch<X> scratch(workspace, in, kernel_bytes(device, in));
        const ClusterShape s = shape(in);
        content_vectors(device, scratch.q, scratch.k, in, s);
        AttentionForward<X> a = sorted_inputs(device, scratch.inputs, scratch.q, scratch.k, kept, in);
        sorted_backward(device, a, in, state, dout, scratch.gradients, kept.listed(in));

        const size_t row = size_t(NH) * HS;
        const RowShape queries{in.B, in.T, in.NH, in.NH, in.HS}, keys{in.B, in.T, in.NH, in.NKV, in.HS};
        const ListedRows all = kept.listed(in);
        const RowsOfHeads of_local{all.count, all, 0, local}, of_routed{all.count, all, local, NH};
        const W *dq = scratch.gradients.dq, *dk = scratch.gradients.dk;
        send_rows_back(device, to.q, dq, of_local, queries, Write::overwrite);
        send_rows_back(device, to.k, dk, of_local, keys, Write::overwrite);
        send_rows_back(device, to.v, static_cast<const X*>(scratch.gradients.dv), all, keys, Write::overwrite);
        send_rows_back(device, Heads<W>{scratch.dn, row}, dq, of_routed, queries, Write::overwrite);
        send_rows_back(device, Heads<W>{scratch.dn, row}, dk, of_routed, queries, Write::add);
        content_vectors_backward(device, more.dq_pre, in.qk_row, scratch.dn, in, s);
        const RowsOfHeads nobody{all.count, all, 0, 0};
        send_rows_back(device, Heads<W>{more.dk_pre, in.qk_row}, dk, nobody, keys, Write::overwrite);   // zero
        if (local < NH)
            pull_centroids(device, more.dweights + mu.offset, static_cast<const X*>(scratch.inputs.q), kept.positions,
                           weights + mu.offset, s, more.dloss);
    }

    // ---- the formula with none of the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        for (int b = 0; b < in.B; b++) {
            std::vector<X> n(size_t(NH) * in.T * HS);
            std::vector<int> cluster(size_t(NH) * in.T, 0);
            for (int h = local; h < NH; h++)
                for (int t = 0; t < in.T; t++) {
                    X* mine = &n[(size_t(h) * in.T + t) * HS];
                    layernorm_row(mine, in.query(in.q_pre, b, t, h), HS, CLUSTER_EPS);
                    std::vector<X> cosine(clusters);
                    for (int c = 0; c < clusters; c++) {
                        const X* centroid = weights + mu.offset + (size_t(h - local) * clusters + c) * HS;
                        cosine[c] = dot(centroid, mine, HS) / std::sqrt(dot(centroid, centroid, HS));
                    }
                    cluster[size_t(h) * in.T + t] = int(std::max_element(cosine.begin(), cosine.end()) - cosine.begin());
                }
            auto modify = [&](int, int h, int i, int j, X a) {
                if (h < local) return a;
                const X z = dot(&n[(size_t(h) * in.T + i) * HS], &n[(size_t(h) * in.T + j) * HS], HS) / std::sqrt(X(HS));
                return i == j ? X(-5e4) : z;   // to itself only when it is alone
            };
            dense_softmax_of_sequence(in, b, out, modify, [&](int h, int i, int j) {
                if (h < local) return j <= i && j >= i - left;
                return j <= i && cluster[size_t(h) * in.T + i] == cluster[size_t(h) * in.T + j];
            });
        }
    }

private:
    ClusterShape shape(const LayerShape& s) const { return {s.B, s.T, NH, HS, local, clusters}; }

    template <class Device>
    size_t kernel_bytes(Device device, const LayerShape& s) const {
        return attention_workspace(device, ClusterPolicy(local, left, s.T), s.B, s.T, s.T, s.NH);
    }

    /// q, k and v in the order of the clusters; the result is the arguments of a kernel call but for its outputs.
    template <class Device, class X>
    AttentionForward<X> sorted_inputs(Device device, const BranchInputs<X>& to, const X* q, const X* k, const Kept<X>& kept,
                                      const LayerInputs<X>& in) const {
        const size_t row = size_t(NH) * HS;
        const ListedRows rows = kept.listed(in);
        const RowShape own{in.B, in.T, in.NH, in.NH, in.HS}, shared{in.B, in.T, in.NH, in.NKV, in.HS};
        gather_rows(device, to.q, Heads<const X>{q, row}, rows, own);
        gather_rows(device, to.k, Heads<const X>{k, row}, rows, own);
        gather_rows(device, to.v, Heads<const X>{in.v, in.v_row}, rows, shared);
        AttentionForward<X> a{};
        a.B = in.B, a.T = in.T, a.S = in.T, a.NH = NH, a.NKV = NH, a.HS = HS;
        a.q = {to.q, row}, a.k = {to.k, row}, a.v = {to.v, row};
        a.q_position = a.k_position = kept.positions;
        return a;
    }

    /// The kernel's gradients in the order of the clusters.
    template <class Device, class X>
    void sorted_backward(Device device, AttentionForward<X>& a, const LayerInputs<X>& in, const LayerState<X>& state, const X* dout,
                         const BranchGradients<X>& to, const ListedRows& rows) const {
        using W = Wide<X>;
        const size_t row = size_t(NH) * HS;
        const RowShape own{in.B, in.T, in.NH, in.NH, in.HS};
        gather_rows(device, to.dout, Heads<const X>{dout, row}, rows, own);
        gather_rows(device, to.out, Heads<const X>{state.out, row}, rows, own);
        gather_numbers(device, to.lse, static_cast<const W*>(state.lse), rows, in.B, in.T, NH, W(-INFINITY));
        a.out = to.out, a.lse = to.lse;
        AttentionBackward<X> g{};
        g.dout = to.dout;
        g.dq = {to.dq, row}, g.dk = {to.dk, row}, g.dv = {to.dv, row};
        g.workspace = to.kernel;
        attention_backward(device, ClusterPolicy(local, left, in.T), a, g);
    }
};
