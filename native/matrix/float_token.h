// One token in the arithmetic of float_tiles.h, on vector units, for weights of one bf16 number each and an
// even K. A matrix unit would use a sixteenth of its tile, and wait for weights to be decoded into tiles and
// read back. The bits are the same, since the unit's sums are fused multiply-adds in a known order
// (tile_dot_bf16).
#pragma once
#include "layouts/layout.h"
#include "matrix/float_planes.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The sums of one tile: the outputs, the current block of k, and the even and odd k of its current step.
template <class F>
struct TokenSums {
    static constexpr int G = F::kRowBlocks;
    VF sums[G], block[G], run[2][G];

    // Adds `count` k from `step` on.
    [[gnu::always_inline]] void add(const uint8_t* step, const uint8_t* x, int64_t count,
                                    const sterna::Reading& reading) {
        const int64_t ahead = reading.prefetch_bytes;
        const bool into_l2 = reading.into_l2;
        constexpr int kBytes = 2 / F::kStepK * F::kStepBytes;  // bytes of two k
        const VI upper = i_set1(static_cast<int32_t>(0xFFFF0000u));
        VF even[G], odd[G];
        STERNA_UNROLL(8)
        for (int g = 0; g < G; ++g) even[g] = run[0][g], odd[g] = run[1][g];
        for (int64_t k = 0; k < count; k += 2, step += kBytes, x += 4) {
            STERNA_UNROLL(8)
            for (int line = 0; line < kBytes; line += kLine)
                into_l2 ? prefetch_l2_surely(step + ahead + line)
                        : prefetch_surely(step + ahead + line);
            int32_t two;
            __builtin_memcpy(&two, x, sizeof two);
            const VI pair = i_set1(two);
            const VF x_even = f_bits(i_shl<16>(pair)), x_odd = f_bits(i_and(pair, upper));
            VI w[G];
            F::decode_bf16(step, w);
            STERNA_UNROLL(8)
            for (int g = 0; g < G; ++g) {
                even[g] = f_fma(f_bits(i_shl<16>(w[g])), x_even, even[g]);
                odd[g] = f_fma(f_bits(i_and(w[g], upper)), x_odd, odd[g]);
            }
        }
        STERNA_UNROLL(8)
        for (int g = 0; g < G; ++g) run[0][g] = even[g], run[1][g] = odd[g];
    }
    void begin() {
        for (int g = 0; g < G; ++g) sums[g] = block[g] = run[0][g] = run[1][g] = f_set1(0.0f);
    }
    void end_step() {
        STERNA_UNROLL(8)
        for (int g = 0; g < G; ++g) {
            block[g] = f_add(block[g], f_add(run[0][g], run[1][g]));
            run[0][g] = run[1][g] = f_set1(0.0f);
        }
    }
    void end_block() {
        for (int g = 0; g < G; ++g) sums[g] = f_add(sums[g], block[g]), block[g] = f_set1(0.0f);
    }
};

// Runs one token of `count` tiles, `tile_stride` apart; tiles take turns as in linear.h.
template <class F>
inline void token_tiles(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
    constexpr int64_t kTurnK = 512 / F::kStepBytes * F::kStepK;  // at most a step of the unit
    static_assert(kTileK % kTurnK == 0 && kTurnK % 2 == 0 && 2 % F::kStepK == 0);
    static_assert(PlaneProducts<F>{}.count == 1);
    TokenSums<F> sums[kMostStreams];
    for (int s = 0; s < count; ++s) sums[s].begin();
    const uint8_t* codes = a.codes + tile * a.tile_bytes;
    for (int64_t k = 0; k < a.K; k += kTurnK, codes += kTurnK / F::kStepK * F::kStepBytes) {
        const int64_t end = k + kTurnK < a.K ? k + kTurnK : a.K;
        const uint8_t* x = x_tile(a, 1, 0, k / kTileK) + k % kTileK * 2;
        for (int s = 0; s < count; ++s) {
            sums[s].add(codes + s * tile_stride * a.tile_bytes, x, end - k, a.reading);
            if (end % kTileK == 0 || end == a.K) sums[s].end_step();
            if (end % (kFloatSteps<F> * kTileK) == 0 || end == a.K) sums[s].end_block();
        }
    }
    for (int s = 0; s < count; ++s)
        for (int g = 0; g < F::kRowBlocks; ++g)
            finish<F>(a, sums[s].sums[g], 0, g,
                      ((tile + s * tile_stride) * F::kRowBlocks + g) * sterna::kRowBlock);
}

template <class F>
[[gnu::noinline]] void float_one_token(const sterna::LinearArgs& a) {
    side_by_side(a, [&](int64_t tile, int64_t tile_stride, int count) {
        token_tiles<F>(a, tile, tile_stride, count);
    });
}

}  // namespace
