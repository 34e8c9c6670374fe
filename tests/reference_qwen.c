// The first lecture: a Qwen3 language model trained in one file of plain C, to be read from top to bottom. Forward, backward,
// AdamW, the cosine schedule and the clip of the gradient, with causal attention or with ASGA; nothing but the C library is used.
//
//     make reference_qwen && build/reference_qwen --variant asga --steps 100     a small model from nothing, on the bundled text
//     build/reference_qwen --variant asga --check-gradients 1                    every gradient against a difference quotient
//     build/reference_qwen --model out/asga/step_00000200 --train-data data/bundled/sotu_train_000001.bin
//                                                                                from the weights of a checkpoint of the engine
//
// It is also an oracle. It shares no line with the engine, which computes the same in float32, in tiles, fused and on GPUs:
// tests/reference_qwen.sh gives both the same weights and rows, and compares 20 steps and (--compare) the weights after them. All
// is in double, so that what differs is the engine's rounding. Speed and memory do not count: whole T x T matrices are kept.
//
// Names are the engine's: B rows of T tokens, N = B T tokens in all, C channels, L layers, V token ids; NH query heads, NKV heads
// of keys and values, HS numbers per head, F the width of the feed-forward network. Shapes are written (B, T, C), the last index
// running fastest. `b t c h v i j` count them.
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================================================================================ 1. numbers and their gradients

// All numbers of the model are in arrays. Beside each number x lies d, the derivative of the loss with respect to it. An operation
// is a pair of functions with the same arguments:
//     op_forward(out, inp, w)     computes out.x from inp.x and w.x
//     op_backward(out, inp, w)    adds to inp.d and w.d what follows from out.d by the chain rule
// It adds, because a number that is used twice gets its derivative from both uses. So the backward pass of the model is the list of
// its forward calls in reverse order, after all d have been set to 0.
typedef struct {
    double *x, *d;
    long n;   // how many
} Array;

enum { MOST_ARRAYS = 1 << 14 };
static Array arrays[MOST_ARRAYS];   // all there are
static long array_count, parameter_count;

static _Noreturn void fail(int code, const char* format, ...) {   // one sentence and the exit code: 2 usage, 3 data, 7 checkpoint
    va_list arguments;
    va_start(arguments, format);
    fputs("reference_qwen: ", stderr), vfprintf(stderr, format, arguments), fputs("\n", stderr);
    exit(code);
}

static void* allocate(size_t bytes) {
    void* memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) fail(4, "no memory for %zu bytes; take a smaller --batch-size or --seq-len", bytes);
    return memory;
}

static Array new_array(long n) {
    Array a = {allocate((size_t)n * sizeof(double)), allocate((size_t)n * sizeof(double)), n};
    if (array_count == MOST_ARRAYS) fail(2, "the model has more than %d arrays; raise MOST_ARRAYS", MOST_ARRAYS);
    return arrays[array_count++] = a;
}

static void clear_gradients(void) {
    for (long k = 0; k < array_count; k++) memset(arrays[k].d, 0, (size_t)arrays[k].n * sizeof(double));
}

static double dot(const double* a, const double* b, long n) {   // a.b
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long k = 0; k < n; k++) sum += a[k] * b[k];
    return sum;
}

static void add_times(double* to, double factor, const double* from, long n) {   // to += factor from
    for (long k = 0; k < n; k++) to[k] += factor * from[k];
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }   // slope: s (1 - s)
static double softplus(double x) { return log1p(exp(x)); }      // slope: sigmoid(x)

// ===================================================================================================== 2. operations of a Qwen

// ---- embedding: a token becomes its row of the table
static void embedding_forward(Array out, Array table, const int* tokens, long N, long C) {   // (N, C), (V, C), (N)
    for (long n = 0; n < N; n++) memcpy(out.x + n * C, table.x + tokens[n] * C, (size_t)C * sizeof(double));
}
static void embedding_backward(Array out, Array table, const int* tokens, long N, long C) {
    for (long n = 0; n < N; n++) add_times(table.d + tokens[n] * C, 1, out.d + n * C, C);
}

// ---- linear layer, without bias:  out_o = sum_i W_oi inp_i
//      dinp_i = sum_o W_oi dout_o;  dW_oi = sum over the rows of dout_o inp_i
static void linear_forward(Array out, Array inp, Array w, long N, long IN, long OUT) {   // (N, OUT), (N, IN), (OUT, IN)
#pragma omp parallel for
    for (long n = 0; n < N; n++)
        for (long o = 0; o < OUT; o++) out.x[n * OUT + o] = dot(w.x + o * IN, inp.x + n * IN, IN);
}
static void linear_backward(Array out, Array inp, Array w, long N, long IN, long OUT) {
#pragma omp parallel for
    for (long n = 0; n < N; n++)
        for (long o = 0; o < OUT; o++) add_times(inp.d + n * IN, out.d[n * OUT + o], w.x + o * IN, IN);
#pragma omp parallel for
    for (long o = 0; o < OUT; o++)
        for (long n = 0; n < N; n++) add_times(w.d + o * IN, out.d[n * OUT + o], inp.x + n * IN, IN);
}

// ---- RMSNorm (Zhang and Sennrich, arXiv 1910.07467):  out = w xhat,  xhat = inp / r,  r = sqrt(mean(inp^2) + eps)
//      The slope of r is inp / (n r), hence  dinp = (g - xhat mean(g xhat)) / r  with g = w dout;  dw = sum over rows of dout xhat.
static double rms(const double* x, long n, double eps) { return sqrt(dot(x, x, n) / (double)n + eps); }

static void rmsnorm_forward(Array out, Array inp, Array w, long rows, long n, double eps) {   // (rows, n), (rows, n), (n)
    for (long row = 0; row < rows; row++) {
        const double* x = inp.x + row * n;
        const double r = rms(x, n, eps);
        for (long k = 0; k < n; k++) out.x[row * n + k] = w.x[k] * x[k] / r;
    }
}
static void rmsnorm_backward(Array out, Array inp, Array w, long rows, long n, double eps) {
    for (long row = 0; row < rows; row++) {
        const double *x = inp.x + row * n, *dout = out.d + row * n;
        const double r = rms(x, n, eps);
        double mean = 0;   // of g xhat
        for (long k = 0; k < n; k++) mean += w.x[k] * dout[k] * x[k] / r / (double)n;
        for (long k = 0; k < n; k++) {
            inp.d[row * n + k] += (w.x[k] * dout[k] - x[k] / r * mean) / r;
            w.d[k] += dout[k] * x[k] / r;
        }
    }
}

