// Recurrent layers: a causal convolution of each channel, between two gates or followed by SiLU, and a gated delta rule
// for each head (arXiv 2412.06464).
//
// Sums run over the tokens of a sequence, over k_dim and over the taps in an order of their own, and a lane is a
// channel or a column: so neither the unit nor how the work is split has a part in a bit.
#pragma once
#include "lanes.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

template <bool kGated>
inline void convolve(const sterna::ConvArgs& a) {
    constexpr int64_t kAtOnce = 256;  // channels whose last inputs stay in L1
    const int64_t before = a.width - 1;
    float window[sterna::kMaxConvWidth][kAtOnce];  // the input of token t is at t mod `before`
    for (int64_t from = 0; from < a.channels; from += kAtOnce) {
        const int64_t count = a.channels - from < kAtOnce ? a.channels - from : kAtOnce;
        const float* weight = a.weight + from;
        float* state = a.state + from;
        for (int64_t i = 0; i < before; ++i)
            for (int64_t c = 0; c < count; ++c)
                window[i][c] = a.fresh ? 0.0f : state[i * a.ldw + c];
        for (int64_t t = 0; t < a.tokens; ++t) {
            const int64_t at = t * a.ldx + from;
            float* out = a.y + t * a.ldy + from;
            const float* inputs[sterna::kMaxConvWidth];  // the oldest first
            for (int64_t i = 0; i < before; ++i) inputs[i] = window[(t + i) % before];
            float* oldest = before ? window[t % before] : nullptr;
            sixteens(count, [&](int64_t c, auto part) {
                F16x now = part.load(a.x + at + c);
                if constexpr (kGated) now = l_mul(part.load(a.before + at + c), now);
                F16x y = a.bias ? part.load(a.bias + from + c) : l_set1(0.0f);
                for (int64_t i = 0; i < before; ++i)
                    y = l_fma(part.load(weight + i * a.ldw + c), part.load(inputs[i] + c), y);
                y = l_fma(part.load(weight + before * a.ldw + c), now, y);
                if (oldest) part.store(oldest + c, now);
                if constexpr (kGated)
                    y = l_mul(part.load(a.after + at + c), y);
                else
                    y = l_silu(y);
                part.store(out + c, y);
            });
        }
        for (int64_t i = 0; i < before; ++i)
            for (int64_t c = 0; c < count; ++c)
                state[i * a.ldw + c] = window[(a.tokens + i) % before][c];
    }
}

void conv(const sterna::ConvArgs& a) { a.before ? convolve<true>(a) : convolve<false>(a); }

// x <- factor x / |x|; false: x is not finite, or so large that the sum of squares is not.
inline bool to_length(float* x, int64_t width, float factor) {
    F16x squares = l_set1(0.0f);
    sixteens(width, [&](int64_t i, auto part) {
        const F16x v = part.load(x + i);
        squares = l_fma(v, v, squares);
    });
    const float inverse = 1.0f / __builtin_sqrtf(l_sum(squares) + 1e-6f);  // transformers' l2norm
    const F16x by = l_set1(inverse * factor);
    sixteens(width, [&](int64_t i, auto part) { part.store(x + i, l_mul(part.load(x + i), by)); });
    return inverse > 0.0f;
}

// False: q or k is not finite.
bool gates(const sterna::GatesArgs& a) {
    const float root = 1.0f / __builtin_sqrtf(static_cast<float>(a.k_dim));
    bool finite = true;
    for (int64_t h = 0; h < a.k_heads; ++h) {
        finite = to_length(a.q + h * a.k_dim, a.k_dim, root) && finite;
        finite = to_length(a.k + h * a.k_dim, a.k_dim, 1.0f) && finite;
    }
    sixteens(a.v_heads, [&](int64_t h, auto part) {
        const F16x step = l_softplus(l_add(part.load(a.a + h), part.load(a.bias + h)));
        // 2^-80 changes only a decay next to 0, so that a state that forgets all has no denormals.
        const F16x decay = l_sub(l_exp(l_mul(part.load(a.rate + h), step)), l_set1(0x1p-80f));
        part.store(a.a + h, l_max(l_set1(0.0f), decay));
        part.store(a.b + h, l_sigmoid(part.load(a.b + h)));
    });
    return finite;
}

// Row k goes to the sum k mod 2, in pairs: each hides the other's latency.
constexpr int kSums = 2;
using Sums = F16x[kSums];
inline F16x sum_of(const Sums& sums) { return l_add(sums[0], sums[1]); }

