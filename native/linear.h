// Linear layers: one loop for every format, token count and instruction set.
//
// A format decodes one step (a few consecutive k of 64 rows) into four groups of 16 rows. The
// same step serves kTokenBlock tokens, so a GEMV reads weights at the speed of memory and a GEMM
// spends its time in dot products. Integer formats sum exactly in any order; float formats sum
// over k in ascending order with one fused multiply-add each, whatever the blocking.
#pragma once
#include "kernel_table.h"

namespace {

constexpr int kParts = 16 / kLanes;  // native vectors of a 16-row group
constexpr int kGroups = 4;           // 16-row groups of a tile

// The vectors of one step's activations that a format multiplies with.
template <class F>
inline auto broadcast_x(const sterna::LinearArgs& a, int n, int64_t k) {
    if constexpr (F::kInteger) {
        return x_broadcast(a.xq + n * a.ldx + k);
    } else {
        return f_set1(a.xf[n * a.ldx + k]);
    }
}

template <class F>
inline void finish(const sterna::LinearArgs& a, typename F::Acc acc, int n, int group,
                   int64_t row) {
    VF y;
    if constexpr (F::kInteger) {
        // t = 2 * acc - z2 * sum(x) fits int32 (kMaxIntegerK); then one rounding per operation.
        const VI sum = F::settle(acc, group);
        const VI t = i_sub(i_add(sum, sum), i_set1(a.z2 * a.x_sum[n]));
        y = f_mul(f_from_i(t), f_mul(f_load(a.scale + row), f_set1(a.x_scale[n])));
    } else {
        y = acc;
    }
    float* out = a.y + n * a.ldy + row;
    if (a.residual) y = f_add(f_load(a.residual + n * a.ldy + row), y);
    f_store(out, y);
}

// Tokens [n0, n0 + N) of one tile, native parts [part0, part0 + P); U steps in flight.
template <class F, int N, int P, int U>
inline void tile_block(const sterna::LinearArgs& a, int64_t tile, int n0, int part0) {
    using Acc = typename F::Acc;
    Acc acc[U][N][P][kGroups];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u)
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
                for (int g = 0; g < kGroups; ++g) acc[u][n][p][g] = F::zero();

    const uint8_t* step = a.codes + tile * a.tile_bytes;
    for (int64_t k = 0; k < a.K; k += F::kStepK * U) {
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u, step += F::kStepBytes) {
            if constexpr (N == 1)
                prefetch(step + 2560);  // far enough for memory, near enough for L2
#pragma GCC unroll 8
            for (int j = 0; j < F::kStepK; j += F::kDotK) {
                typename F::Acc w[P][kGroups];
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) F::decode(step, part0 + p, j, w[p]);
#pragma GCC unroll 8
                for (int n = 0; n < N; ++n) {
                    const auto x = broadcast_x<F>(a, n0 + n, k + u * F::kStepK + j);
#pragma GCC unroll 8
                    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
                        for (int g = 0; g < kGroups; ++g)
                            acc[u][n][p][g] = F::dot(acc[u][n][p][g], w[p][g], x);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int g = 0; g < kGroups; ++g) {
                Acc sum = acc[0][n][p][g];
                if constexpr (U == 2) sum = i_add(sum, acc[1][n][p][g]);
                finish<F>(a, sum, n0 + n, g,
                          tile * sterna::kTileRows + 16 * g + kLanes * (part0 + p));
            }
}

template <class F, int N>
inline void tile_tokens(const sterna::LinearArgs& a, int64_t tile, int n0, int count) {
    if (count == N) {
        if constexpr (N == 1) {
            // Two steps in flight hide the latency of the dot product; floats must stay in order.
            tile_block<F, 1, kParts, (F::kInteger && kLanes == 16) ? 2 : 1>(a, tile, n0, 0);
        } else {
            for (int part = 0; part < kParts; ++part) tile_block<F, N, 1, 1>(a, tile, n0, part);
        }
    } else if constexpr (N > 1) {
        tile_tokens<F, N - 1>(a, tile, n0, count);
    }
}

template <class F>
void linear_tiles(const sterna::LinearArgs& a) {
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile)
        for (int n = 0; n < a.n; n += kTokenBlock)
            tile_tokens<F, kTokenBlock>(a, tile, n, a.n - n < kTokenBlock ? a.n - n : kTokenBlock);
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
    using Acc = VF;
    static VF zero() { return f_set1(0.0f); }
    static VF dot(VF acc, VF w, VF x) { return f_fma(w, x, acc); }
};

// ------------------------------------------------------------------------------------- packing

// Four codes of consecutive k of one row, a byte each; zero beyond the matrix.
inline uint32_t source_codes(const sterna::PackArgs& a, int64_t row, int64_t k) {
    uint32_t out = 0;
    if (row >= a.M) return out;
    for (int j = 0; j < 4 && k + j < a.K; ++j) {
        uint32_t code;
        if (a.kind == sterna::SourceKind::kBitnet) {
            const int64_t rows = a.M / 4;
            const auto* p = static_cast<const uint8_t*>(a.source) + row % rows * a.ld;
            code = (p[k + j] >> (2 * (row / rows))) & 3;
        } else {
            const int level = static_cast<const int8_t*>(a.source)[row * a.ld + k + j];
            code = static_cast<uint32_t>((level + a.level_offset) / a.level_step) & 255;
        }
        out |= code << (8 * j);
    }
    return out;
}

// The same where four bytes of the row may be loaded at once: the speed of loading a checkpoint.
inline uint32_t source_codes_inside(const sterna::PackArgs& a, int64_t row, int64_t k) {
    if (a.kind != sterna::SourceKind::kBitnet) return source_codes(a, row, k);
    const int64_t rows = a.M / 4;
    uint32_t four;
    __builtin_memcpy(&four, static_cast<const uint8_t*>(a.source) + row % rows * a.ld + k, 4);
    return (four >> (2 * (row / rows))) & 0x03030303u;
}

inline uint32_t codes_at(const sterna::PackArgs& a, int64_t row, int64_t k) {
    return row < a.M && k + 4 <= a.K ? source_codes_inside(a, row, k) : source_codes(a, row, k);
}

// Calls line(out, first_row, k) for every step of every tile.
template <class F, class Line>
inline void pack_steps(const sterna::PackArgs& a, Line line) {
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        uint8_t* out = a.codes + tile * a.tile_bytes;
        for (int64_t k = 0; k * F::kStepBytes < a.tile_bytes * F::kStepK;
             k += F::kStepK, out += F::kStepBytes)
            line(out, tile * sterna::kTileRows, k);
    }
}

// Start of the step that holds k of `row`, and the row within its tile.
template <class F>
inline const uint8_t* step_of(const sterna::RowArgs& a, int64_t k) {
    return a.codes + a.row / sterna::kTileRows * a.tile_bytes + k / F::kStepK * F::kStepBytes;
}

}  // namespace