// ---- RoPE (Su et al., arXiv 2104.09864), in the halves that Qwen pairs: the numbers d and d + HS/2 of a head are a point in the
//      plane, which turns by the angle t theta^(-2 d / HS) at position t. Then q.k depends on how far apart two tokens are, not on
//      where they are. The gradient turns back.
static void turn(double* out, const double* inp, long HS, long t, double theta, double direction) {   // out += inp, turned; (HS)
    const long half = HS / 2;
    for (long d = 0; d < half; d++) {
        const double angle = (double)t * pow(theta, -2.0 * (double)d / (double)HS);
        const double c = cos(angle), s = direction * sin(angle);
        out[d] += inp[d] * c - inp[d + half] * s;
        out[d + half] += inp[d + half] * c + inp[d] * s;
    }
}

static void rope_forward(Array out, Array inp, long B, long T, long H, long HS, double theta) {   // (B, T, H, HS) twice
    memset(out.x, 0, (size_t)out.n * sizeof(double));
    for (long row = 0; row < B * T * H; row++) turn(out.x + row * HS, inp.x + row * HS, HS, row / H % T, theta, 1);
}
static void rope_backward(Array out, Array inp, long B, long T, long H, long HS, double theta) {
    for (long row = 0; row < B * T * H; row++) turn(inp.d + row * HS, out.d + row * HS, HS, row / H % T, theta, -1);
}

// ---- residual connection:  out = a + b
static void add_forward(Array out, Array a, Array b) {
    for (long k = 0; k < out.n; k++) out.x[k] = a.x[k] + b.x[k];
}
static void add_backward(Array out, Array a, Array b) {
    add_times(a.d, 1, out.d, out.n);
    add_times(b.d, 1, out.d, out.n);
}

// ---- SwiGLU (Shazeer, arXiv 2002.05202):  out = silu(gate) up,  silu(x) = x s,  s = sigmoid(x)
//      dup = dout silu(gate);  dgate = dout up (s + gate s (1 - s))
static void swiglu_forward(Array out, Array gate, Array up) {   // (N, F) each
    for (long k = 0; k < out.n; k++) out.x[k] = gate.x[k] * sigmoid(gate.x[k]) * up.x[k];
}
static void swiglu_backward(Array out, Array gate, Array up) {
    for (long k = 0; k < out.n; k++) {
        const double g = gate.x[k], s = sigmoid(g);
        up.d[k] += out.d[k] * g * s;
        gate.d[k] += out.d[k] * up.x[k] * (s + g * s * (1 - s));
    }
}

// ---- cross entropy: the mean over all tokens of -log p(target),  p = softmax(logits)
//      dlogit_v = (p_v - [v is the target]) / N
static double log_sum_exp(const double* x, long n) {   // log(sum of exp(x)); the greatest is taken out, so that no exp overflows
    double top = x[0], sum = 0;
    for (long k = 1; k < n; k++) top = x[k] > top ? x[k] : top;
    for (long k = 0; k < n; k++) sum += exp(x[k] - top);
    return top + log(sum);
}

static double cross_entropy_forward(Array logits, const int* targets, long N, long V) {   // (N, V), (N)
    double loss = 0;
    for (long n = 0; n < N; n++) loss += (log_sum_exp(logits.x + n * V, V) - logits.x[n * V + targets[n]]) / (double)N;
    return loss;
}
static void cross_entropy_backward(Array logits, const int* targets, long N, long V) {
    for (long n = 0; n < N; n++) {
        const double lse = log_sum_exp(logits.x + n * V, V);
        for (long v = 0; v < V; v++) logits.d[n * V + v] += (exp(logits.x[n * V + v] - lse) - (v == targets[n])) / (double)N;
    }
}

// ================================================================================================================= 3. attention

// Attention (Vaswani et al., arXiv 1706.03762) of row i of a head over the rows j <= i, in three operations:
//     scores   a_ij = q_i.k_j / sqrt(HS)
//     softmax  p_ij = exp(a_ij) / sum over j' <= i of exp(a_ij')
//     mix      out_i = sum_j p_ij v_j
// What lies above the diagonal stays 0. With grouped queries (Ainslie et al., arXiv 2305.13245) NH / NKV query heads share one head
// of keys and values.

typedef struct {   // everything that makes the shapes of a model and of its batch
    long B, T, N, V, C, L, NH, NKV, HS, F, m;   // N = B T; m = 0: plain causal attention, else ASGA with m hidden units
    double norm_eps, rope_theta;
} Sizes;

// `row` counts (B, NH, T), the rows of attention matrices: sequence b, head h, token i. The vector of that token and head is number
// of_row() of (B, T, NH), and what it reads of token j, where there are H heads, number of_key() of (B, T, H).
static long head_of(long row, Sizes S) { return row / S.T % S.NH; }
static long of_row(long row, Sizes S) { return (row / S.T / S.NH * S.T + row % S.T) * S.NH + head_of(row, S); }
static long of_key(long row, long j, long H, Sizes S) { return (row / S.T / S.NH * S.T + j) * H + head_of(row, S) * H / S.NH; }

static void scores_forward(Array a, Array q, Array k, Sizes S) {   // (B, NH, T, T), (B, T, NH, HS), (B, T, NKV, HS)
    const double scale = 1 / sqrt((double)S.HS);
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++)
            a.x[row * S.T + j] = scale * dot(q.x + of_row(row, S) * S.HS, k.x + of_key(row, j, S.NKV, S) * S.HS, S.HS);
}
static void scores_backward(Array a, Array q, Array k, Sizes S) {
    const double scale = 1 / sqrt((double)S.HS);
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++) {
            const long at_q = of_row(row, S) * S.HS, at_k = of_key(row, j, S.NKV, S) * S.HS;
            add_times(q.d + at_q, scale * a.d[row * S.T + j], k.x + at_k, S.HS);
            add_times(k.d + at_k, scale * a.d[row * S.T + j], q.x + at_q, S.HS);
        }
}

