// Arguments of the kernels of rows, rotations, convolutions and recurrences. Plain data, as all of kernel_table.h,
// which includes it.
#pragma once
#include <cstdint>

namespace sterna {

// The function of a gate before it multiplies `up`; kGelu has the normal distribution's integral, kGeluTanh the
// approximation of it by a hyperbolic tangent. kClamped: gate sigmoid(1.702 gate) (up + 1). Of that and
// of kSilu the gate is at most a limit, and up is within it.
enum class Glu : int { kNone, kRelu2, kSilu, kGelu, kGeluTanh, kClamped };

// One token's row: optional gate * up, optional RMSNorm, optional int8 quantisation.
struct RowwiseArgs {
    const float* x;  // [width], or [gate | up] of 2 * width
    int64_t up_offset;  // where `up` starts in x, for a Glu
    bool ungated;  // a Glu multiplies by one, and kClamped adds its one to zero
    int64_t width;
    Glu glu;
    float limit = __builtin_inff();  // of kSilu and kClamped
    const float* norm;  // [width] or null
    float eps;
    // Where it is not 0, the result is transformed in blocks, of a power of two that divides the width, a multiple of
    // 16: Hadamard / sqrt(block), after its values took `signs`, or before, where `signs_last`.
    int64_t hadamard_block;
    const float* signs;  // [width] of 1 and -1, or null
    bool signs_last;
    float* yf;  // [width] result, always written
    int8_t* yq;  // [padded width] or null
    int64_t yq_stride;  // bytes from 64 values to the next 64: 64, or 64 * x_block
    int64_t group_k;  // values of yq that share a scale; 0: all
    float* x_scale;  // with yq: one value, or one for each group
    int32_t* x_sum;  // with yq: one value, or one for every kSumK
    // The rounding error, as a second plane in the layout of yq; or null. Its scales are those of the first over
    // kLowSteps, so both are digits of one integer: yf ~ x_scale / kLowSteps * (kLowSteps * yq + yq_low).
    int8_t* yq_low;
    float* x_scale_low;
    int32_t* x_sum_low;
};
constexpr int kLowSteps = 254;  // of the second plane in one of the first: 127 to either side

struct LayerNormArgs {
    const float* x;  // [width]
    const float* weight;  // [width]
    const float* bias;  // [width] or null
    int64_t width;
    double eps;
    float* y;  // [width]
};

struct RopeArgs {
    float* x;  // [n_heads][head_dim], rotated in place
    const float* cos;  // [rotary_dim / 2]
    const float* sin;
    int n_heads, head_dim;
    int rotary_dim;  // so many values at the begin of a head are rotated; even
    bool interleaved;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim / 2)
};

// x <- cap * tanh(x / cap), by which |x| stays within cap.
struct CapArgs {
    float* x;  // [count]
    int64_t count;
    float cap;  // > 0
};

// The state of a recurrent layer for a sequence, so that a token costs the same however many came before it: the last
// inputs of a causal convolution, and a matrix for each value head (recurrence.h).
constexpr int kMaxConvWidth = 16;  // positions that a convolution sees
// Columns of a head's matrix that are stored together, [k_dim][kStateColumns]: a vector lane is a column.
constexpr int kStateColumns = 16;
[[gnu::always_inline]] constexpr int64_t state_blocks(int64_t v_dim) {
    return (v_dim + kStateColumns - 1) / kStateColumns;
}

// y[t][c] = silu(sum_i weight[i][c] x[t - width + 1 + i][c]), for the tokens of one sequence in order; with gates
// y = after (bias + sum_i weight[i] (before x)[t - width + 1 + i]) instead.
struct ConvArgs {
    const float* x;  // [tokens][ldx], at the first of `channels`
    const float *before, *after;  // [tokens][ldx] likewise: the gates, or both null
    int64_t ldx, tokens, channels;
    const float* weight;  // [width][ldw], at the same channel
    const float* bias;  // likewise, or null
    int64_t ldw;
    int width;  // 1..kMaxConvWidth
    float*
        state;  // [width - 1][ldw]: the inputs before x, the oldest first; then those before what follows x
    bool fresh;  // nothing came before: `state` is not read
    float* y;  // [tokens][ldy]; may be x
    int64_t ldy;
    bool linear;  // without gates: no SiLU follows
};

