// What a unit's arithmetic reaches with all operands in registers: the ceiling of a GEMM.
#pragma once
#include "units/kernel_table.h"
#include "unroll.h"

namespace {

// Products of every pair of kU and kX operands, each into its own accumulator, as a GEMM does it:
// enough chains to hide the latency, and no two products alike, or the compiler would compute them
// once.
template <int kOps, class V, class Dot>
inline int64_t peak_of(int64_t ops, V (&u)[4], const V* x, V zero, Dot dot) {
    constexpr int kSums = kPanelVectors * kPanelTokens;
    constexpr int kU = 4, kX = kSums < 2 * kU ? 1 : kSums < 4 * kU ? kSums / kU : 4;
    V acc[kU][kX];
    STERNA_UNROLL(8)
    for (int i = 0; i < kU; ++i) STERNA_UNROLL(8)
    for (int j = 0; j < kX; ++j) acc[i][j] = zero;
    const int64_t per_round = int64_t{kOps} * kU * kX, rounds = ops / per_round + 1;
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+m"(u));  // else a round's sum could be multiplied by their number
        STERNA_UNROLL(8)
        for (int i = 0; i < kU; ++i) STERNA_UNROLL(8)
        for (int j = 0; j < kX; ++j) acc[i][j] = dot(acc[i][j], u[i], x[j]);
    }
    STERNA_UNROLL(8)
    for (int i = 0; i < kU; ++i) STERNA_UNROLL(8)
    for (int j = 0; j < kX; ++j) {
        const V sum = acc[i][j];  // a copy: what an asm reads from memory stays there
        asm volatile("" ::"m"(sum));
    }
    return rounds * per_round;
}

#ifdef tile_dot

// Products of tiles in registers: of bytes, or kBf16, of which `k` fill a row.
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

// Bytes of all values: of zeros the unit takes so little power that a core's clock rises by a fifth.
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

#else

int64_t peak_int8(int64_t ops) {
    const int8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const VI x[4] = {x_broadcast(bytes), x_broadcast(bytes + 1), x_broadcast(bytes + 2),
                     x_broadcast(bytes + 3)};
    VI u[4] = {i_set1(0x01020102), i_set1(0x02040204), i_set1(0x04080408), i_set1(0x08100810)};
    // Of runs, as panel.h has them; where their sums are int16 they wrap here, which takes no time.
    return peak_of<2 * 4 * kLanes>(ops, u, x, i_set1(0),
                                   [](VI a, VI b, VI c) { return run_dot(a, b, c); });
}

#endif

int64_t peak_f32(int64_t ops) {
    const VF x[4] = {f_set1(0.5f), f_set1(0.25f), f_set1(0.125f), f_set1(0.0625f)};
    VF u[4] = {f_set1(1.0f), f_set1(2.0f), f_set1(3.0f), f_set1(4.0f)};
    return peak_of<2 * kLanes>(ops, u, x, f_set1(0.0f),
                               [](VF a, VF b, VF c) { return f_fma(b, c, a); });
}

}  // namespace