// dz_ij = p_ij (dp_ij - sum_j' p_ij' dp_ij'): raising one score takes from all others of the row.
static void softmax_forward(Array p, Array z, Sizes S) {   // (B, NH, T, T) twice
    for (long row = 0; row < S.B * S.NH * S.T; row++) {
        const double lse = log_sum_exp(z.x + row * S.T, row % S.T + 1);
        for (long j = 0; j <= row % S.T; j++) p.x[row * S.T + j] = exp(z.x[row * S.T + j] - lse);
    }
}
static void softmax_backward(Array p, Array z, Sizes S) {
    for (long row = 0; row < S.B * S.NH * S.T; row++) {
        const double *weights = p.x + row * S.T, *d = p.d + row * S.T, mean = dot(weights, d, row % S.T + 1);
        for (long j = 0; j <= row % S.T; j++) z.d[row * S.T + j] += weights[j] * (d[j] - mean);
    }
}

static void mix_forward(Array out, Array p, Array v, Sizes S) {   // (B, T, NH, HS), (B, NH, T, T), (B, T, NKV, HS)
    memset(out.x, 0, (size_t)out.n * sizeof(double));
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++)
            add_times(out.x + of_row(row, S) * S.HS, p.x[row * S.T + j], v.x + of_key(row, j, S.NKV, S) * S.HS, S.HS);
}
static void mix_backward(Array out, Array p, Array v, Sizes S) {
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++) {
            const double* dout = out.d + of_row(row, S) * S.HS;
            const long at_v = of_key(row, j, S.NKV, S) * S.HS;
            p.d[row * S.T + j] += dot(dout, v.x + at_v, S.HS);
            add_times(v.d + at_v, p.x[row * S.T + j], dout, S.HS);
        }
}

// ---- ASGA, Adaptive Sparse-Geometric Attention (aardXiv 2510.00090), puts one operation between scores and softmax:
//          z_ij = c a_ij s_ij        c = softplus(gamma), a scale per head
//          s_ij = sigmoid(u_ij)      u_ij = b2 + sum_f w2_f GELU(t_ijf), a gate per pair
//          t_ijf = A_if + D_jf + b1_f,   A_i = W1q LN(q_i),   D_j = W1k LN(k_j)       f counts the m hidden units of the gate
//      with weights of its own in every query head. What the paper leaves open is read as the engine's interface has it: q and k
//      come to the gate after QK-norm and before RoPE, LN has no weights and eps 1e-5, GELU is its tanh form.

// LN (Ba et al., arXiv 1607.06450), (x - mean) / sqrt(variance + eps), is RMSNorm, with weights of 1, of what centring leaves:
// out = inp - mean(inp);  dinp = dout - mean(dout).
static const double LAYERNORM_EPS = 1e-5;

static void centre_forward(Array out, Array inp, Array ones, long rows, long n) {   // (rows, n) twice, (n)
    for (long row = 0; row < rows; row++) {
        const double mean = dot(inp.x + row * n, ones.x, n) / (double)n;
        for (long k = row * n; k < (row + 1) * n; k++) out.x[k] = inp.x[k] - mean;
    }
}
static void centre_backward(Array out, Array inp, Array ones, long rows, long n) {
    for (long row = 0; row < rows; row++) {
        const double mean = dot(out.d + row * n, ones.x, n) / (double)n;
        for (long k = row * n; k < (row + 1) * n; k++) inp.d[k] += out.d[k] - mean;
    }
}

// W1 LN(q) and W1 LN(k): a linear layer per query head, which reads its head of the H heads of inp.
static void hidden_forward(Array out, Array inp, Array w, long H, Sizes S) {   // (B, T, NH, m), (B, T, H, HS), (NH, m, HS)
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long f = 0; f < S.m; f++)
            out.x[of_row(row, S) * S.m + f] =
                dot(w.x + (head_of(row, S) * S.m + f) * S.HS, inp.x + of_key(row, row % S.T, H, S) * S.HS, S.HS);
}
static void hidden_backward(Array out, Array inp, Array w, long H, Sizes S) {
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long f = 0; f < S.m; f++) {
            const long at_w = (head_of(row, S) * S.m + f) * S.HS, at_inp = of_key(row, row % S.T, H, S) * S.HS;
            const double d = out.d[of_row(row, S) * S.m + f];
            add_times(inp.d + at_inp, d, w.x + at_w, S.HS);
            add_times(w.d + at_w, d, inp.x + at_inp, S.HS);
        }
}

// GELU (Hendrycks and Gimpel, arXiv 1606.08415) in its tanh form:  t/2 (1 + tanh(k (t + 0.044715 t^3))),  k = sqrt(2 / pi)
static double gelu(double t, double* slope) {
    const double k = 0.79788456080286536, cubic = 0.044715;
    const double y = tanh(k * (t + cubic * t * t * t));
    *slope = 0.5 * (1 + y) + 0.5 * t * (1 - y * y) * k * (1 + 3 * cubic * t * t);
    return 0.5 * t * (1 + y);
}

typedef struct { Array b1, w2, b2, gamma; } Gate;   // (NH, m), (NH, m), (NH), (NH)

static double gate_of(Gate g, const double* A, const double* D, long h, long m) {   // s_ij from A_i (m) and D_j (m)
    double u = g.b2.x[h], slope;
    for (long f = 0; f < m; f++) u += g.w2.x[h * m + f] * gelu(A[f] + D[f] + g.b1.x[h * m + f], &slope);
    return sigmoid(u);
}

static void gate_forward(Array z, Array a, Array A, Array D, Gate g, Sizes S) {   // (B, NH, T, T) twice, (B, T, NH, m) twice
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++) {
            const long h = head_of(row, S);
            const double s = gate_of(g, A.x + of_row(row, S) * S.m, D.x + of_key(row, j, S.NH, S) * S.m, h, S.m);
            z.x[row * S.T + j] = softplus(g.gamma.x[h]) * a.x[row * S.T + j] * s;
        }
}

