// t5: three ternary weights in five bits, 1.67 bits a weight.
//
// A code holds rows r, 16 + r and 32 + r of a tile of 48 at one k. With trits t in {-1, 0, 1} and
// v = t0 + 3 * t1 + 9 * t2, its low four bits are |v| (0..13) and bit 4 is the sign of v; 14 and 15 mean
// 0. So a table of 32 entries decodes it, or one of 16 and a sign. The result is t + 1.
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
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct TritTable {
    int8_t entry[3][64];
};
struct MagnitudeTable {
    uint8_t entry[3][64];
};

// entry[g][c]: trit g of code c, plus 1; twice, since a lookup may use six bits of a code.
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

// entry[g][c]: |v|, and without its lowest one and two digits |t1 + 3 * t2| and |t2|; four times.
constexpr MagnitudeTable make_magnitude_table() {
    MagnitudeTable t{};
    for (int code = 0; code < 64; ++code) {
        const int size = code % 16 > 13 ? 0 : code % 16;
        t.entry[0][code] = static_cast<uint8_t>(size);
        t.entry[1][code] = static_cast<uint8_t>((size + 1) / 3);
        t.entry[2][code] = static_cast<uint8_t>((size + 4) / 9);
    }
    return t;
}
constexpr MagnitudeTable kMagnitudes = make_magnitude_table();

struct t5_layout : IntegerDot {
    static constexpr bool kLongGroups = true;  // GGUF's ternary blocks
    static constexpr int kRowBlocks = 3, kStepK = 32, kStepBytes = 320;
    static constexpr bool kEvenOffset = true;

    static VI line(const uint8_t* step, int part, int i) {
        return i_load(step + 64 * i + 4 * kLanes * part);
    }
    // |v| of quad q in the low four bits of every byte, and but for quad 6 its sign in bit 4; the others are noise.
    static VI magnitude(const uint8_t* step, int part, int q) {
        const auto at = [&](int i) { return line(step, part, i); };
        const VI low3 = i_set1(0x07070707);
        switch (q) {
            case 5:
                return b_select(low3, i_shr<5>(at(0)), i_shr<2>(at(1)));
            case 6:
                return b_select(low3, i_shr<5>(at(2)), i_shr<2>(at(3)));
            case 7:
                return b_select(low3, i_shr<5>(at(4)), i_shr<3>(at(3)));
            default:
                return at(q);
        }
    }
};

// The form for few tokens where a byte is looked up in 16 entries: x takes the sign of v, and its factors, one
// lookup for each row block, are never negative. The sums of levels are differences of the three sums:
// t1 = (t1 + 3 * t2) - 3 * t2, t0 = v - 3 * (t1 + 3 * t2). These may wrap; a pair, 2 * 13 * 127, fits an int16.
struct t5_signs : t5_layout {
    static constexpr bool kSigns = true;
    static constexpr int kDecodedOffsetX2 = 2;
    static constexpr int kMaxByte = 1;  // of a level: it must fit at a run's end
    static constexpr int kRunBytes = 2560;
    static constexpr int kSums = 12;  // four tokens: other vectors are few

    // The sign of v in the highest bit of every byte; a byte is 0, which clears x, only where v is 0.
    static VI sign(const uint8_t* step, int part, int q) {
        const auto at = [&](int i) { return line(step, part, i); };
        const VI one = i_set1(0x01010101);
        switch (q) {
            case 5:
                return i_or(i_shl<1>(at(1)), one);
            case 6:
                return i_or(at(1), one);
            case 7:
                return i_or(at(3), one);
            default:
                return i_shl<3>(at(q));
        }
    }
    static void decode(const uint8_t* step, int part, int j, VI* w) {
        const VI index = magnitude(step, part, j / 4);
        STERNA_UNROLL(8)
        for (int g = 0; g < kRowBlocks; ++g) w[g] = b_lookup(kMagnitudes.entry[g], index);
        w[kRowBlocks] = sign(step, part, j / 4);
    }
    static void levels(VI* run) {
        STERNA_UNROLL(8)
        for (int g = 0; g + 1 < kRowBlocks; ++g) {
            const VI high = run[g + 1];
            run[g] = kPairSums16 ? w_sub(run[g], w_add(high, w_add(high, high)))
                                 : i_sub(run[g], i_add(high, i_add(high, high)));
        }
    }
};

