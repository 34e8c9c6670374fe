// nsa's oracle: keys, softmax and choice of blocks of each branch in dense loops, for one sequence. Shares no code with the rest of
// this folder. A is nsa, from which sizes, settings and slots are read.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/blocks/naive_choice.h"
#include "attention/nsa/compress.cuh"
#include "attention/nsa/selection.cuh"
#include "model/rope.h"

template <class A, class X>
struct NaiveNsa {
    const A& a;
    const LayerInputs<X>& in;
    int b;
    std::vector<X> k_cmp, v_cmp, k_slc, v_slc, k_win, v_win;   // (tokens, NKV HS)
    std::vector<X> gates;                                      // (T, 3, NH)

    NaiveNsa(const A& a_, const LayerInputs<X>& in_, const X* weights, int b_) : a(a_), in(in_), b(b_) {
        std::vector<X> k, v;   // inputs of phi
        for (int t = 0; t < in.T; t++) {
            const X *x = in.x + in.token(b, t) * a.C, *rotated = in.key(in.k, b, t, 0), *value = in.value(b, t, 0);
            auto append = [&](std::vector<X>& to, const X* from) { to.insert(to.end(), from, from + a.kv()); };
            auto project = [&](std::vector<X>& to, int part) {
                for (size_t o = 0; o < a.kv(); o++)
                    to.push_back(dot(x, weights + a.projections.offset + (part * a.kv() + o) * a.C, a.C));
            };
            append(k_win, rotated), append(v_win, value);
            if (a.shared) {
                append(k, in.key(in.k_pre, b, t, 0)), append(v, value), append(k_slc, rotated), append(v_slc, value);
            } else {
                project(k, 0), project(v, 1), project(k_slc, 2), project(v_slc, 3);
                rotate(&k_slc[t * a.kv()], t);
            }
            for (int n = 0; n < 3 * a.NH; n++)
                gates.push_back(1 / (1 + std::exp(-dot(x, weights + a.w_g.offset + size_t(n) * a.C, a.C))));
        }
        for (int c = 0; c * a.grid.d + a.grid.l <= in.T; c++)
            for (int kv = 0; kv < a.NKV; kv++) {
                compress(k_cmp, k, weights, a.phi_k, c, kv);
                compress(v_cmp, v, weights, a.phi_v, c, kv);
            }
    }

    /// Softmax of q over the visible keys, 0 for the others; all 0 if none is visible. Heads begin at `at` in a token.
    template <class Visible>
    std::vector<X> softmax(const X* q, const std::vector<X>& keys, size_t at, Visible visible) const {
        const int count = int(keys.size() / a.kv());
        std::vector<X> p(count);
        X largest = -INFINITY, total = 0;
        for (int j = 0; j < count; j++)
            if (visible(j)) largest = std::max(largest, p[j] = dot(q, &keys[j * a.kv() + at], a.HS) / std::sqrt(X(a.HS)));
        for (int j = 0; j < count; j++) total += p[j] = visible(j) ? std::exp(p[j] - largest) : X(0);
        for (X& share : p) share /= total > 0 ? total : X(1);
        return p;
    }

    /// The blocks that token t sees: its own choice, or the choice of the first token of its tile.
    std::vector<bool> choice(int kv_head, int t) const {
        const int own = t / TILE, chooser = t - t % a.selection.every;
        std::vector<X> score(own + 1);
        for (int h = kv_head * (a.NH / a.NKV); h < (kv_head + 1) * (a.NH / a.NKV); h++) {
            const std::vector<X> p = softmax(in.query(in.q_pre, b, chooser, h), k_cmp, size_t(kv_head) * a.HS,
                                             [&](int c) { return c * a.grid.d + a.grid.l - 1 <= chooser; });
            for (int c = 0; c < int(p.size()); c++)
                for (int token = c * a.grid.d; token < c * a.grid.d + a.grid.l && token < (own + 1) * TILE; token++)
                    score[token / TILE] += p[c];
        }
        return naive_choice(score.data(), {.top = a.selection.blocks - 3, .leading = 1, .local = 2}, own);
    }

private:
    void rotate(X* token, int t) const {
        for (int kv = 0; kv < a.NKV; kv++)
            for (int d = 0; d < a.HS / 2; d++) {
                X &x1 = token[kv * a.HS + d], &x2 = token[kv * a.HS + d + a.HS / 2];
                rotate_pair(x1, x2, in.cosine[size_t(t) * (a.HS / 2) + d], in.sine[size_t(t) * (a.HS / 2) + d]);
            }
    }
    void compress(std::vector<X>& to, const std::vector<X>& from, const X* weights, const Compressor& phi, int c, int kv) const {
        const int l = a.grid.l, HS = a.HS;
        std::vector<X> hidden(HS);
        for (int u = 0; u < HS; u++) {
            X y = weights[phi.b1.offset + u];
            for (int n = 0; n < l * HS; n++)
                y += weights[phi.w1.offset + size_t(u) * l * HS + n] *
                     (from[(c * a.grid.d + n / HS) * a.kv() + kv * HS + n % HS] + weights[phi.pe.offset + n]);
            hidden[u] = X(0.5) * y * (1 + std::tanh(std::sqrt(X(2 / M_PI)) * (y + X(0.044715) * y * y * y)));
        }
        for (int d = 0; d < HS; d++) to.push_back(dot(weights + phi.w2.offset + size_t(d) * HS, hidden.data(), HS));
    }
};
