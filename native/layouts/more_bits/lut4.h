// lut4: codes of sixteen levels that the weight brings (LevelTable), from -128 to 127, in the lines of nibbles.h. What is
// decoded is the level plus 128, or where that is too great to be multiplied the level itself, a signed byte.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "layouts/level_bytes.h"
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct lut4 : Nibbles<FourBits> {
    static constexpr const char* kName = "lut4";
    static constexpr int kLevels = 16, kLevelOffset = 128, kMaxByte = 255;
    static constexpr int kDecodedOffsetX2 = kSignedBytes ? 2 * kLevelOffset : 0;
    static constexpr int kSuperGroup = 32, kSuperOffset = kLevelOffset, kSuperBits = 8;
    // Products are too large for a run of 32 k in int16.
    static constexpr bool kHasCodes = false, kRuns = false;
    static constexpr int kDirectTokens = kFewTokens;
    using Levels = LevelBytes<kSignedBytes ? 0 : kLevelOffset>;
    using Panel = std::conditional_t<kSignedBytes, PanelLevels<>, AnyCodes>;

    static VI dot(VI acc, VI w, VX x) {
        return kDecodedOffsetX2 ? dot_signed(acc, w, x) : ::dot(acc, w, x);
    }
    static void decode(const Levels& levels, const uint8_t* step, int part, int, VI* w) {
        STERNA_UNROLL(2)
        for (int i = 0; i < 2; ++i) {
            const VI v = i_load(step + 64 * i + 4 * kLanes * part);
            w[2 * i] = b_lookup(levels.byte, v);
            w[2 * i + 1] = b_lookup_high(levels.byte, v);
        }
    }
    static void pack(const sterna::PackArgs& a) { pack_nibbles<lut4>(a); }
    static void row(const sterna::RowArgs& a) {
        row_of_nibbles<lut4>(a);
        look_levels_up(a, kLevelOffset);
    }
};

}  // namespace
