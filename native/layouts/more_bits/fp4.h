// fp4: E2M1 floats of the OCP Microscaling formats (MXFP4), in the lines of nibbles.h: sign, two bits of exponent, one
// of mantissa. Twice their values are the integers 0, 1, 2, 3, 4, 6, 8, 12 and the same below zero; decode() adds 12.
#pragma once
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

constexpr uint8_t kFp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// The first nibble of each value: +0 rather than -0; 15 for values that do not exist.
struct Fp4Nibbles {
    uint8_t of[256];
    constexpr Fp4Nibbles() : of() {
        for (auto& nibble : of) nibble = 15;
        for (int i = 15; i >= 0; --i) of[kFp4Values[i]] = static_cast<uint8_t>(i);
    }
};

struct Fp4Codes {
    static constexpr Fp4Nibbles kNibbles{};
    static VI decode(VI low) { return b_lookup(kFp4Values, low); }
    static VI decode_high(VI v) { return b_lookup_high(kFp4Values, v); }
    static uint32_t encode(uint32_t values) {
        uint32_t nibbles = 0;
        for (int shift = 0; shift < 32; shift += 8)
            nibbles |= uint32_t{kNibbles.of[values >> shift & 255]} << shift;
        return nibbles;
    }
    static int value(int nibble) { return kFp4Values[nibble]; }
};

// A run of eight would reach 8 * 24 * 127 * 2 = 48,768, but sums that start at the offset end with those of levels.
struct fp4 : TableNibbles<Fp4Codes> {
    static constexpr const char* kName = "fp4";
    static constexpr int kMaxByte = 24, kMostLevel = 12;
    static constexpr bool kMicroBlocks = true;
    static constexpr int kDirectTokens = kFewestOfPanel - 1;  // as sums of pairs fit their groups
    static void pack(const sterna::PackArgs& a) { pack_nibbles<fp4>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<fp4>(a); }
};

}  // namespace
