// lut2: codes of four levels that the weight brings (LevelTable), from -8 to 7, in the lines of b2.h. What is decoded is
// the level plus 8: so sums of a run of 32 k fit int16, as those of b4. A field is looked up where it is, in the lower two
// bits of a nibble or in the upper two: the table has the level of code c at c and at 4 c.
#pragma once
#include "layouts/few_bits/b2.h"
#include "layouts/level_bytes.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int kTwoBitOffset = 8;

struct TwoBitLevels : LevelBytes<kTwoBitOffset> {
    explicit TwoBitLevels(const sterna::LevelTable& table) : LevelBytes(table) {
        for (int c = 1; c < 4; ++c) byte[4 * c] = byte[c];
    }
};

struct lut2 : b2 {
    static constexpr const char* kName = "lut2";
    static constexpr int kLevels = 4, kLevelOffset = kTwoBitOffset;
    static constexpr int kMaxByte = 2 * kLevelOffset - 1, kMaxCode = kMaxByte, kSuperGroup = 0;
    static constexpr bool kEvenOffset = true;
    static constexpr bool kHasCodes = false, kLongGroups = false, kTwoBits = false, kMinima = false;
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    using Levels = TwoBitLevels;

    static void decode(const Levels& levels, const uint8_t* step, int part, int, VI* w) {
        const VI v = i_load(step + 4 * kLanes * part), high = i_shr<4>(v);
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f)
            w[f] = b_lookup_at(levels.byte,
                               i_and(f < 2 ? v : high, i_set1(f % 2 ? 0x0C0C0C0C : 0x03030303)));
    }
    static VI settle(VI acc, int) { return acc; }
    static void row(const sterna::RowArgs& a) {
        b2::row(a);
        look_levels_up(a, kLevelOffset);
    }
};

}  // namespace