// The gates of one token: q and k of unit length, q over the root of k_dim, and for each value head the decay
// exp(rate softplus(a + bias)), or one for each row of its state, and beta = strength sigmoid(b), in place of a and b.
struct GatesArgs {
    float *q, *k;  // [k_heads][k_dim]
    float *a, *b;  // [decays], [v_heads]
    const float *rate, *bias;  // [decays]
    int k_heads, v_heads;
    int64_t k_dim, decays;
    float strength;
};

// A state space's step of one head: its size is softplus(step + bias) within [least, most].
struct StateSpace {
    const float* step;  // [tokens][ldx] -> a float; null: no state space, but the gated delta rule
    float bias, rate, least, most, skip;
};

// Columns of one head's state over the tokens of one sequence, in order. The gated delta rule: with
// r = v - decay S^T k, S <- decay S + k (beta r)^T, out = S^T q. A state space, with h the size of the step:
// S <- exp(rate h) S + k (h v)^T, out = S^T q + skip v.
struct RecurrenceArgs {
    const float *q, *k;  // [tokens][ldx] -> [k_dim]
    const float *v, *decay, *beta;  // [tokens][ldx] -> [columns], a float or [k_dim], a float
    bool decays_rows;  // decay is [k_dim]
    StateSpace space;  // in the place of decay and beta
    int64_t ldx, tokens, k_dim, columns;
    float* state;  // [state_blocks(columns)][k_dim][kStateColumns]
    bool fresh;  // the state is zero, whatever is there
    float* out;  // [tokens][ldo] -> [columns]
    int64_t ldo;
};

// Channels of a selective scan (Mamba) over the tokens of one sequence, in order. A channel c has a state of k_dim
// values. With h = softplus(step), S[i] <- exp(rate[i] h) S[i] + k[i] h x, out = sum_i q[i] S[i] + skip x.
struct ScanArgs {
    const float *x, *step;  // [tokens][ldx], [tokens][lds] -> [channels]
    const float *k, *q;  // [tokens][ldk], [tokens][ldq] -> [k_dim], of all channels
    int64_t ldx, lds, ldk, ldq, tokens, k_dim, channels;
    const float* rate;  // as the state
    const float* skip;  // [channels]
    float* state;  // [state_blocks(channels)][k_dim][kStateColumns]
    bool fresh;  // the state is zero, whatever is there
    float* out;  // [tokens][ldo] -> [channels]
    int64_t ldo;
};

// Channels of an RG-LRU over the tokens of one sequence, in order: with a = exp(-8 softplus(decay) sigmoid(r)),
// h <- a h + sqrt(1 - a^2) sigmoid(i) x, and out = h. Where it is fresh the first token makes h = sigmoid(i) x.
struct LruArgs {
    const float *x, *i, *r;  // [tokens][ldx], [tokens][ldg], [tokens][ldg] -> [channels]
    int64_t ldx, ldg, tokens, channels;
    const float* decay;  // [channels]
    float* state;  // [channels], in whole blocks of kStateColumns
    bool fresh;  // nothing came before, whatever is there
    float* out;  // [tokens][ldo] -> [channels]
    int64_t ldo;
};

// y = norm(x) act(gate) of a row of heads, or norm(x act(gate)); norm: RMSNorm of each head, or x where there is no
// weight.
struct GatedArgs {
    const float* x;  // [heads][head_dim]
    const float* gate;  // head h at h * gate_stride
    int64_t heads, head_dim, gate_stride;
    bool silu;  // else the sigmoid
    bool single;  // one gate for all of a head
    bool first;  // the gate comes before the norm
    const float* norm;  // head h at h * norm_stride, or null
    int64_t norm_stride;
    float eps;
    float* y;  // head h at h * y_stride
    int64_t y_stride;
};

// out[n][r] = sum_k matrix[r][k] x[n][k] for rows of a low-rank matrix. Products are rounded before they are added,
// ascending in k. Where it adds, out[n][r] += scale times that sum.
struct LowRankArgs {
    const float* tiles;  // [rows / kRowBlock, upwards][columns][kRowBlock]
    int64_t rows, columns;
    const float* x;  // [tokens][ldx]
    int64_t ldx, tokens;
    float* out;  // [tokens][ldo]: of whole blocks, unless it adds
    int64_t ldo;
    bool adds;
    float scale;
};

// weights[i] = exp((logits[i] - max) / temperature), or 0 where that is below `least`.
struct SoftmaxArgs {
    const float* logits;
    int64_t count;
    float max;
    double temperature, least;
    double* weights;
};

}  // namespace sterna
