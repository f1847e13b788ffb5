// Panels for units that multiply two rows by two tokens, eight k at a time (rows_dot: usmmla of ARM).
//
// Two steps of a native vector of a panel, 4 rows x 4 k each, become two rows x 8 k each, in the same 32 bytes.
// Sums come out as [row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1], and are turned where they begin and
// end.
#pragma once
#include "layouts/layout.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Whether the unit has such products, and a panel's bytes P take no more than one.
template <class P>
constexpr bool kRowPairs = requires(typename P::Acc v) { rows_dot(v, v, v); } && !P::kHasLevel128;

// Turns the steps of a panel.
template <class V>
inline void pair_rows(uint8_t* panel, int64_t bytes, V) {
    for (uint8_t* at = panel; at < panel + bytes; at += 8 * kLanes) {
        const V first = i_load(at), second = i_load(at + 4 * kLanes);
        i_store(at, i_zip_low(first, second));
        i_store(at + 4 * kLanes, i_zip_high(first, second));
    }
}

// Adds N tokens, x, and GN row blocks, `stride` bytes apart, of such a panel, over `count` k.
template <class V, int GN, int N, class X>
[[gnu::always_inline]] inline void row_pair_sums(const X* x, int64_t ldx, const uint8_t* at,
                                                 int64_t stride, int64_t count, V (&acc)[N][GN]) {
    static_assert(N % 2 == 0);
    constexpr int kPairs = N / 2, kVectors = 2 * GN;  // of tokens, of rows
    V sum[kPairs][kVectors];
    STERNA_UNROLL(16)
    for (int n = 0; n < kPairs; ++n) {
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) {
            sum[n][2 * g] = i_zip_low(acc[2 * n][g], acc[2 * n + 1][g]);
            sum[n][2 * g + 1] = i_zip_high(acc[2 * n][g], acc[2 * n + 1][g]);
        }
    }
    for (int64_t k = 0; k < count; k += 8, at += 8 * kLanes) {
        const auto rows = [&](int v) { return i_load(at + v / 2 * stride + v % 2 * 4 * kLanes); };
        const auto tokens = [&](int n) { return x_pair(x + 2 * n * ldx + k, ldx); };
        if constexpr (kPairs <= kVectors) {  // the fewer of the two stay in registers
            V pair[kPairs];
            STERNA_UNROLL(16)
            for (int n = 0; n < kPairs; ++n) pair[n] = tokens(n);
            STERNA_UNROLL(8)
            for (int v = 0; v < kVectors; ++v) {
                STERNA_FENCE();  // else all are loaded first
                const V w = rows(v);
                STERNA_UNROLL(16)
                for (int n = 0; n < kPairs; ++n) sum[n][v] = rows_dot(sum[n][v], w, pair[n]);
            }
        } else {
            V w[kVectors];
            STERNA_UNROLL(8)
            for (int v = 0; v < kVectors; ++v) w[v] = rows(v);
            STERNA_UNROLL(16)
            for (int n = 0; n < kPairs; ++n) {
                const V pair = tokens(n);
                STERNA_UNROLL(8)
                for (int v = 0; v < kVectors; ++v) sum[n][v] = rows_dot(sum[n][v], w[v], pair);
            }
        }
    }
    STERNA_UNROLL(16)
    for (int n = 0; n < kPairs; ++n) {
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) {
            acc[2 * n][g] = i_unzip_even(sum[n][2 * g], sum[n][2 * g + 1]);
            acc[2 * n + 1][g] = i_unzip_odd(sum[n][2 * g], sum[n][2 * g + 1]);
        }
    }
}

}  // namespace
