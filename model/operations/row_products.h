// A few rows times a matrix, as in every linear layer when text is written: what that costs is reading the matrix, once for all
// rows. A library packs it first, for reuse by many rows. The sum of a row and an output is taken in the same order whatever is
// beside it, so that texts that are written side by side get the bits that each would get alone.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "model/base/bf16.h"
#include "model/device/math.h"

/// At most so many rows: with more, arithmetic costs more than reading, and a library is better at it.
inline constexpr int FEW_ROWS = 16;

/// Register<X>: a SIMD vector of 32 bytes, which is a register where there is AVX2. (GCC keeps a sum of 64 bytes in memory there.)
template <class X>
struct RegisterOf;
template <>
struct RegisterOf<float> {
    typedef float type __attribute__((vector_size(32)));
};
template <>
struct RegisterOf<double> {
    typedef double type __attribute__((vector_size(32)));
};
template <class X>
using Register = typename RegisterOf<X>::type;

/// How a matrix of W is read by a model of X: in units of 32 bytes, which become `registers` registers. Element n of a unit is in
/// register n % registers.
template <class X, class W>
struct MatrixUnit {
    static constexpr int size = 32 / sizeof(W), registers = 1, lanes = size;
    static void read(Register<X> (&to)[1], const W* from) { to[0] = load<Register<X>>(from); }
};
template <>
struct MatrixUnit<float, StoredBf16> {
    static constexpr int size = 16, registers = 2, lanes = 8;
    static void read(Register<float> (&to)[2], const StoredBf16* from) {
        typedef uint32_t Pairs __attribute__((vector_size(32)));
        const Pairs pairs = load<Pairs>(from);   // little-endian: the first of two is the lower half
        to[0] = std::bit_cast<Register<float>>(pairs << 16);
        to[1] = std::bit_cast<Register<float>>(pairs & 0xffff0000u);
    }
};

/// x (rows, IN) in the order in which units of W are read, zeros behind the last.
template <class X, class W>
std::vector<Register<X>> in_order_of_units(const X* x, int rows, int IN) {
    using Unit = MatrixUnit<X, W>;
    const int units = (IN + Unit::size - 1) / Unit::size;
    std::vector<Register<X>> ordered(size_t(rows) * units * Unit::registers);
    for (int row = 0; row < rows; row++)
        for (int unit = 0; unit < units; unit++) {
            X from[Unit::size] = {}, to[Unit::size];
            const size_t at = size_t(row) * IN + size_t(unit) * Unit::size;
            if ((unit + 1) * Unit::size <= IN) std::copy_n(x + at, Unit::size, from);
            else std::copy_n(x + at, IN - unit * Unit::size, from);
            for (int n = 0; n < Unit::size; n++) to[n % Unit::registers * Unit::lanes + n / Unit::registers] = from[n];
            std::memcpy(&ordered[(size_t(row) * units + unit) * Unit::registers], to, sizeof to);
        }
    return ordered;
}

/// out[r * OUT + o] = <x_r, weight_o> for ROWS rows and OUTPUTS rows of the matrix, of IN numbers each.
template <int ROWS, int OUTPUTS, class X, class W>
void multiply_block(X* out, int OUT, const Register<X>* x, const W* weight, int IN) {
    using Unit = MatrixUnit<X, W>;
    constexpr int AHEAD = 16384 / sizeof(W);   // elements that are fetched before they are needed: a few blocks
    const int units = (IN + Unit::size - 1) / Unit::size, whole = IN / Unit::size;
    Register<X> sums[OUTPUTS][ROWS] = {};
    const auto add = [&](int o, int unit, const W* from) {
        Register<X> w[Unit::registers];
        Unit::read(w, from);
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < Unit::registers; k++) sums[o][r] += w[k] * x[(size_t(r) * units + unit) * Unit::registers + k];
    };
    for (int unit = 0; unit < whole; unit++)
        for (int o = 0; o < OUTPUTS; o++) {
            const W* const from = weight + size_t(o) * IN + size_t(unit) * Unit::size;
            if (unit % 2 == 0) __builtin_prefetch(from + AHEAD);   // a cache line is two units
            add(o, unit, from);
        }
    for (int o = 0; o < OUTPUTS && whole < units; o++) {
        W rest[Unit::size] = {};
        std::copy_n(weight + size_t(o) * IN + size_t(whole) * Unit::size, IN - whole * Unit::size, rest);
        add(o, whole, rest);
    }
    for (int o = 0; o < OUTPUTS; o++)
        for (int r = 0; r < ROWS; r++) {
            X lanes[Unit::lanes];
            store(lanes, sums[o][r]);
            out[size_t(r) * OUT + o] = fold_halves<Unit::lanes>(lanes, [](X a, X b) { return a + b; });
        }
}

/// The same for up to 4 rows and for 4 outputs, or for one: as many sums as registers hold.
template <int OUTPUTS, class X, class W>
void multiply_outputs(X* out, int OUT, const Register<X>* x, const W* weight, int rows, int IN) {
    if (rows == 1) return multiply_block<1, OUTPUTS>(out, OUT, x, weight, IN);
    if (rows == 2) return multiply_block<2, OUTPUTS>(out, OUT, x, weight, IN);
    constexpr int PART = std::min(OUTPUTS, 2);
    for (int o = 0; o < OUTPUTS; o += PART)
        if (rows == 3) multiply_block<3, PART>(out + o, OUT, x, weight + size_t(o) * IN, IN);
        else multiply_block<4, PART>(out + o, OUT, x, weight + size_t(o) * IN, IN);
}

/// out (rows, OUT) = inp (rows, IN) weight (OUT, IN)^T.
template <class X, class W>
void multiply_few_rows(X* out, const X* inp, const W* weight, int rows, int IN, int OUT) {
    constexpr int ROWS = 4, OUTPUTS = 4;
    const std::vector<Register<X>> x = in_order_of_units<X, W>(inp, rows, IN);
    const size_t of_row = x.size() / rows;
#pragma omp parallel for schedule(static) if (size_t(IN) * OUT > 1 << 16)
    for (int first = 0; first < OUT; first += OUTPUTS)
        for (int row = 0; row < rows; row += ROWS) {   // the matrix's rows are in the cache for the next of x
            const int some = std::min(ROWS, rows - row);
            const auto part = [&]<int COUNT>(int o) {
                multiply_outputs<COUNT>(out + size_t(row) * OUT + o, OUT, x.data() + row * of_row, weight + size_t(o) * IN, some, IN);
            };
            if (first + OUTPUTS <= OUT) part.template operator()<OUTPUTS>(first);
            else
                for (int o = first; o < OUT; o++) part.template operator()<1>(o);
        }
}