// S^T k of a block of columns.
inline F16x recalled(const float* state, const float* k, int64_t k_dim) {
    Sums sums = {l_set1(0.0f), l_set1(0.0f)};
    int64_t i = 0;
    for (; i + kSums <= k_dim; i += kSums)
        for (int j = 0; j < kSums; ++j)
            sums[j] =
                l_fma(l_set1(k[i + j]), l_load(state + (i + j) * sterna::kStateColumns), sums[j]);
    if (i < k_dim)
        sums[0] = l_fma(l_set1(k[i]), l_load(state + i * sterna::kStateColumns), sums[0]);
    return sum_of(sums);
}

// S <- decay S + k delta^T; returns S^T q, and in `next` S^T k of the token that follows, if there is one.
template <bool kNext>
inline F16x learn(float* state, const float* q, const float* k, const float* next_k, int64_t k_dim,
                  F16x decay, F16x delta, F16x& next) {
    Sums out = {l_set1(0.0f), l_set1(0.0f)}, then = {l_set1(0.0f), l_set1(0.0f)};
    const auto row = [&](int64_t i, int j) {
        float* at = state + i * sterna::kStateColumns;
        const F16x s = l_fma(l_set1(k[i]), delta, l_mul(decay, l_load(at)));
        l_store(at, s);
        out[j] = l_fma(l_set1(q[i]), s, out[j]);
        if constexpr (kNext) then[j] = l_fma(l_set1(next_k[i]), s, then[j]);
    };
    int64_t i = 0;
    for (; i + kSums <= k_dim; i += kSums)
        for (int j = 0; j < kSums; ++j) row(i + j, j);
    if (i < k_dim) row(i, 0);
    if constexpr (kNext) next = sum_of(then);
    return sum_of(out);
}

// Tokens [begin, end) over the block of columns at `column`.
template <class Part>
inline void recur(const sterna::RecurrenceArgs& a, int64_t column, int64_t begin, int64_t end,
                  Part part) {
    float* state = a.state + column * a.k_dim;
    if (a.fresh && begin == 0)
        for (int64_t i = 0; i < a.k_dim; ++i)
            l_store(state + i * sterna::kStateColumns, l_set1(0.0f));
    F16x known = recalled(state, a.k + begin * a.ldx, a.k_dim);
    for (int64_t t = begin; t < end; ++t) {
        const int64_t at = t * a.ldx;
        const F16x decay = l_set1(a.decay[at]);
        const F16x rest = l_sub(part.load(a.v + at + column), l_mul(decay, known));
        const F16x delta = l_mul(l_set1(a.beta[at]), rest);
        const float *q = a.q + at, *k = a.k + at;
        const F16x out = t + 1 < end
                             ? learn<true>(state, q, k, k + a.ldx, a.k_dim, decay, delta, known)
                             : learn<false>(state, q, k, k, a.k_dim, decay, delta, known);
        part.store(a.out + t * a.ldo + column, out);
    }
}

void recurrence(const sterna::RecurrenceArgs& a) {
    // q and k of so many tokens stay in the cache while the blocks of columns pass over them.
    constexpr int64_t kTokens = 16;
    for (int64_t begin = 0; begin < a.tokens; begin += kTokens) {
        const int64_t end = a.tokens - begin < kTokens ? a.tokens : begin + kTokens;
        sixteens(a.columns, [&](int64_t column, auto part) { recur(a, column, begin, end, part); });
    }
}

// False: it normalises, and a value is not finite, or so large that the sum of squares is not.
bool gated(const sterna::GatedArgs& a) {
    bool finite = true;
    for (int64_t h = 0; h < a.heads; ++h) {
        const float *x = a.x + h * a.head_dim, *gate = a.gate + h * a.gate_stride;
        float inverse = 1.0f;
        if (a.norm) {
            F16x squares = l_set1(0.0f);
            sixteens(a.head_dim, [&](int64_t i, auto part) {
                const F16x v = part.load(x + i);
                squares = l_fma(v, v, squares);
            });
            const float mean = l_sum(squares) / static_cast<float>(a.head_dim);
            inverse = 1.0f / __builtin_sqrtf(mean + a.eps);
            finite = inverse > 0.0f && finite;
        }
        const auto activated = [&](F16x g) { return a.silu ? l_silu(g) : l_sigmoid(g); };
        const F16x all = activated(l_set1(gate[0]));
        sixteens(a.head_dim, [&](int64_t i, auto part) {
            F16x v = part.load(x + i);
            if (a.norm) v = l_mul(l_mul(v, l_set1(inverse)), part.load(a.norm + i));
            const F16x g = a.single ? all : activated(part.load(gate + i));
            part.store(a.y + h * a.y_stride + i, l_mul(v, g));
        });
    }
    return finite;
}

}  // namespace
