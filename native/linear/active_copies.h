// The copies of two-bit codes that active.h reads, in the order that it describes.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Puts the two bits of each of four codes, one code a byte, at field f = 0..3.
inline void add_codes(uint8_t* to, uint32_t four, int f) {
    uint32_t was;
    __builtin_memcpy(&was, to, 4);
    was |= four << 2 * f;
    __builtin_memcpy(to, &was, 4);
}

// Calls each(row, k, four codes) for the k in [k0, k1) of a tile, whole steps.
template <class F, class Each>
inline void tile_codes(const sterna::ActiveCopyArgs& a, int64_t tile, int64_t k0, int64_t k1,
                       Each each) {
    const uint8_t* step = a.codes + tile * a.tile_bytes + k0 / F::kStepK * F::kStepBytes;
    for (int64_t k = k0; k < k1; k += F::kStepK, step += F::kStepBytes)
        for (int j = 0; j < F::kStepK; j += 4)
            for (int part = 0; part < kParts; ++part) {
                VI w[F::kRowBlocks];
                decode_codes<F>(typename F::Levels({}), step, part, j, w);
                for (int g = 0; g < F::kRowBlocks; ++g) {
                    uint32_t codes[kLanes];
                    i_store(codes, w[g]);
                    for (int r = 0; r < kLanes; ++r)
                        each(g * sterna::kRowBlock + part * kLanes + r, k + j, codes[r]);
                }
            }
}

// Rows of tiles [begin, end), the first of which becomes row 0.
template <class F>
void copy_rows(const sterna::ActiveCopyArgs& a) {
    for (int64_t tile = a.begin; tile < a.end; ++tile) {
        uint8_t* out = a.out + (tile - a.first_tile) * kTileRows<F> * a.stride;
        tile_codes<F>(a, tile, 0, a.K, [&](int row, int64_t k, uint32_t four) {
            add_codes(out + row * a.stride + k / sterna::kActiveLine * kLine + k % kLine, four,
                      static_cast<int>(k / kLine % 4));
        });
    }
}

// Columns [begin, end), multiples of 64, of all tiles. (Tiles of 48 rows share bytes; columns share none.)
template <class F>
void copy_columns(const sterna::ActiveCopyArgs& a) {
    for (int64_t tile = 0; tile < a.tiles; ++tile)
        tile_codes<F>(a, tile, a.begin, a.end, [&](int in_tile, int64_t k, uint32_t four) {
            const int64_t row = tile * kTileRows<F> + in_tile;
            if (row >= a.M) return;
            uint8_t* to = a.out + k * a.stride + row / sterna::kActiveLine * kLine +
                          row / 64 % 4 * sterna::kRowBlock + row % sterna::kRowBlock;
            for (int j = 0; j < 4; ++j)
                to[j * a.stride] |= static_cast<uint8_t>((four >> 8 * j & 3) << 2 * (row / 16 % 4));
        });
}

}  // namespace