// da = c s dz;  dc = sum a s dz;  du = c a dz s (1 - s);  db2 = sum du;  dw2_f = sum du GELU(t_f);
// dt_f = du w2_f GELU'(t_f), which goes to A_i, to D_j and to b1 alike.
static void gate_backward(Array z, Array a, Array A, Array D, Gate g, Sizes S) {
    for (long row = 0; row < S.B * S.NH * S.T; row++)
        for (long j = 0; j <= row % S.T; j++) {
            const long h = head_of(row, S), ij = row * S.T + j, i = of_row(row, S) * S.m, k = of_key(row, j, S.NH, S) * S.m;
            const double s = gate_of(g, A.x + i, D.x + k, h, S.m), c = softplus(g.gamma.x[h]), dz = z.d[ij];
            const double du = c * a.x[ij] * dz * s * (1 - s);
            a.d[ij] += c * s * dz;
            g.gamma.d[h] += a.x[ij] * s * dz * sigmoid(g.gamma.x[h]);
            g.b2.d[h] += du;
            for (long f = 0; f < S.m; f++) {
                const long hf = h * S.m + f;
                double slope;
                const double value = gelu(A.x[i + f] + D.x[k + f] + g.b1.x[hf], &slope), dt = du * g.w2.x[hf] * slope;
                g.w2.d[hf] += du * value;
                A.d[i + f] += dt;
                D.d[k + f] += dt;
                g.b1.d[hf] += dt;
            }
        }
}

// ================================================================================================================ 4. the model

typedef struct {   // a tensor that is trained; its name is that of Hugging Face, and of the engine's checkpoints
    char name[96];
    Array w;
    int decays;
    double *m, *v;   // AdamW's moments
} Parameter;

static Parameter parameters[MOST_ARRAYS];   // parameter_count of them

typedef struct {   // parameters, then activations
    Array input_norm, post_norm, q_norm, k_norm;         // (C), (C), (HS), (HS)
    Array q_proj, k_proj, v_proj, o_proj;                // (NH HS, C), (NKV HS, C), (NKV HS, C), (C, NH HS)
    Array gate_proj, up_proj, down_proj;                 // (F, C), (F, C), (C, F)
    Array w1_q, w1_k;                                    // ASGA: (NH, m, HS)
    Gate g;                                              // ASGA
    Array normed, q, k, v;                               // (N, C), (N, NH, HS), (N, NKV, HS), (N, NKV, HS)
    Array q_normed, k_normed, q_turned, k_turned;        // (N, NH, HS), (N, NKV, HS), twice
    Array q_centred, k_centred, q_ln, k_ln, ones;        // ASGA: (N, NH, HS), (N, NKV, HS), twice, and (HS), all 1
    Array A, D;                                          // ASGA: (N, NH, m), (N, NH, m)
    Array a, z, p;                                       // (B, NH, T, T): scores, gated scores, weights
    Array mixed, attended, middle;                       // (N, NH, HS), (N, C), (N, C)
    Array normed2, gate, up, hidden, fed, out;           // (N, C), (N, F), (N, F), (N, F), (N, C), (N, C)
} Layer;

typedef struct {
    Sizes S;
    Array embedding, final_norm;         // (V, C), (C)
    Layer* layers;
    Array embedded, normed, logits;      // (N, C), (N, C), (N, V)
} Model;

// ---- one layer: x + attention(norm(x)), then x + feed_forward(norm(x))
static void layer_forward(Layer* l, Array in, Sizes S) {
    rmsnorm_forward(l->normed, in, l->input_norm, S.N, S.C, S.norm_eps);
    linear_forward(l->q, l->normed, l->q_proj, S.N, S.C, S.NH * S.HS);
    linear_forward(l->k, l->normed, l->k_proj, S.N, S.C, S.NKV * S.HS);
    linear_forward(l->v, l->normed, l->v_proj, S.N, S.C, S.NKV * S.HS);
    rmsnorm_forward(l->q_normed, l->q, l->q_norm, S.N * S.NH, S.HS, S.norm_eps);
    rmsnorm_forward(l->k_normed, l->k, l->k_norm, S.N * S.NKV, S.HS, S.norm_eps);
    rope_forward(l->q_turned, l->q_normed, S.B, S.T, S.NH, S.HS, S.rope_theta);
    rope_forward(l->k_turned, l->k_normed, S.B, S.T, S.NKV, S.HS, S.rope_theta);
    scores_forward(l->a, l->q_turned, l->k_turned, S);
    if (S.m) {
        centre_forward(l->q_centred, l->q_normed, l->ones, S.N * S.NH, S.HS);
        centre_forward(l->k_centred, l->k_normed, l->ones, S.N * S.NKV, S.HS);
        rmsnorm_forward(l->q_ln, l->q_centred, l->ones, S.N * S.NH, S.HS, LAYERNORM_EPS);
        rmsnorm_forward(l->k_ln, l->k_centred, l->ones, S.N * S.NKV, S.HS, LAYERNORM_EPS);
        hidden_forward(l->A, l->q_ln, l->w1_q, S.NH, S);
        hidden_forward(l->D, l->k_ln, l->w1_k, S.NKV, S);
        gate_forward(l->z, l->a, l->A, l->D, l->g, S);
    }
    softmax_forward(l->p, S.m ? l->z : l->a, S);
    mix_forward(l->mixed, l->p, l->v, S);
    linear_forward(l->attended, l->mixed, l->o_proj, S.N, S.NH * S.HS, S.C);
    add_forward(l->middle, in, l->attended);
    rmsnorm_forward(l->normed2, l->middle, l->post_norm, S.N, S.C, S.norm_eps);
    linear_forward(l->gate, l->normed2, l->gate_proj, S.N, S.C, S.F);
    linear_forward(l->up, l->normed2, l->up_proj, S.N, S.C, S.F);
    swiglu_forward(l->hidden, l->gate, l->up);
    linear_forward(l->fed, l->hidden, l->down_proj, S.N, S.F, S.C);
    add_forward(l->out, l->middle, l->fed);
}
static void layer_backward(Layer* l, Array in, Sizes S) {   // from the bottom of layer_forward() to its top
    add_backward(l->out, l->middle, l->fed);
    linear_backward(l->fed, l->hidden, l->down_proj, S.N, S.F, S.C);
    swiglu_backward(l->hidden, l->gate, l->up);
    linear_backward(l->up, l->normed2, l->up_proj, S.N, S.C, S.F);
    linear_backward(l->gate, l->normed2, l->gate_proj, S.N, S.C, S.F);
    rmsnorm_backward(l->normed2, l->middle, l->post_norm, S.N, S.C, S.norm_eps);
    add_backward(l->middle, in, l->attended);
    linear_backward(l->attended, l->mixed, l->o_proj, S.N, S.NH * S.HS, S.C);
    mix_backward(l->mixed, l->p, l->v, S);
    softmax_backward(l->p, S.m ? l->z : l->a, S);
    if (S.m) {
        gate_backward(l->z, l->a, l->A, l->D, l->g, S);
        hidden_backward(l->D, l->k_ln, l->w1_k, S.NKV, S);
        hidden_backward(l->A, l->q_ln, l->w1_q, S.NH, S);
        rmsnorm_backward(l->k_ln, l->k_centred, l->ones, S.N * S.NKV, S.HS, LAYERNORM_EPS);
        rmsnorm_backward(l->q_ln, l->q_centred, l->ones, S.N * S.NH, S.HS, LAYERNORM_EPS);
        centre_backward(l->k_centred, l->k_normed, l->ones, S.N * S.NKV, S.HS);
        centre_backward(l->q_centred, l->q_normed, l->ones, S.N * S.NH, S.HS);
    }
    scores_backward(l->a, l->q_turned, l->k_turned, S);
    rope_backward(l->k_turned, l->k_normed, S.B, S.T, S.NKV, S.HS, S.rope_theta);
    rope_backward(l->q_turned, l->q_normed, S.B, S.T, S.NH, S.HS, S.rope_theta);
    rmsnorm_backward(l->k_normed, l->k, l->k_norm, S.N * S.NKV, S.HS, S.norm_eps);
    rmsnorm_backward(l->q_normed, l->q, l->q_norm, S.N * S.NH, S.HS, S.norm_eps);
    linear_backward(l->v, l->normed, l->v_proj, S.N, S.C, S.NKV * S.HS);
    linear_backward(l->k, l->normed, l->k_proj, S.N, S.C, S.NKV * S.HS);
    linear_backward(l->q, l->normed, l->q_proj, S.N, S.C, S.NH * S.HS);
    rmsnorm_backward(l->normed, in, l->input_norm, S.N, S.C, S.norm_eps);
}

