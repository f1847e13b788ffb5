// The two kernels of the exact head (docs/explanation/exact-head.md). One makes the int8 shadow of a float matrix, with
// bounds of its error. The other computes float logits of single row blocks.
#pragma once
#include "layouts/layout.h"
#include "layouts/more_bits/b8.h"
#include "linear/layers.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Returns the offset of a row block's first line. The lines of k are k / kStepK * kStepBytes further.
template <class F>
inline int64_t row_block_offset(int64_t row_block, int64_t tile_bytes) {
    return row_block / F::kRowBlocks * tile_bytes +
           row_block % F::kRowBlocks * (F::kStepBytes / F::kRowBlocks);
}

// ------------------------------------------------------------------------------------- rescoring

template <class F, int J>
inline void rescore_jobs(const sterna::RescoreArgs& a) {
    VF acc[J][kParts];
    const uint8_t* step[J];
    STERNA_UNROLL(8)
    for (int i = 0; i < J; ++i) {
        step[i] = a.codes + row_block_offset<F>(a.row_blocks[i], a.tile_bytes);
        STERNA_UNROLL(8)
        for (int p = 0; p < kParts; ++p) acc[i][p] = F::zero();
    }
    // The order is that of linear.h: ascending k, one fused multiply-add each, padding included.
    for (int64_t k = 0; k < a.K; k += F::kStepK) {
        STERNA_UNROLL(8)
        for (int i = 0; i < J; ++i) {
            prefetch(step[i] + 16 * F::kStepBytes);  // this stride defeats the hardware prefetcher
            STERNA_UNROLL(8)
            for (int j = 0; j < F::kStepK; ++j) {
                const VF x = f_set1(a.x[k + j]);
                STERNA_UNROLL(8)
                for (int p = 0; p < kParts; ++p)
                    acc[i][p] = F::dot(acc[i][p], F::decode_row_block(step[i], p, j), x);
            }
            step[i] += F::kStepBytes;
        }
    }
    STERNA_UNROLL(8)
    for (int i = 0; i < J; ++i) {
        STERNA_UNROLL(8)
        for (int p = 0; p < kParts; ++p)
            f_store(a.y + sterna::kRowBlock * i + kLanes * p, acc[i][p]);
    }
}

// Several row blocks at once hide the latency of their chains of multiply-adds.
template <class F, int J = sterna::kRescoreJobs>
void rescore(const sterna::RescoreArgs& a) {
    if (a.jobs == J) {
        rescore_jobs<F, J>(a);
    } else if constexpr (J > 1) {
        rescore<F, J - 1>(a);
    }
}

// --------------------------------------------------------------------------------- the int8 shadow

// A row with a largest |w| below this counts as zero, because 127 / |w| must not overflow, and s must not be denormal.
constexpr float kLeastRow = 1e-30f;
// Squares below the least denormal are lost. A sum of 2^16 of them would add less than this to a norm:
// sqrt(2^16 * 2^-150) = 2^-67.
constexpr float kLostSquares = 0x1p-64f;

template <int n>
struct Shift {
    static constexpr int value = n;
};

struct RowBounds {  // bounds of 16 rows, a lane each
    float scale[16], inverse[16], squares[16], codes[16], peak[16];
};

inline VI magnitude(VF a) { return i_and(i_bits(a), i_set1(0x7FFFFFFF)); }

// Computes scale and inverse from the largest |w| of every row of a row block.
template <class F>
inline void row_scales(const uint8_t* step, int64_t K, RowBounds& b) {
    VI most[kParts];
    for (int p = 0; p < kParts; ++p) most[p] = i_set1(0);
    for (int64_t k = 0; k < K; k += F::kStepK, step += F::kStepBytes) {
        STERNA_UNROLL(8)
        for (int j = 0; j < F::kStepK; ++j) {
            STERNA_UNROLL(8)
            for (int p = 0; p < kParts; ++p)
                most[p] = i_max(most[p], magnitude(F::decode_row_block(step, p, j)));
        }
    }
    float absmax[16];
    for (int p = 0; p < kParts; ++p) f_store(absmax + kLanes * p, f_bits(most[p]));
    for (int r = 0; r < 16; ++r) {
        const bool live = absmax[r] >= kLeastRow;
        b.scale[r] = live ? absmax[r] / 127.0f : 0.0f;
        b.inverse[r] = live ? 127.0f / absmax[r] : 0.0f;
    }
}

// Writes the codes of one row block, and the sums that bound their error. d = w - s q is rounded once.
template <class F>
inline void row_codes(const uint8_t* step, int64_t K, uint8_t* out, RowBounds& b, int p) {
    constexpr int kDotK = b8::kDotK;
    static_assert((kDotK % F::kStepK == 0 || F::kStepK % kDotK == 0) && b8::kStepK == kDotK);
    const VF inverse = f_load(b.inverse + kLanes * p);
    const VF minus_s = f_sub(f_set1(0.0f), f_load(b.scale + kLanes * p));
    VF squares = f_set1(0.0f), codes = squares;
    VI peak = i_set1(0);
    for (int64_t k = 0; k < K; k += kDotK, out += b8::kStepBytes) {
        VI line = i_set1(0);
        const auto add = [&](VF w, auto shift) {
            // |w| * (127 / max|w|) may round to a little over 127, never to 127.5.
            const VI q = i_round(f_mul(w, inverse));
            const VF qf = f_from_i(q), d = f_fma(minus_s, qf, w);
            squares = f_fma(d, d, squares);
            codes = f_fma(qf, qf, codes);
            peak = i_max(peak, magnitude(d));
            line = i_add(line, i_shl<decltype(shift)::value>(i_add(q, i_set1(128))));
        };
        const auto value = [&](int j) {
            const int64_t at = k + j;  // K is a multiple of the source's step, not of four
            return at < K ? F::decode_row_block(step + at / F::kStepK * F::kStepBytes, p,
                                                static_cast<int>(at % F::kStepK))
                          : f_set1(0.0f);
        };
        add(value(0), Shift<0>{});
        add(value(1), Shift<8>{});
        add(value(2), Shift<16>{});
        add(value(3), Shift<24>{});
        i_store(out + 4 * kLanes * p, line);
    }
    f_store(b.squares + kLanes * p, squares);
    f_store(b.codes + kLanes * p, codes);
    f_store(b.peak + kLanes * p, f_bits(peak));
}

template <class F>
void make_shadow(const sterna::ShadowArgs& a) {
    // The sum of K rounded squares, and its root, product and sum below, are off by at most (K + 8) half-ulps.
    const float up = 1.0f + static_cast<float>(a.K + 8) * 0x1p-23f;
    for (int64_t row_block = a.row_block_begin; row_block < a.row_block_end; ++row_block) {
        const uint8_t* step = a.codes + row_block_offset<F>(row_block, a.tile_bytes);
        uint8_t* out = a.out + row_block_offset<b8>(row_block, a.out_tile_bytes);
        RowBounds b;
        row_scales<F>(step, a.K, b);
        for (int p = 0; p < kParts; ++p) row_codes<F>(step, a.K, out, b, p);
        for (int r = 0; r < 16; ++r) {
            const int64_t row = row_block * sterna::kRowBlock + r;
            a.scale[row] = b.scale[r];
            a.error[row] = __builtin_sqrtf(b.squares[r]) * up + kLostSquares;
            a.norm[row] = b.scale[r] * __builtin_sqrtf(b.codes[r]) * up + kLostSquares;
            a.peak[row] = b.peak[r] * up + kLostSquares;
        }
    }
}

}  // namespace
