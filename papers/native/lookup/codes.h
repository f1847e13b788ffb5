// Codes of the lookup-table formats: g consecutive weights of a row in four bits, or in four and a sign
// (bitnet.cpp, arXiv 2502.11880, tables 3, 5 and 6), and the blocks of a tile that hold them.
//
// A weight is one of C levels, a digit 0..C-1. A code's number is its digits in base C, the first
// weight's the most significant. Plain: the number is the index, C^g <= 16. Mirrored, for odd C: the
// number less that of all zero levels is a signed value; the index is its size and the sign is apart, so
// that (C^g + 1) / 2 <= 16. An index that no number has means zero levels: any bytes are codes.
#pragma once
#include "layouts/packing.h"

namespace {

template <int kLevels_, int kWeights_, bool kMirrored_>
struct LookupCode {
    static constexpr int kLevels = kLevels_, kWeights = kWeights_;  // C and g
    static constexpr bool kMirrored = kMirrored_;
    static_assert(kWeights <= 4 && (kLevels % 2 == 1 || !kMirrored));

    // Odd C: levels -(C-1)/2..(C-1)/2, one apart. Even C: -(C-1)..C-1, two apart.
    static constexpr int kSpacing = kLevels % 2 ? 1 : 2;
    static constexpr int kMaxLevel = kSpacing * (kLevels - 1) / 2;
    static constexpr int kMaxSum = kMaxLevel * kWeights * 127;  // largest sum of a code, |x| <= 127
    static_assert(2 * 127 * kMaxLevel <= 32767);  // dot() of levels and x

    static constexpr int power(int n) { return n ? kLevels * power(n - 1) : 1; }
    static constexpr int kNumbers = power(kWeights), kZero = kNumbers / 2;
    static constexpr int kEntries = kMirrored ? kZero + 1 : kNumbers;
    static_assert(kEntries <= 16);

    // Digit of weight j in a number.
    static constexpr int digit_of(int number, int j) {
        return number / power(kWeights - 1 - j) % kLevels;
    }
    static constexpr int digit(int index, int sign, int j) {
        if (index >= kEntries) return kLevels / 2;
        return digit_of(!kMirrored ? index : kZero + (sign ? -index : index), j);
    }
    // The weights of every index, by the sign of their levels: level = plus - minus.
    struct Entries {
        alignas(64) uint8_t plus[16][4], minus[16][4];
    };
    static constexpr Entries make_entries() {
        Entries e{};
        for (int i = 0; i < 16; ++i)
            for (int j = 0; j < kWeights; ++j) {
                const int level = kSpacing * digit(i, 0, j) - kMaxLevel;
                e.plus[i][j] = static_cast<uint8_t>(level > 0 ? level : 0);
                e.minus[i][j] = static_cast<uint8_t>(level < 0 ? -level : 0);
            }
        return e;
    }
    static constexpr Entries kTable = make_entries();

    // The digit of weight j of every index; mirrored, its level for a positive sign, modulo 256.
    struct Digits {
        uint8_t of[kWeights][16];
    };
    static constexpr Digits make_digits() {
        Digits d{};
        for (int j = 0; j < kWeights; ++j)
            for (int i = 0; i < 16; ++i)
                d.of[j][i] = static_cast<uint8_t>(digit(i, 0, j) - (kMirrored ? kLevels / 2 : 0));
        return d;
    }
    static constexpr Digits kDigits = make_digits();
};

// A block is eight codes of each of 64 rows: four lines of nibbles and, mirrored, a line of signs.
//   byte 4*r + j, r = 0..15, j = 0..3, is row 16*j + r:
//              bits 7..4        bits 3..0
//     line i   code 2*i + 1     code 2*i      i = 0..3
//     signs    bit i = sign of code i
// One plane: code i is that of the i-th g weights. Two: codes 2*i and 2*i + 1 are the low and the high
// bits of the same g weights, each a digit of its own.
template <class Code_, int kPlanes_ = 1>
struct LookupBlock {
    using Code = Code_;
    static constexpr int kPlanes = kPlanes_, kTables = 8 / kPlanes;
    static constexpr int kK = kTables * Code::kWeights;
    static constexpr int kBytes = Code::kMirrored ? 320 : 256;
    static_assert(kPlanes == 1 || Code::kLevels == 2);
    // Codes are 0..kHighest: t = 2 * sum(code * x) - zero_x2 * sum(x).
    static constexpr int kHighest = kPlanes == 2 ? 3 : Code::kLevels - 1;

    static constexpr int lane(int row) { return 4 * (row % 16) + row / 16; }  // the byte of a line

    static void pack(const TileSource<64>& source, int64_t k, uint8_t* out) {
        __builtin_memset(out, 0, kBytes);
        for (int r = 0; r < 64; ++r)
            for (int i = 0; i < 8; ++i) {
                uint32_t codes = source.codes(r, k + i / kPlanes * Code::kWeights);
                if (kPlanes == 2) codes = (codes >> (i % 2)) & 0x01010101u;
                int number = 0;
                for (int j = 0; j < Code::kWeights; ++j, codes >>= 8)
                    number = number * Code::kLevels + static_cast<int>(codes & 255);
                const int value = Code::kMirrored ? number - Code::kZero : number;
                const int index = (value < 0 ? -value : value) & 15;
                uint8_t* at = out + lane(r);
                at[64 * (i / 2)] |= static_cast<uint8_t>(index << (4 * (i % 2)));
                if (value < 0) at[256] |= static_cast<uint8_t>(1 << i);
            }
    }
    // The code of a row at k, which counts from the block's first.
    static int code(const uint8_t* block, int row, int k) {
        const uint8_t* at = block + lane(row);
        const auto digit = [&](int i) {
            const int index = (at[64 * (i / 2)] >> (4 * (i % 2))) & 15;
            const int sign = Code::kMirrored ? (at[256] >> i) & 1 : 0;
            return Code::digit(index, sign, k % Code::kWeights);
        };
        const int table = k / Code::kWeights;
        return kPlanes == 1 ? digit(table) : digit(2 * table) + 2 * digit(2 * table + 1);
    }
};

}  // namespace