// ---- the whole: embedding, layers, a last norm, and the embedding once more as the output's matrix (tied weights)
static double model_forward(Model* M, const int* inputs, const int* targets) {   // (B, T) each; returns the loss
    const Sizes S = M->S;
    embedding_forward(M->embedded, M->embedding, inputs, S.N, S.C);
    for (long i = 0; i < S.L; i++) layer_forward(&M->layers[i], i ? M->layers[i - 1].out : M->embedded, S);
    rmsnorm_forward(M->normed, M->layers[S.L - 1].out, M->final_norm, S.N, S.C, S.norm_eps);
    linear_forward(M->logits, M->normed, M->embedding, S.N, S.C, S.V);
    return cross_entropy_forward(M->logits, targets, S.N, S.V);
}
static void model_backward(Model* M, const int* inputs, const int* targets) {   // after model_forward() of the same tokens
    const Sizes S = M->S;
    clear_gradients();
    cross_entropy_backward(M->logits, targets, S.N, S.V);
    linear_backward(M->logits, M->normed, M->embedding, S.N, S.C, S.V);
    rmsnorm_backward(M->normed, M->layers[S.L - 1].out, M->final_norm, S.N, S.C, S.norm_eps);
    for (long i = S.L - 1; i >= 0; i--) layer_backward(&M->layers[i], i ? M->layers[i - 1].out : M->embedded, S);
    embedding_backward(M->embedded, M->embedding, inputs, S.N, S.C);
}

// ---- making it: every parameter with its name and what it starts from, then room for the activations
static uint64_t random_state = 0x9E3779B97F4A7C15u;   // any number but 0

