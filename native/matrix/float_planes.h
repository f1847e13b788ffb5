// The operands of float_tiles.h: numbers as sums of bf16 planes, in the order of a matrix unit's tiles.
#pragma once
#include "layouts/layout.h"
#include "linear/bf16_planes.h"
#include "matrix/tiles.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// k of a block, in steps of kTileK: four row blocks in all planes are 24 KB and stay in L1, as in tiles.h.
template <class F>
constexpr int64_t kFloatSteps = 6 / F::kPlanes;

template <class F>
constexpr int kXPlanes = F::kPlanes == 1 ? 1 : 3;

// The pairs of planes (of weights, of activations) to multiply, in this order.
template <class F>
struct PlaneProducts {
    int count = 0, w[6] = {}, x[6] = {};
    constexpr PlaneProducts() {
        for (int i = F::kPlanes - 1; i >= 0; --i)
            for (int j = kXPlanes<F> - 1 - i; j >= 0; --j) {
                w[count] = i;
                x[count++] = j;
            }
    }
};

template <class F>
constexpr int64_t float_step_bytes = kTileK / F::kStepK * F::kStepBytes;

inline const uint8_t* x_tile(const sterna::LinearArgs& a, int planes, int64_t n, int64_t step) {
    return reinterpret_cast<const uint8_t*>(a.xh) +
           (n / 16 * (a.ldx / kTileK) + step) * planes * kTileBytes;
}

// Weight tiles of `steps` x 32 k in the unit's order: line r of a tile holds k = 2r and 2r + 1.
struct WeightTiles {
    const uint8_t* at;
    int64_t row_block, step, plane;  // bytes from one to the next
    int64_t line;
};

// Writes the planes of k in [begin, end) of `step`; k from `valid` on count as 0.
// w = w0 + w1 + w2 exactly: each plane takes the upper 8 bits of the remainder. A format with weights in bf16 may
// do this more directly.
template <class F>
inline void decode_planes(const uint8_t* step, int64_t begin, int64_t end, int64_t valid,
                          const WeightTiles& tiles, uint8_t* out) {
    constexpr int G = F::kRowBlocks, P = F::kPlanes;
    const VI upper = i_set1(static_cast<int32_t>(0xFFFF0000u));
    for (int64_t k = begin; k < end; k += 2) {
        uint8_t* to = out + k / kTileK * tiles.step + k % kTileK / 2 * kLine;
        if constexpr (F::kBf16Steps) {
            if (k + 2 <= valid) {
                VI w[G];
                F::decode_bf16(step + k / F::kStepK * F::kStepBytes, w);
                STERNA_UNROLL(8)
                for (int g = 0; g < G; ++g) i_store(to + g * tiles.row_block, w[g]);
                continue;
            }
        }
        VF w[2][G];
        STERNA_UNROLL(2)
        for (int j = 0; j < 2; ++j) {
            if (k + j < valid) {
                F::decode(step + (k + j) / F::kStepK * F::kStepBytes, 0, (k + j) % F::kStepK, w[j]);
            } else {
                for (int g = 0; g < G; ++g) w[j][g] = f_set1(0.0f);
            }
        }
        STERNA_UNROLL(8)
        for (int g = 0; g < G; ++g) {
            STERNA_UNROLL(4)
            for (int p = 0; p < P; ++p) {
                const VI low = i_bits(w[0][g]), high = i_bits(w[1][g]);
                i_store(to + g * tiles.row_block + p * tiles.plane,
                        b_select(upper, high, i_shr<16>(low)));
                w[0][g] = f_sub(w[0][g], f_bits(i_and(low, upper)));
                w[1][g] = f_sub(w[1][g], f_bits(i_and(high, upper)));
            }
        }
    }
}

// Copies weights of one plane that are already stored as lines of the unit's tiles, if no k is missing.
template <class F>
inline bool tiles_in_place(int64_t valid, int64_t steps) {
    return F::kBf16Tiles && valid >= steps * kTileK;
}
template <class F>
inline WeightTiles tiles_of_codes(const uint8_t* step) {
    return {step, kLine, float_step_bytes<F>, 0, F::kStepBytes};
}
template <class F>
inline WeightTiles tiles_of_panel(const uint8_t* panel, int64_t steps) {
    constexpr int P = F::kPlanes;
    return {panel, steps * P * kTileBytes, P * kTileBytes, kTileBytes, kLine};
}
// Makes weight tiles of `steps` x 32 k from `step` on; only the first `valid` k exist.
template <class F>
inline WeightTiles weight_tiles(const uint8_t* step, int64_t valid, int64_t steps, uint8_t* panel) {
    if (tiles_in_place<F>(valid, steps)) return tiles_of_codes<F>(step);
    const WeightTiles tiles = tiles_of_panel<F>(panel, steps);
    decode_planes<F>(step, 0, steps * kTileK, valid, tiles, panel);
    return tiles;
}

}  // namespace
