// Measures a matrix unit's arithmetic with all operands in registers, as units/peak.h does for vectors.
#pragma once
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Multiplies tiles in registers, of bytes or (kBf16) of bf16; a row has `k` values.
template <bool kBf16>
int64_t tiles_peak(const void* tile, int k, int64_t ops) {
    const int64_t per_round = int64_t{4} * 2 * 16 * 16 * k, rounds = ops / per_round + 1;
    tile_begin(16);
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_load(4, tile, 64);
    tile_load(5, tile, 64);
    tile_load(6, tile, 64);
    tile_load(7, tile, 64);
    for (int64_t round = 0; round < rounds; ++round) {
        if constexpr (kBf16) {
            tile_dot_bf16(0, 4, 6);
            tile_dot_bf16(1, 4, 7);
            tile_dot_bf16(2, 5, 6);
            tile_dot_bf16(3, 5, 7);
        } else {
            tile_dot(0, 4, 6);
            tile_dot(1, 4, 7);
            tile_dot(2, 5, 6);
            tile_dot(3, 5, 7);
        }
    }
    tile_end();
    return rounds * per_round;
}

// Fills tiles with bytes of all values. With zeros the unit takes so little power that the clock rises by a fifth.
int64_t peak_int8(int64_t ops) {
    alignas(64) uint8_t bytes[kTileBytes];
    for (int i = 0; i < kTileBytes; ++i) bytes[i] = static_cast<uint8_t>(i * 181 + i / 64 * 37);
    return tiles_peak<false>(bytes, 64, ops);
}
int64_t peak_bf16(int64_t ops) {
    alignas(64) uint16_t ones[kTileBytes / 2];
    for (auto& one : ones) one = 0x3F80;
    return tiles_peak<true>(ones, 32, ops);
}

}  // namespace
