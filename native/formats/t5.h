// t5: three ternary weights in five bits, 1.67 bits a weight.
//
// A code holds rows r, 16 + r and 32 + r of a tile of 48 at one k. With trits t in {-1, 0, 1} and
// v = t0 + 3 * t1 + 9 * t2, its low four bits are |v| (0..13) and bit 4 is the sign of v; 14 and 15 mean
// 0. So a table of 32 entries decodes it, or one of 16 and a sign. What comes out is t + 1.
//
// A step is 32 consecutive k, in five 64-byte lines. Byte 4*r + j of a line belongs to row r of the
// groups; quad q is k = 4*q + j:
//            bits 7..5                             bits 4..0
//   line 0   quad 5, bits 2..0                     quad 0
//   line 1   quad 6, bit 4 | quad 5, bits 4..3     quad 1
//   line 2   quad 6, bits 2..0                     quad 2
//   line 3   quad 7, bits 4..3 | quad 6, bit 3     quad 3
//   line 4   quad 7, bits 2..0                     quad 4
#pragma once
#include "layers.h"
#include "unroll.h"

namespace {

struct TritTable {
    int8_t entry[3][64];
};

// entry[g][c]: trit g of code c, plus 1; twice, as a lookup may see six bits of a code.
constexpr TritTable make_trit_table() {
    TritTable t{};
    for (int code = 0; code < 64; ++code) {
        const int size = code % 16 > 13 ? 0 : code % 16;
        int rest = 13 + (code / 16 % 2 ? -size : size);  // base 3, digits t + 1
        for (int g = 0; g < 3; ++g, rest /= 3) t.entry[g][code] = static_cast<int8_t>(rest % 3);
    }
    return t;
}
constexpr TritTable kTrits = make_trit_table();

struct t5 : IntegerDot {
    static constexpr const char* kName = "t5";
    static constexpr bool kLongGroups = true;  // GGUF's ternary blocks
    static constexpr int kGroups = 3, kStepK = 32, kStepBytes = 320;
    static constexpr int kMaxByte = 2;
    static constexpr bool kEvenOffset = true, kTwoBits = true;
    static constexpr int kDirectTokens = kLanes < 16 ? 4 : kFewTokens;  // the decoder is dear

    // The codes of one quad in the low five bits of every byte; the others are noise.
    static VI quad(const uint8_t* step, int part, int q) {
        const auto line = [&](int i) { return i_load(step + 64 * i + 4 * kLanes * part); };
        const VI low3 = i_set1(0x07070707);
        switch (q) {
            case 5:
                return b_select(low3, i_shr<5>(line(0)), i_shr<2>(line(1)));
            case 6:
                return b_select(low3, i_shr<5>(line(2)),
                                b_select(i_set1(0x08080808), i_shr<2>(line(3)), i_shr<3>(line(1))));
            case 7:
                return b_select(low3, i_shr<5>(line(4)), i_shr<3>(line(3)));
            default:
                return line(q);
        }
    }
    static void decode(const uint8_t* step, int part, int j, VI* w) {
        const VI code = quad(step, part, j / 4);
        STERNA_UNROLL(8)
        for (int g = 0; g < kGroups; ++g) w[g] = b_lookup_mirrored(kTrits.entry[g], code);
    }
    static VI code(VI w, int) { return w; }
    static void linear(const sterna::LinearArgs& a) { linear_layer<t5>(a); }

    // Four codes of a quad from the three rows' trit + 1, a byte each.
    static uint32_t encode(uint32_t c0, uint32_t c1, uint32_t c2) {
        uint32_t out = 0;
        for (int shift = 0; shift < 32; shift += 8) {
            const auto at = [&](uint32_t c) { return static_cast<int>((c >> shift) & 3); };
            const int v = at(c0) + 3 * at(c1) + 9 * at(c2) - 13;
            out |= static_cast<uint32_t>(v < 0 ? 16 - v : v) << shift;
        }
        return out;
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<t5>(a, [](uint8_t* out, const PackBlock<t5>& block, int64_t k) {
            for (int r = 0; r < 16; ++r) {
                uint32_t q[8];
                for (int i = 0; i < 8; ++i) {
                    const uint32_t* codes = block.at(k + 4 * i);
                    q[i] = encode(codes[r], codes[16 + r], codes[32 + r]);
                }
                const uint32_t low3 = 0x07070707, bit3 = 0x08080808, bit4 = 0x10101010;
                const uint32_t lines[5] = {
                    q[0] | (q[5] & low3) << 5,
                    q[1] | (q[5] & (bit3 | bit4)) << 2 | (q[6] & bit4) << 3,
                    q[2] | (q[6] & low3) << 5,
                    q[3] | (q[6] & bit3) << 2 | (q[7] & (bit3 | bit4)) << 3,
                    q[4] | (q[7] & low3) << 5,
                };
                for (int i = 0; i < 5; ++i) __builtin_memcpy(out + 64 * i + 4 * r, lines + i, 4);
            }
        });
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<t5>);
        uint8_t codes[3][64];
        VI w[kGroups];
        for (int64_t k = 0; k < a.K; ++k) {
            if (k % 4 == 0)
                for (int part = 0; part < kParts; ++part) {
                    decode(step_of<t5>(a, k), part, static_cast<int>(k % kStepK), w);
                    for (int g = 0; g < kGroups; ++g) i_store(codes[g] + 4 * kLanes * part, w[g]);
                }
            a.out[k] = codes[in_tile / 16][4 * (in_tile % 16) + k % 4];
        }
    }
};

}  // namespace
