#include "model/operations/matrix.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "model/device/math.h"

namespace {

/// A SIMD vector of 32 bytes, one register with AVX2. (GCC would keep a sum of 64 bytes in memory there.)
typedef float Register __attribute__((vector_size(32)));
constexpr int LANES_OF_REGISTER = 8;

/// a * b + c, rounded once if the processor can. Otherwise the compiler would round once in some places and twice in others, and the bits
/// of a row would depend on the number of rows beside it.
Register multiply_add(Register a, Register b, Register c) {
#if defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/// Loads a matrix of W in units of 32 bytes, widened to `registers` registers. Element n of a unit is in register n % registers.
template <class W>
struct MatrixUnit {
    static constexpr int size = 8, registers = 1;
    static void read(Register (&to)[1], const float* from) { to[0] = load<Register>(from); }
};
template <>
struct MatrixUnit<StoredBf16> {
    static constexpr int size = 16, registers = 2;
    static void read(Register (&to)[2], const StoredBf16* from) {
        typedef uint32_t Pairs __attribute__((vector_size(32)));
        const Pairs pairs = load<Pairs>(from);   // little-endian: the first of two is the lower half
        to[0] = std::bit_cast<Register>(pairs << 16);
        to[1] = std::bit_cast<Register>(pairs & 0xffff0000u);
    }
};

/// Copies x (rows, IN) in the order of W's units, with zeros after the last element.
template <class W>
std::vector<Register> in_order_of_units(const float* x, int rows, int IN) {
    using Unit = MatrixUnit<W>;
    const int units = (IN + Unit::size - 1) / Unit::size;
    std::vector<Register> ordered(size_t(rows) * units * Unit::registers);
    for (int row = 0; row < rows; row++)
        for (int unit = 0; unit < units; unit++) {
            float from[Unit::size] = {}, to[Unit::size];
            const size_t at = size_t(row) * IN + size_t(unit) * Unit::size;
            if ((unit + 1) * Unit::size <= IN) std::copy_n(x + at, Unit::size, from);
            else std::copy_n(x + at, IN - unit * Unit::size, from);
            for (int n = 0; n < Unit::size; n++) to[n % Unit::registers * LANES_OF_REGISTER + n / Unit::registers] = from[n];
            std::memcpy(&ordered[(size_t(row) * units + unit) * Unit::registers], to, sizeof to);
        }
    return ordered;
}

/// out[r * OUT + o * apart] = <x_r, weight_(o * apart)> for ROWS rows and OUTPUTS rows of the matrix, of IN numbers each.
template <int ROWS, int OUTPUTS, class W>
void multiply_block(float* out, int OUT, const Register* x, const W* weight, int IN, size_t apart) {
    using Unit = MatrixUnit<W>;
    constexpr int AHEAD = 1024 / sizeof(W);   // elements that are fetched before they are needed
    const int units = (IN + Unit::size - 1) / Unit::size, whole = IN / Unit::size;
    Register sums[OUTPUTS][ROWS] = {};
    const auto add = [&](int o, int unit, const W* from) {
        Register w[Unit::registers];
        Unit::read(w, from);
        for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < Unit::registers; k++)
                sums[o][r] = multiply_add(w[k], x[(size_t(r) * units + unit) * Unit::registers + k], sums[o][r]);
    };
    const auto place = [&](int o, int unit) { return weight + o * apart * IN + size_t(unit) * Unit::size; };
    int unit = 0;
    for (; unit + 2 <= whole; unit += 2)   // a cache line
        for (int o = 0; o < OUTPUTS; o++) {
            __builtin_prefetch(place(o, unit) + AHEAD);
            add(o, unit, place(o, unit)), add(o, unit + 1, place(o, unit + 1));
        }
    for (; unit < units; unit++)
        for (int o = 0; o < OUTPUTS; o++) {
            W rest[Unit::size] = {};
            std::copy_n(place(o, unit), std::min(Unit::size, IN - unit * Unit::size), rest);
            add(o, unit, rest);
        }
    for (int o = 0; o < OUTPUTS; o++)
        for (int r = 0; r < ROWS; r++) {
            float lanes[LANES_OF_REGISTER];
            store(lanes, sums[o][r]);
            out[size_t(r) * OUT + o * apart] = fold_halves<LANES_OF_REGISTER>(lanes, [](float a, float b) { return a + b; });
        }
}

/// The same for up to 4 rows, with as many sums at a time as fit into registers.
template <int OUTPUTS, class W>
void multiply_outputs(float* out, int OUT, const Register* x, const W* weight, int rows, int IN, size_t apart) {
    if (rows == 1) return multiply_block<1, OUTPUTS>(out, OUT, x, weight, IN, apart);
    if (rows == 2) return multiply_block<2, OUTPUTS>(out, OUT, x, weight, IN, apart);
    constexpr int PART = std::min(OUTPUTS, 2);
    for (int o = 0; o < OUTPUTS; o += PART)
        if (rows == 3) multiply_block<3, PART>(out + o * apart, OUT, x, weight + o * apart * IN, IN, apart);
        else multiply_block<4, PART>(out + o * apart, OUT, x, weight + o * apart * IN, IN, apart);
}

/// The outputs of a block are a quarter of the matrix apart. Memory is thus read from four places at once, each from its beginning to its
/// end, which is faster than one place or four neighbouring rows.
template <class W>
void multiply(float* out, const float* inp, const W* weight, int rows, int IN, int OUT) {
    constexpr int ROWS = 4, OUTPUTS = 4;
    const std::vector<Register> x = in_order_of_units<W>(inp, rows, IN);
    const size_t of_row = x.size() / rows;
    const int apart = OUT / OUTPUTS, left = OUT % OUTPUTS;
#pragma omp parallel for schedule(static) if (size_t(IN) * OUT > 1 << 16)
    for (int o = 0; o < apart + left; o++)
        for (int row = 0; row < rows; row += ROWS) {   // the matrix's rows are in the cache for the next of x
            const int at = o < apart ? o : o + (OUTPUTS - 1) * apart;
            float* const to = out + size_t(row) * OUT + at;
            const W* const from = weight + size_t(at) * IN;
            if (o < apart) multiply_outputs<OUTPUTS>(to, OUT, x.data() + row * of_row, from, std::min(ROWS, rows - row), IN, apart);
            else multiply_outputs<1>(to, OUT, x.data() + row * of_row, from, std::min(ROWS, rows - row), IN, apart);
        }
}

}   // namespace

void multiply_few_rows(float* out, const float* inp, const Matrix<float>& weight, int rows, int IN, int OUT) {
    if (weight.bf16) multiply(out, inp, weight.bf16, rows, IN, OUT);
    else multiply(out, inp, weight.data, rows, IN, OUT);
}
