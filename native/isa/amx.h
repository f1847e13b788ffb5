// requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,amx_tile,amx_int8 | rank: 5 | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mamx-tile -mamx-int8 -mprefer-vector-width=512
// avx512 with the matrix unit of Sapphire Rapids and later: eight tiles of 16 rows of 64 bytes.
#pragma once
#include "isa/x86_vnni512.inc"

namespace {

constexpr bool kMatrixUnit = true;

struct alignas(64) TileConfig {  // Intel SDM vol. 1, table 18-1
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// All tiles get 64-byte rows; accumulators (0..3) and x (4, 5) get `x_rows` of them, weights (6, 7) 16.
inline void tile_begin(int x_rows) {
    TileConfig c;
    for (int i = 0; i < 8; ++i) {
        c.row_bytes[i] = 64;
        c.rows[i] = static_cast<uint8_t>(i < 6 ? x_rows : 16);
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
}
inline void tile_end() { asm volatile("tilerelease"); }
// Macros, as a tile's number is part of the instruction; and not the compiler's intrinsics, which do
// not say that they read and write memory, so that stores may move across them.
#define tile_zero(t) asm volatile("tilezero %tmm" #t)
// 16 rows of 64 bytes, `stride` bytes apart.
#define tile_load(t, p, stride)                                                              \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #t::"r"(p), "r"(static_cast<int64_t>(stride)), \
                 "m"(*reinterpret_cast<const char (*)[]>(p)))
#define tile_store(t, p)                                      \
    asm volatile("tilestored %%tmm" #t ", (%1,%2,1)"          \
                 : "=m"(*reinterpret_cast<char (*)[1024]>(p)) \
                 : "r"(p), "r"(int64_t{64}))
// acc (int32) += x (s8) * u (u8), four products a lane.
#define tile_dot(acc, x, u) asm volatile("tdpbsud %tmm" #u ", %tmm" #x ", %tmm" #acc)

}  // namespace
