// on: x86_64 | requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,amx_tile,amx_int8,amx_bf16,avx512bf16 | rank: 8 | extends: avx512 by tiles | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mamx-tile -mamx-int8 -mamx-bf16 -mavx512bf16 -mprefer-vector-width=512
// avx512 with the matrix unit of Sapphire Rapids and later: eight tiles of 16 rows of 64 bytes.
#pragma once
#include "isa/x86_bf16.inc"
#include "isa/x86_vnni512.inc"

namespace {

constexpr int64_t kTileBytes = 1024;

struct alignas(64) TileConfig {  // Intel SDM vol. 1, table 18-1
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Accumulators (0..3) and x (4, 5) have `x_rows` rows of 64 bytes, weights (6, 7) 16.
inline void tile_begin(int x_rows) {
    TileConfig c;
    for (int i = 0; i < 8; ++i) {
        c.row_bytes[i] = 64;
        c.rows[i] = static_cast<uint8_t>(i < 6 ? x_rows : 16);
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
}
// What a load may read, from its first byte on: rows of an unknown stride. GCC takes an array without a size there, and
// clang does not.
using TileBytes = const char[1 << 24];
inline void tile_end() { asm volatile("tilerelease"); }
// These are macros, as a tile's number is part of the instruction. They are not the compiler's intrinsics, which
// do not say that they read and write memory, so that stores may move across them.
#define tile_zero(t) asm volatile("tilezero %tmm" #t)
// Loads 16 rows of 64 bytes, `stride` bytes apart.
#define tile_load(t, p, stride)                                                              \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #t::"r"(p), "r"(static_cast<int64_t>(stride)), \
                 "m"(*reinterpret_cast<TileBytes*>(p)))
// Loads a tile whose lines need not stay in L1.
#define tile_load_once(t, p, stride)                                                           \
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #t::"r"(p), "r"(static_cast<int64_t>(stride)), \
                 "m"(*reinterpret_cast<TileBytes*>(p)))
#define tile_store(t, p)                                      \
    asm volatile("tilestored %%tmm" #t ", (%1,%2,1)"          \
                 : "=m"(*reinterpret_cast<char (*)[1024]>(p)) \
                 : "r"(p), "r"(int64_t{64}))
// acc (int32) += x (s8) * u (u8), four products a lane.
#define tile_dot(acc, x, u) asm volatile("tdpbsud %tmm" #u ", %tmm" #x ", %tmm" #acc)
// tile_dot for other signs: x and w unsigned, x unsigned and w signed, both signed.
#define tile_dot_uu(acc, x, w) asm volatile("tdpbuud %tmm" #w ", %tmm" #x ", %tmm" #acc)
#define tile_dot_us(acc, x, w) asm volatile("tdpbusd %tmm" #w ", %tmm" #x ", %tmm" #acc)
#define tile_dot_ss(acc, x, w) asm volatile("tdpbssd %tmm" #w ", %tmm" #x ", %tmm" #acc)

// acc (f32) += x (bf16) * w (bf16), two products a lane: the first of each add up to one sum from 0, the
// second to another, by fused multiply-adds in ascending order of k, and what both are together is added
// (Intel SDM vol. 2, TDPBF16PS). Denormals count as 0.
#define tile_dot_bf16(acc, x, w) asm volatile("tdpbf16ps %tmm" #w ", %tmm" #x ", %tmm" #acc)

// Makes denormals count as 0 for vectors too, until the state that it returns is restored. That holds in functions
// that are called and not inlined: a compiler does not know that arithmetic depends on it. It is not a class, whose
// destructor would need the runtime of exceptions.
inline unsigned flush_denormals() {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
}
inline void restore_denormals(unsigned before) { _mm_setcsr(before); }

// Byte i of the result is byte index[i] of the 128 of a and b.
inline VI b_gather(VI a, VI b, const uint8_t* index) {
    return _mm512_permutex2var_epi8(a, i_load(index), b);
}
// Shifts each 16 bits; the sign fills what becomes free.
template <int n>
inline VI h_sar(VI a) {
    return _mm512_srai_epi16(a, n);
}
struct ByteTable {
    alignas(64) uint8_t low[64], high[64];
};
// 64 int16 as their low and their high bytes: a row of x.
inline void split_row(const int16_t* p, uint8_t* low, uint8_t* high) {
    static constexpr ByteTable kTable = [] {
        ByteTable t{};
        for (int i = 0; i < 64; ++i) {
            t.low[i] = static_cast<uint8_t>(2 * i);
            t.high[i] = static_cast<uint8_t>(2 * i + 1);
        }
        return t;
    }();
    const VI a = i_load(p), b = i_load(p + 32);
    i_store(low, b_gather(a, b, kTable.low));
    i_store(high, b_gather(a, b, kTable.high));
}
constexpr ByteTable kColumnTable = [] {
    ByteTable t{};
    for (int i = 0; i < 64; ++i) {
        t.low[i] = static_cast<uint8_t>(i % 4 / 2 * 64 + i / 4 * 4 + i % 2 * 2);
        t.high[i] = static_cast<uint8_t>(t.low[i] + 1);
    }
    return t;
}();
// Two lines of 16 columns x 2 int16 as one line of 16 columns x 4 low bytes, and one of high bytes.
inline void split_columns(VI first, VI second, uint8_t* low, uint8_t* high) {
    i_store(low, b_gather(first, second, kColumnTable.low));
    i_store(high, b_gather(first, second, kColumnTable.high));
}
// The same for int16 that fit a byte, whose high bytes say nothing.
inline void join_columns(VI first, VI second, uint8_t* to) {
    i_store(to, b_gather(first, second, kColumnTable.low));
}

}  // namespace
