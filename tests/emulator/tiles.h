// AMX-TILE, AMX-INT8 and AMX-BF16.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "instruction.h"

namespace {

struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) uint8_t data[16][64];
};
struct Tiles {
    bool configured = false;
    Tile tile[8];
};
thread_local Tiles tiles;

bool load_configuration(const uint8_t* c) {  // LDTILECFG: table 18-1 of vol. 1
    tiles = {};
    if (c[0] == 0) return true;
    if (c[0] != 1 || c[1] != 0) return false;  // a start row is left by an interrupted load only
    for (int i = 2; i < 16; ++i) {
        if (c[i]) return false;
    }
    for (int t = 0; t < 16; ++t) {
        uint16_t row_bytes;
        memcpy(&row_bytes, c + 16 + 2 * t, 2);
        const int rows = c[48 + t];
        if (row_bytes > 64 || rows > 16 || (!row_bytes != !rows)) return false;
        if (t >= 8) {
            if (rows) return false;
            continue;
        }
        tiles.tile[t].rows = rows;
        tiles.tile[t].row_bytes = row_bytes;
        memset(tiles.tile[t].data, 0, sizeof(tiles.tile[t].data));
    }
    tiles.configured = true;
    return true;
}

bool configure(const Instruction& in) {  // 49
    if (in.vvvv) return false;
    if (in.prefix == kNone && in.memory && in.reg == 0) {
        return load_configuration(reinterpret_cast<uint8_t*>(in.address + in.step));
    }
    if (in.prefix == kNone && in.reg == 0 && in.rm == 0) {  // TILERELEASE
        tiles = {};
        return true;
    }
    if (in.prefix == kF2 && !in.memory && tiles.configured && in.reg < 8 &&
        in.rm == 0) {  // TILEZERO
        Tile& t = tiles.tile[in.reg];
        if (!t.rows) return false;
        memset(t.data, 0, sizeof(t.data));
        return true;
    }
    return false;
}

bool move_tile(const Instruction& in) {  // 4B: TILELOADD, TILELOADDT1, TILESTORED
    if (!in.memory || !in.has_sib || !tiles.configured || in.reg >= 8 || in.prefix == kNone ||
        in.vvvv)
        return false;
    Tile& t = tiles.tile[in.reg];
    if (!t.rows) return false;
    if (in.prefix != kF3) memset(t.data, 0, sizeof(t.data));
    for (int row = 0; row < t.rows; ++row) {
        void* memory = reinterpret_cast<void*>(in.address + row * in.step);
        if (in.prefix == kF3)
            memcpy(memory, t.data[row], t.row_bytes);
        else
            memcpy(t.data[row], memory, t.row_bytes);
    }
    return true;
}

// x and w are broadcast and read as double words: of each k one of x's row, a row of w.
template <class X, class W>
void multiply_bytes(Tile& sum, const Tile& x, const Tile& w) {
    const int columns = sum.row_bytes / 4, depth = x.row_bytes / 4;
    for (int m = 0; m < sum.rows; ++m) {
        uint32_t* acc = reinterpret_cast<uint32_t*>(sum.data[m]);
        for (int k = 0; k < depth; ++k) {
            const X* a = reinterpret_cast<const X*>(x.data[m]) + 4 * k;
            const W* b = reinterpret_cast<const W*>(w.data[k]);
            for (int n = 0; n < columns; ++n) {
                acc[n] += static_cast<uint32_t>(a[0] * b[4 * n] + a[1] * b[4 * n + 1] +
                                                a[2] * b[4 * n + 2] + a[3] * b[4 * n + 3]);
            }
        }
    }
}

float low_half(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
float high_half(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000); }

void multiply_bf16(Tile& sum, const Tile& x, const Tile& w) {  // TDPBF16PS
    // Denormals are zero whatever the thread's MXCSR says; the signal's return restores that.
    _mm_setcsr(_mm_getcsr() | 0x8040);
    const int columns = sum.row_bytes / 4, depth = x.row_bytes / 4;
    for (int m = 0; m < sum.rows; ++m) {
        float* acc = reinterpret_cast<float*>(sum.data[m]);
        float first[16] = {}, second[16] = {};
        for (int k = 0; k < depth; ++k) {
            const uint32_t a = reinterpret_cast<const uint32_t*>(x.data[m])[k];
            const uint32_t* b = reinterpret_cast<const uint32_t*>(w.data[k]);
            for (int n = 0; n < columns; ++n) {
                first[n] = __builtin_fmaf(low_half(a), low_half(b[n]), first[n]);
                second[n] = __builtin_fmaf(high_half(a), high_half(b[n]), second[n]);
            }
        }
        for (int n = 0; n < columns; ++n) acc[n] += first[n] + second[n];
    }
}

bool multiply_tiles(const Instruction& in) {  // 5C, 5E
    if (in.memory || !tiles.configured || in.reg >= 8 || in.rm >= 8 || in.vvvv >= 8) return false;
    if (in.reg == in.rm || in.rm == in.vvvv || in.reg == in.vvvv) return false;
    Tile& sum = tiles.tile[in.reg];
    const Tile &x = tiles.tile[in.rm], &w = tiles.tile[in.vvvv];
    const bool fit = sum.rows && sum.rows == x.rows && sum.row_bytes == w.row_bytes &&
                     x.row_bytes == 4 * w.rows && sum.row_bytes % 4 == 0;
    if (!fit) return false;
    if (in.opcode == 0x5C) {
        if (in.prefix != kF3) return false;
        multiply_bf16(sum, x, w);
        return true;
    }
    // TDPBUUD, TDPBUSD, TDPBSUD, TDPBSSD: x's sign, then w's.
    static constexpr void (*kOfBytes[])(Tile&, const Tile&, const Tile&) = {
        multiply_bytes<uint8_t, uint8_t>, multiply_bytes<uint8_t, int8_t>,
        multiply_bytes<int8_t, uint8_t>, multiply_bytes<int8_t, int8_t>};
    kOfBytes[in.prefix](sum, x, w);
    return true;
}

}  // namespace
