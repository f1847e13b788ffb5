// Linear layers: the loops that every format and instruction set share.
//
// A format decodes one step (a few consecutive k of all rows of a tile) into groups of 16 rows. Few
// tokens take it straight from the decoder (tile_block), so a GEMV reads weights at the speed of
// memory. For many tokens an integer format is decoded once into a panel of bytes, which blocks of
// tokens then sweep: panel.h, or amx.h where there is a matrix unit. Integer formats sum exactly in
// any order; float formats sum over k in ascending order with one fused multiply-add each, whatever
// the blocking.
#pragma once
#include "kernel_table.h"

namespace {

// How far ahead of the arithmetic weights are asked for. Less leaves gaps at the latency of a server's
// memory (1,024: a third of the bandwidth lost), twice as much is no better.
constexpr int64_t kPrefetchBytes = 4096;
constexpr int kParts = 16 / kLanes;  // native vectors of a 16-row group

// Tokens whose accumulators stay in registers.
template <class F>
constexpr int kTokens = kAccumulators / F::kGroups > 1 ? kAccumulators / F::kGroups : 1;

// The vectors of one step's activations that a format multiplies with.
template <class F>
inline auto broadcast_x(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    if constexpr (F::kInteger) {
        return x_broadcast(a.xq + n * a.ldx + k);  // x_block is 1 wherever this runs
    } else {
        return f_set1(a.xf[n * a.ldx + k]);
    }
}

// One native vector of outputs from an integer accumulator:
// t = 2 * acc - z2 * sum(x) fits int32 (kMaxIntegerK); then one rounding per operation.
template <class F>
inline VF scaled(const sterna::LinearArgs& a, VI acc, int64_t n, int group, int64_t row) {
    const VI sum = F::settle(acc, group);
    const VI t = i_sub(i_add(sum, sum), i_set1(a.z2 * a.x_sum[n]));
    return f_mul(f_from_i(t), f_mul(f_load(a.scale + row), f_set1(a.x_scale[n])));
}

template <class F>
inline void finish(const sterna::LinearArgs& a, typename F::Acc acc, int64_t n, int group,
                   int64_t row) {
    if (row >= a.M) return;  // a tile may reach further beyond M than the outputs' padding
    VF y;
    if constexpr (F::kInteger) {
        y = scaled<F>(a, acc, n, group, row);
    } else {
        y = acc;
    }
    float* out = a.y + n * a.ldy + row;
    if (a.residual) y = f_add(f_load(a.residual + n * a.ldy + row), y);
    f_store(out, y);
}

// Tokens [n0, n0 + N) of one tile, native parts [part0, part0 + P). Consecutive dot products go to C
// accumulators in turn, which hides their latency; floats must stay in order, so there C is 1.
template <class F, int N, int P, int C>
inline void tile_block(const sterna::LinearArgs& a, int64_t tile, int n0, int part0) {
    using Acc = typename F::Acc;
    constexpr int G = F::kGroups, U = F::kStepK / F::kDotK >= C ? 1 : C;  // steps of a round
    Acc acc[C][N][P][G];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
                for (int g = 0; g < G; ++g) acc[c][n][p][g] = F::zero();

    const uint8_t* step = a.codes + tile * a.tile_bytes;
    for (int64_t k = 0; k < a.K; k += F::kStepK * U) {
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u, step += F::kStepBytes) {
            if constexpr (N <= 2) {  // two: the planes of an exact head
#pragma GCC unroll 8
                for (int line = 0; line < F::kStepBytes; line += 64)
                    prefetch(step + kPrefetchBytes + line);
            }
#pragma GCC unroll 8
            for (int j = 0; j < F::kStepK; j += F::kDotK) {
                const int c = (u * F::kStepK + j) / F::kDotK % C;
                Acc w[P][G];
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) F::decode(step, part0 + p, j, w[p]);
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    const auto x = broadcast_x<F>(a, n0 + n, k + u * F::kStepK + j);
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
                        for (int g = 0; g < G; ++g)
                            acc[c][n][p][g] = F::dot(acc[c][n][p][g], w[p][g], x);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int g = 0; g < G; ++g) {
                Acc sum = acc[0][n][p][g];
                if constexpr (C == 2) sum = i_add(sum, acc[1][n][p][g]);
                finish<F>(a, sum, n0 + n, g,
                          (tile * G + g) * sterna::kGroupRows + kLanes * (part0 + p));
            }
}

template <class F, int N>
inline void tile_tokens(const sterna::LinearArgs& a, int64_t tile, int n0, int count) {
    if (count == N) {
        // One token: all parts of a line together where their accumulators fit.
        constexpr int P = N == 1 && kParts * F::kGroups <= kAccumulators ? kParts : 1;
        constexpr int C = N == 1 && F::kInteger && 2 * P * F::kGroups <= kAccumulators ? 2 : 1;
        for (int part = 0; part < kParts; part += P) tile_block<F, N, P, C>(a, tile, n0, part);
    } else if constexpr (N > 1) {
        tile_tokens<F, N - 1>(a, tile, n0, count);
    }
}

// Tokens straight from the decoder.
template <class F>
void linear_direct(const sterna::LinearArgs& a) {
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile)
        for (int n = 0; n < a.n; n += kTokens<F>)
            tile_tokens<F, kTokens<F>>(a, tile, n, a.n - n < kTokens<F> ? a.n - n : kTokens<F>);
}

// What formats share of an integer dot product.
struct IntegerDot {
    static constexpr bool kInteger = true;
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    static constexpr int kDotK = 4;
    using Acc = VI;
    static VI zero() { return i_set1(0); }
    static VI dot(VI acc, VI w, VI x) { return ::dot(acc, w, x); }
};

// What formats share of a float product.
struct FloatDot {
    static constexpr bool kInteger = false;
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    static constexpr int kDotK = 1;
    static constexpr int kGroups = 4;
    using Acc = VF;
    static VF zero() { return f_set1(0.0f); }
    static VF dot(VF acc, VF w, VF x) { return f_fma(w, x, acc); }
};

}  // namespace