static double normal(void) {   // of mean 0 and deviation 1: xorshift64 (Marsaglia 2003), Box and Muller (1958)
    double u[2];
    for (int k = 0; k < 2; k++) {
        random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
        u[k] = ((double)(random_state >> 11) + 0.5) / 9007199254740992.0;   // 2^53
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

enum Kind { VECTOR, MATRIX };   // matrices start from random numbers and decay; norms, biases and scales do not

static Array new_parameter(long layer, const char* name, long n, enum Kind kind, double start) {
    const Array w = new_array(n);
    Parameter* p = &parameters[parameter_count++];
    if (layer < 0) snprintf(p->name, sizeof p->name, "model.%s", name);
    else snprintf(p->name, sizeof p->name, "model.layers.%ld.%s", layer, name);
    p->w = w, p->decays = kind == MATRIX;
    p->m = allocate((size_t)n * sizeof(double)), p->v = allocate((size_t)n * sizeof(double));
    for (long k = 0; k < n; k++) p->w.x[k] = kind == MATRIX ? start * normal() : start;
    return p->w;
}

static void make_parameters(Model* M) {
    const Sizes S = M->S;
    const double std = 0.02, gamma = 1.854586542131141;   // softplus(gamma) = 2: times a gate that starts near 1/2
    M->embedding = new_parameter(-1, "embed_tokens.weight", S.V * S.C, MATRIX, std);
    M->layers = allocate((size_t)S.L * sizeof(Layer));
    for (long i = 0; i < S.L; i++) {
        Layer* l = &M->layers[i];
        l->input_norm = new_parameter(i, "input_layernorm.weight", S.C, VECTOR, 1);
        l->q_proj = new_parameter(i, "self_attn.q_proj.weight", S.NH * S.HS * S.C, MATRIX, std);
        l->k_proj = new_parameter(i, "self_attn.k_proj.weight", S.NKV * S.HS * S.C, MATRIX, std);
        l->v_proj = new_parameter(i, "self_attn.v_proj.weight", S.NKV * S.HS * S.C, MATRIX, std);
        l->q_norm = new_parameter(i, "self_attn.q_norm.weight", S.HS, VECTOR, 1);
        l->k_norm = new_parameter(i, "self_attn.k_norm.weight", S.HS, VECTOR, 1);
        l->o_proj = new_parameter(i, "self_attn.o_proj.weight", S.C * S.NH * S.HS, MATRIX, std);
        if (S.m) {
            l->w1_q = new_parameter(i, "self_attn.asga.w1_q", S.NH * S.m * S.HS, MATRIX, std);
            l->w1_k = new_parameter(i, "self_attn.asga.w1_k", S.NH * S.m * S.HS, MATRIX, std);
            l->g.b1 = new_parameter(i, "self_attn.asga.b1", S.NH * S.m, VECTOR, 0);
            l->g.w2 = new_parameter(i, "self_attn.asga.w2", S.NH * S.m, MATRIX, std);
            l->g.b2 = new_parameter(i, "self_attn.asga.b2", S.NH, VECTOR, 0);
            l->g.gamma = new_parameter(i, "self_attn.asga.gamma", S.NH, VECTOR, gamma);
        }
        l->post_norm = new_parameter(i, "post_attention_layernorm.weight", S.C, VECTOR, 1);
        l->gate_proj = new_parameter(i, "mlp.gate_proj.weight", S.F * S.C, MATRIX, std);
        l->up_proj = new_parameter(i, "mlp.up_proj.weight", S.F * S.C, MATRIX, std);
        l->down_proj = new_parameter(i, "mlp.down_proj.weight", S.C * S.F, MATRIX, std);
    }
    M->final_norm = new_parameter(-1, "norm.weight", S.C, VECTOR, 1);
}

static void make_activations(Model* M) {
    const Sizes S = M->S;
    const long N = S.N, queries = N * S.NH * S.HS, keys = N * S.NKV * S.HS, pairs = N * S.NH * S.T;
    M->embedded = new_array(N * S.C), M->normed = new_array(N * S.C), M->logits = new_array(N * S.V);
    for (long i = 0; i < S.L; i++) {
        Layer* l = &M->layers[i];
        l->normed = new_array(N * S.C), l->q = new_array(queries), l->k = new_array(keys), l->v = new_array(keys);
        l->q_normed = new_array(queries), l->k_normed = new_array(keys);
        l->q_turned = new_array(queries), l->k_turned = new_array(keys);
        l->a = new_array(pairs), l->p = new_array(pairs);
        if (S.m) {
            l->q_centred = new_array(queries), l->k_centred = new_array(keys), l->ones = new_array(S.HS);
            for (long k = 0; k < S.HS; k++) l->ones.x[k] = 1;
            l->q_ln = new_array(queries), l->k_ln = new_array(keys), l->z = new_array(pairs);
            l->A = new_array(N * S.NH * S.m), l->D = new_array(N * S.NH * S.m);
        }
        l->mixed = new_array(queries), l->attended = new_array(N * S.C), l->middle = new_array(N * S.C);
        l->normed2 = new_array(N * S.C), l->gate = new_array(N * S.F), l->up = new_array(N * S.F), l->hidden = new_array(N * S.F);
        l->fed = new_array(N * S.C), l->out = new_array(N * S.C);
    }
}

// ================================================================================================================ 5. optimiser

typedef struct {   // what the command line says
    const char *model, *train_data, *variant, *compare;
    double steps, batch_size, seq_len, lr, warmup_steps, min_lr_frac, weight_decay, beta1, beta2, adam_eps, grad_clip, seed;
    double check_gradients;
} Options;

// Learning rate of step k (from 0): a linear climb, then half a cosine down (Loshchilov and Hutter, arXiv 1608.03983).
static double learning_rate(const Options* o, double k) {
    if (k < o->warmup_steps) return o->lr * (k + 1) / o->warmup_steps;
    const double progress = (k - o->warmup_steps) / (o->steps - o->warmup_steps);
    return o->lr * (o->min_lr_frac + (1 - o->min_lr_frac) * 0.5 * (1 + cos(3.141592653589793 * progress)));
}

static double gradient_norm(void) {   // the L2 norm of all gradients as one vector
    double squares = 0;
    for (long k = 0; k < parameter_count; k++) squares += dot(parameters[k].w.d, parameters[k].w.d, parameters[k].w.n);
    return sqrt(squares);
}

// AdamW (Loshchilov and Hutter, arXiv 1711.05101), step k from 1, of the gradient shortened to a norm of --grad-clip (Pascanu et
// al., arXiv 1211.5063; the 1e-6 is PyTorch's):
//     g = d min(1, clip / (norm + 1e-6));  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//     w = w - lr (m' / (sqrt(v') + eps) + decay w),   m' = m / (1 - b1^k),  v' = v / (1 - b2^k)
static void adamw(const Options* o, double k, double lr, double norm) {
    const double clip = o->grad_clip > 0 ? fmin(1, o->grad_clip / (norm + 1e-6)) : 1;
    const double m_share = 1 - pow(o->beta1, k), v_share = 1 - pow(o->beta2, k);   // of what m and v will be of a lasting g
    for (long i = 0; i < parameter_count; i++) {
        Parameter* p = &parameters[i];
        const double decay = p->decays ? o->weight_decay : 0;
        for (long n = 0; n < p->w.n; n++) {
            const double g = clip * p->w.d[n];
            p->m[n] = o->beta1 * p->m[n] + (1 - o->beta1) * g;
            p->v[n] = o->beta2 * p->v[n] + (1 - o->beta2) * g * g;
            const double step = p->m[n] / m_share / (sqrt(p->v[n] / v_share) + o->adam_eps);
            p->w.x[n] -= lr * (step + decay * p->w.x[n]);
        }
    }
}

// =================================================================================================================== 6. files

static char* read_file(const char* path, long* bytes, int code) {   // with a 0 behind it
    FILE* file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (*bytes = ftell(file)) < 0 || *bytes > 1L << 40 || fseek(file, 0, SEEK_SET))
        fail(code, "%s: cannot be read; give the path of an existing file", path);
    char* text = allocate((size_t)*bytes + 1);
    if (fread(text, 1, (size_t)*bytes, file) != (size_t)*bytes) fail(code, "%s: ends before its %ld bytes", path, *bytes);
    fclose(file);
    return text;
}

// What stands behind "key": in JSON as the engine writes it, or NULL.
static const char* value_of(const char* json, const char* key) {
    const size_t n = strlen(key);
    for (const char* at = json; (at = strstr(at, key)); at++)
        if (at > json && at[-1] == '"' && strncmp(at + n, "\":", 2) == 0) return at + n + 2 + strspn(at + n + 2, " ");
    return NULL;
}

static int says(const char* json, const char* key, const char* value) {
    const char* at = value_of(json, key);
    return at && strncmp(at, value, strlen(value)) == 0;
}

static double number_of(const char* json, const char* key, const char* path) {
    const char* at = value_of(json, key);
    const double value = at ? strtod(at, NULL) : 0;
    if (!(value > 0 && value < 1e12)) fail(7, "%s: \"%s\" is missing or no positive number", path, key);
    return value;
}

static void read_config(Sizes* S, const char* folder) {
    long bytes;
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", folder);
    char* json = read_file(path, &bytes, 7);
    if (!says(json, "model_type", "\"qwen3\"") || !says(json, "tie_word_embeddings", "true"))
        fail(7, "%s: is no Qwen3 with tied embeddings; take a checkpoint of ./train_causal or ./train_asga", path);
    if (value_of(json, "rope_type") && !says(json, "rope_type", "\"default\""))
        fail(7, "%s: has \"rope_scaling\", which this program does not compute; take a checkpoint without it", path);
    const int asga = says(json, "attention_variant", "\"asga\"");
    if (!asga && !says(json, "attention_variant", "\"causal\""))
        fail(7, "%s: \"attention_variant\" is not causal or asga, which are the two that this program knows", path);
    const struct { const char* key; long* size; } sizes[] = {
        {"vocab_size", &S->V}, {"hidden_size", &S->C}, {"num_hidden_layers", &S->L}, {"num_attention_heads", &S->NH},
        {"num_key_value_heads", &S->NKV}, {"head_dim", &S->HS}, {"intermediate_size", &S->F}, {"asga_hidden", &S->m}};
    S->m = 0;
    for (int k = 0; k < 7 + asga; k++) *sizes[k].size = (long)number_of(json, sizes[k].key, path);
    S->norm_eps = number_of(json, "rms_norm_eps", path);
    S->rope_theta = number_of(json, "rope_theta", path);
    if (S->NKV < 1 || S->NH % S->NKV || S->HS % 2)
        fail(7, "%s: %ld heads over %ld, of %ld numbers each, make no model", path, S->NH, S->NKV, S->HS);
}

// safetensors: 8 bytes that hold the length of a JSON header; the header, in which every tensor has an entry
//     "NAME":{"dtype":"F32","shape":[64,32],"data_offsets":[begin,end]}
// and the numbers, little-endian, with offsets from the end of the header.
static void read_weights(const char* folder) {
    long bytes;
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    char* file = read_file(path, &bytes, 7);
    uint64_t length = 0;
    if (bytes >= 8) memcpy(&length, file, 8);
    if (bytes < 8 || length > (uint64_t)bytes - 8) fail(7, "%s: is cut off or no safetensors file", path);
    char* header = allocate(length + 1);
    memcpy(header, file + 8, length);
    const char* data = file + 8 + length;
    const long data_bytes = bytes - 8 - (long)length;
    for (long k = 0; k < parameter_count; k++) {
        Parameter* p = &parameters[k];
        const char *entry = value_of(header, p->name), *offsets = entry ? strstr(entry, "\"data_offsets\":[") : NULL;
        long begin = 0, end = 0;
        if (offsets) sscanf(offsets, "\"data_offsets\":[%ld,%ld]", &begin, &end);
        if (!says(header, p->name, "{\"dtype\":\"F32\"") || begin < 0 || end > data_bytes || end - begin != 4 * p->w.n)
            fail(7, "%s: \"%s\" is missing, cut off or not %ld float32 numbers", path, p->name, p->w.n);
        for (long n = 0; n < p->w.n; n++) {
            float number;
            memcpy(&number, data + begin + 4 * n, 4);
            p->w.x[n] = number;
        }
    }
    long stored = 0;
    for (const char* at = header; (at = strstr(at, "\"dtype\":")); at++) stored++;
    if (stored != parameter_count) fail(7, "%s: holds %ld tensors, this model has %ld", path, stored, parameter_count);
}

// A shard of tokens (data/README.md): a header of 256 int32, which begins with magic, version and count, then the tokens, uint16 in
// version 1 and uint32 in version 7.
static int* read_shard(const char* path, long V, long* count) {
    long bytes;
    char* file = read_file(path, &bytes, 3);
    int32_t header[256] = {0};
    if (bytes >= 1024) memcpy(header, file, 1024);
    const int wide = header[0] == 20240801 && header[1] == 7;
    if (!wide && !(header[0] == 20240520 && header[1] == 1)) fail(3, "%s: is no shard of tokens; ./tokenize makes one", path);
    *count = header[2];
    const long size = wide ? 4 : 2;
    if (*count < 1 || bytes != 1024 + size * *count)
        fail(3, "%s: has %ld bytes, but its header says %ld tokens of %ld bytes", path, bytes, *count, size);
    int* tokens = allocate((size_t)*count * sizeof(int));
    for (long k = 0; k < *count; k++) {
        uint32_t token = 0;
        memcpy(&token, file + 1024 + size * k, (size_t)size);
        if (token >= V) fail(3, "%s: token %ld is %u, but the model knows only the ids below %ld", path, k, (unsigned)token, V);
        tokens[k] = (int)token;
    }
    return tokens;
}

// ================================================================================================================ 7. the loop

// Row b of step k, in the order of the shard (the engine's --shuffle 0): T tokens, and as targets the same shifted by one.
static void read_batch(int* inputs, int* targets, const int* tokens, long count, long k, Sizes S) {   // (B, T) twice, (count)
    const long rows = (count - 1) / S.T;   // after which it begins anew
    for (long n = 0; n < S.N; n++) {
        const int* token = tokens + (k * S.B + n / S.T) % rows * S.T + n % S.T;
        inputs[n] = token[0], targets[n] = token[1];
    }
}

// The slope of the loss along a random direction r of each parameter, by gradient, d.r, and by difference quotient,
// (loss(w + e r) - loss(w - e r)) / 2e. Returns how many differ by more than 1e-5 |d|; |d| is the deviation of such slopes.
static int check_gradients(Model* M, const int* inputs, const int* targets) {
    int wrong = 0;
    model_forward(M, inputs, targets);
    model_backward(M, inputs, targets);
    for (long k = 0; k < parameter_count; k++) {
        const Array w = parameters[k].w;
        const double e = 3e-4 / sqrt((double)w.n);
        double *r = allocate((size_t)w.n * sizeof(double)), loss[2];
        for (long n = 0; n < w.n; n++) r[n] = normal();
        for (int side = 0; side < 2; side++) {
            add_times(w.x, side ? -2 * e : e, r, w.n);
            loss[side] = model_forward(M, inputs, targets);
        }
        add_times(w.x, e, r, w.n);
        const double slope = dot(w.d, r, w.n), quotient = (loss[0] - loss[1]) / (2 * e);
        const int agree = fabs(slope - quotient) <= 1e-5 * sqrt(dot(w.d, w.d, w.n)) + 1e-15 * loss[0] / e;   // rounding
        printf("%-48s gradient %13.6e, quotient %13.6e%s\n", parameters[k].name, slope, quotient, agree ? "" : "  WRONG");
        wrong += !agree;
        free(r);
    }
    printf("%ld gradients checked, %d wrong\n", parameter_count, wrong);
    return wrong;
}

// How far the weights are from those of a folder: the L2 norm of the difference over that of the folder's.
static void compare(const char* folder) {
    for (Parameter* p = parameters; p < parameters + parameter_count; p++) memcpy(p->m, p->w.x, (size_t)p->w.n * sizeof(double));
    read_weights(folder);
    for (Parameter* p = parameters; p < parameters + parameter_count; p++) {
        add_times(p->m, -1, p->w.x, p->w.n);
        printf("%-48s differs by %.1e\n", p->name, sqrt(dot(p->m, p->m, p->w.n) / dot(p->w.x, p->w.x, p->w.n)));
    }
}

static void train(Model* M, const Options* o, const int* tokens, long count, int* inputs, int* targets) {
    for (long k = 0; k < (long)o->steps; k++) {
        read_batch(inputs, targets, tokens, count, k, M->S);
        const double loss = model_forward(M, inputs, targets);
        model_backward(M, inputs, targets);
        const double norm = gradient_norm(), lr = learning_rate(o, (double)k);
        if (!isfinite(loss + norm)) fail(5, "loss %g, gradient norm %g in step %ld; take a smaller --lr", loss, norm, k + 1);
        adamw(o, (double)(k + 1), lr, norm);
        printf("step %5ld/%ld | loss %.8f | norm %.8f | lr %.2e\n", k + 1, (long)o->steps, loss, norm, lr);
        fflush(stdout);
    }
}

static void parse_options(Options* o, int argc, char** argv) {   // --name value, as the engine's
    const struct { const char* name; const char** text; double* number; } known[] = {
        {"--model", &o->model, 0}, {"--train-data", &o->train_data, 0}, {"--variant", &o->variant, 0},
        {"--compare", &o->compare, 0}, {"--steps", 0, &o->steps}, {"--batch-size", 0, &o->batch_size},
        {"--seq-len", 0, &o->seq_len}, {"--lr", 0, &o->lr},
        {"--warmup-steps", 0, &o->warmup_steps}, {"--min-lr-frac", 0, &o->min_lr_frac}, {"--weight-decay", 0, &o->weight_decay},
        {"--beta1", 0, &o->beta1}, {"--beta2", 0, &o->beta2}, {"--adam-eps", 0, &o->adam_eps}, {"--grad-clip", 0, &o->grad_clip},
        {"--seed", 0, &o->seed}, {"--check-gradients", 0, &o->check_gradients}};
    const size_t n = sizeof known / sizeof known[0];
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0;
        while (k < n && strcmp(argv[i], known[k].name)) k++;
        if (k == n || i + 1 == argc) {
            for (k = 0; k < n; k++) fprintf(stderr, "%s VALUE%s", known[k].name, k + 1 < n ? ", " : "\n");
            fail(2, "%s is none of these options, or has no value", argv[i]);
        }
        char* end = "";
        if (known[k].text) *known[k].text = argv[i + 1];
        else *known[k].number = strtod(argv[i + 1], &end);
        if (*end) fail(2, "%s is %s, expected a number", argv[i], argv[i + 1]);
    }
    if (o->warmup_steps < 0) o->warmup_steps = floor(o->steps / 20);
    if (o->steps < 1 || o->batch_size < 1 || o->seq_len < 1) fail(2, "--steps, --batch-size and --seq-len must be at least 1");
    if (strcmp(o->variant, "causal") && strcmp(o->variant, "asga")) fail(2, "--variant is %s, expected causal or asga", o->variant);
}