struct t5 : t5_layout {
    static constexpr const char* kName = "t5";
    static constexpr int kMaxByte = 2;
    static constexpr bool kTwoBits = true;
    // A panel is expensive to decode; the vectors of 256 bits that few tokens need are less so.
    static constexpr int kDirectTokens = kLanes < 16 ? 4 : kFewTokens;
    using Direct = std::conditional_t<kLanes == 8, t5_signs, t5>;

    // The codes of one quad in the low five bits of every byte; the others are noise.
    static VI quad(const uint8_t* step, int part, int q) {
        const VI low = magnitude(step, part, q);
        return q == 6 ? b_select(i_set1(0x0F0F0F0F), low, i_shr<3>(line(step, part, 1))) : low;
    }
    static void decode(const uint8_t* step, int part, int j, VI* w) {
        const VI code = quad(step, part, j / 4);
        STERNA_UNROLL(8)
        for (int g = 0; g < kRowBlocks; ++g) w[g] = b_lookup_mirrored(kTrits.entry[g], code);
    }

    // Four codes of a quad from the three rows' trit + 1, a byte each: v + 13 is below 27, so bytes stay apart.
    static uint32_t encode(uint32_t c0, uint32_t c1, uint32_t c2) {
        const uint32_t ones = 0x01010101, above = c0 + 3 * c1 + 9 * c2;
        const uint32_t positive = ((above + (128 - 13) * ones) & (128 * ones)) / 128 * 255;
        const uint32_t v = (above | 128 * ones) - 13 * ones, sixteen_minus_v = 29 * ones - above;
        return (positive & v & 31 * ones) | (~positive & sixteen_minus_v);
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<t5>(a, [](uint8_t* out, const PackBlock<t5>& block, int64_t k) {
            constexpr int kRows = 16;  // loops over them are of vectors
            uint32_t q[8][kRows], lines[5][kRows];
            for (int i = 0; i < 8; ++i) {
                const uint32_t* codes = block.at(k + 4 * i);
                for (int r = 0; r < kRows; ++r)
                    q[i][r] = encode(codes[r], codes[kRows + r], codes[2 * kRows + r]);
            }
            const uint32_t low3 = 0x07070707, bit3 = 0x08080808, bit4 = 0x10101010;
            for (int r = 0; r < kRows; ++r) {
                lines[0][r] = q[0][r] | (q[5][r] & low3) << 5;
                lines[1][r] = q[1][r] | (q[5][r] & (bit3 | bit4)) << 2 | (q[6][r] & bit4) << 3;
                lines[2][r] = q[2][r] | (q[6][r] & low3) << 5;
                lines[3][r] = q[3][r] | (q[6][r] & bit3) << 2 | (q[7][r] & (bit3 | bit4)) << 3;
                lines[4][r] = q[4][r] | (q[7][r] & low3) << 5;
            }
            __builtin_memcpy(out, lines, sizeof(lines));
        });
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<t5>);
        uint8_t codes[3][64];
        VI w[kRowBlocks];
        for (int64_t k = 0; k < a.K; ++k) {
            if (k % 4 == 0)
                for (int part = 0; part < kParts; ++part) {
                    decode(step_of<t5>(a, k), part, static_cast<int>(k % kStepK), w);
                    for (int g = 0; g < kRowBlocks; ++g)
                        i_store(codes[g] + 4 * kLanes * part, w[g]);
                }
            a.out[k] = codes[in_tile / 16][4 * (in_tile % 16) + k % 4];
        }
    }
};

}  // namespace
