// Descriptions (operation.h) of what NSA is made of, for every device.
#pragma once
#include <cmath>

#include "attention/gates/gated_sum.cuh"
#include "attention/nsa/importance.cuh"
#include "tests/operation.h"

/// Blocks of keys through the small network (attention/nsa/compress.cuh). Its tensors are one array: pe, W1, b1, W2.
struct Compression {
    int B, T, NKV, HS, hidden, l, d;
    Write write;   // of the gradient of the keys
    static constexpr bool any_threads = true;

    CompressShape shape() const { return {B, T, NKV, HS, hidden, {l, d}}; }
    size_t tokens() const { return size_t(B) * T * NKV * HS; }
    int rows() const { return shape().grid.rows(T); }
    int length() const { return std::max({l * HS, hidden, int(shape().keys())}); }
    Compressor phi() const {
        const size_t width = size_t(l) * HS, w1 = width, b1 = w1 + width * hidden, w2 = b1 + hidden;
        return {{0, width}, {w1, width * hidden}, {b1, size_t(hidden)}, {w2, size_t(HS) * hidden}};
    }
    std::vector<ArrayOf> inputs() const { return {{"inp", tokens()}, {"phi", phi().w2.offset + phi().w2.size, 0, true}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        const double *pe = in[1].data(), *w1 = pe + phi().w1.offset, *b1 = pe + phi().b1.offset, *w2 = pe + phi().w2.offset;
        std::vector<double> out;
        for (int n = 0; n < B * rows() * NKV; n++) {
            const int b = n / NKV / rows(), c = n / NKV % rows(), kv = n % NKV;
            std::vector<double> activated;
            for (int u = 0; u < hidden; u++) {
                double y = b1[u];
                for (int m = 0; m < l * HS; m++) {
                    const int t = c * d + m / HS;
                    const double x = t < T ? in[0][((b * T + t) * NKV + kv) * HS + m % HS] : 0;
                    y += w1[u * l * HS + m] * (x + pe[m]);
                }
                activated.push_back(y / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y))));
            }
            for (int o = 0; o < HS; o++) {
                out.push_back(0);
                for (int u = 0; u < hidden; u++) out.back() += w2[o * hidden + u] * activated[u];
            }
        }
        return out;
    }

    /// Everything that both passes read and write.
    template <class X, class Device>
    struct Run {
        On<Device, X> inp, weights, out, hidden, work_memory;
        On<Device, Wide<X>> dweights;
        Heads<const X> keys;
        CompressWork<X> work;

        Run(const Compression& c, const Arrays<Wide<X>>& in, Device device)
            : inp(in[0]), weights(in[1]), out(nan(c.shape().keys() * c.HS)), hidden(nan(c.shape().keys() * c.hidden)),
              work_memory(nan(bytes(c) / sizeof(X) + 1)), dweights(buffer<Wide<X>>(in[1].size(), Write::add)),
              keys{inp.data(), size_t(c.NKV) * c.HS}, work(at(c, work_memory.data())) {
            compress_forward(device, out.data(), hidden.data(), keys, weights.data(), c.phi(), c.shape(), work);
        }
        static std::vector<Wide<X>> nan(size_t n) { return buffer<Wide<X>>(n, Write::overwrite); }
        static CompressWork<X> at(const Compression& c, X* memory) {
            BumpAllocator allocator(reinterpret_cast<std::byte*>(memory));
            return {allocator, c.shape()};
        }
        static size_t bytes(const Compression& c) {
            BumpAllocator allocator(nullptr);
            CompressWork<X>(allocator, c.shape());
            return allocator.bytes();
        }
    };
    template <class X, class Device = CPU>
    std::vector<Wide<X>> forward(const Arrays<Wide<X>>& in, Device device = {}) const {
        return Run<X, Device>(*this, in, device).out.numbers();
    }
    template <class X, class Device = CPU>
    Arrays<Wide<X>> backward(const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout, Device device = {}) const {
        Run<X, Device> run(*this, in, device);
        On<Device, X> d_out(dout), dinp(buffer<Wide<X>>(in[0].size(), write));
        compress_backward(device, Heads<X>{dinp.data(), size_t(NKV) * HS}, run.dweights.data(), d_out.data(), run.hidden.data(),
                          run.keys, run.weights.data(), phi(), shape(), run.work, write);
        return {contribution(dinp.numbers(), write), contribution(run.dweights.numbers(), Write::add)};
    }
};