int main(int argc, char** argv) {
    Options o = {.train_data = "data/bundled/sotu_train_000001.bin", .variant = "causal", .steps = 20, .batch_size = 4,
                 .seq_len = 64, .lr = 1e-3, .warmup_steps = -1, .min_lr_frac = 0.1, .weight_decay = 0.1, .beta1 = 0.9,
                 .beta2 = 0.95, .adam_eps = 1e-8, .grad_clip = 1, .seed = 1};
    parse_options(&o, argc, argv);
    Model M = {.S = {.V = 512, .C = 128, .L = 4, .NH = 4, .NKV = 2, .HS = 32, .F = 384, .norm_eps = 1e-6, .rope_theta = 1e6}};
    if (strcmp(o.variant, "asga") == 0) M.S.m = 16;
    if (o.model) read_config(&M.S, o.model);
    M.S.B = (long)o.batch_size, M.S.T = (long)o.seq_len, M.S.N = M.S.B * M.S.T;
    long count, numbers = 0;
    const int* tokens = read_shard(o.train_data, M.S.V, &count);
    if (count <= M.S.T) fail(3, "%s: holds %ld tokens, a row of --seq-len needs %ld", o.train_data, count, M.S.T + 1);
    random_state += (uint64_t)o.seed;
    make_parameters(&M);
    make_activations(&M);
    if (o.model) read_weights(o.model);
    for (long k = 0; k < parameter_count; k++) numbers += parameters[k].w.n;
    printf("%s attention, %ld parameters, %ld tokens of text\n", M.S.m ? "asga" : "causal", numbers, count);
    int *inputs = allocate((size_t)M.S.N * sizeof(int)), *targets = allocate((size_t)M.S.N * sizeof(int));
    read_batch(inputs, targets, tokens, count, 0, M.S);
    if (o.check_gradients) return check_gradients(&M, inputs, targets) > 0;
    train(&M, &o, tokens, count, inputs, targets);
    if (o.compare) compare(o.compare);
    return 0;
}
