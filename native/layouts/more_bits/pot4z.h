// pot4z: powers of two and zero, in the lines of nibbles.h: sign << 3 | m means 0 if m is 0, else for sign * 2^(m - 1),
// so that levels reach 64. What is decoded is that plus 64, or where dot() takes signed bytes the level itself.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct Pot4zCodes {
    static constexpr uint8_t kTable[16] = {64, 65, 66, 68, 72, 80, 96, 128,
                                           64, 63, 62, 60, 56, 48, 32, 0};
    static constexpr int kOffset = kSignedDot ? 64 : 0;
    static constexpr NibbleTable kBytes{kTable, kOffset};
    static VI decode(VI low) { return b_lookup(kBytes.byte, low); }
    static VI decode_high(VI v) { return b_lookup_high(kBytes.byte, v); }
    static uint32_t encode(uint32_t nibbles) { return nibbles & 0x0f0f0f0fu; }
    static int value(int nibble) { return kTable[nibble]; }
};

struct pot4z : TableNibbles<Pot4zCodes> {
    static constexpr const char* kName = "pot4z";
    static constexpr int kDecodedOffsetX2 = 2 * Pot4zCodes::kOffset;
    static constexpr int kMaxByte = 128 - Pot4zCodes::kOffset;
    using Panel = std::conditional_t<kSignedDot, PanelLevels<kDecodedOffsetX2>, CodesUpTo<128>>;
    static void pack(const sterna::PackArgs& a) { pack_nibbles<pot4z>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<pot4z>(a); }
};

}  // namespace
