// iq4: sixteen levels -127..113 that are closer to each other around 0 (GGUF's IQ4_NL and IQ4_XS), in the lines of
// nibbles.h. What is decoded is the level plus 128, or where that is too great to be multiplied the level itself, a signed byte.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

constexpr int kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kIq4Zero = 128;  // the code of level 0

// Bytes of the levels plus an offset; the nibble of each code.
struct Iq4Table {
    uint8_t byte[16], nibble[256];
    constexpr explicit Iq4Table(int offset) : byte(), nibble() {
        for (int i = 0; i < 16; ++i) {
            byte[i] = static_cast<uint8_t>(kIq4Levels[i] + offset);
            nibble[kIq4Levels[i] + kIq4Zero] = static_cast<uint8_t>(i);
        }
    }
};

struct Iq4Codes {
    static constexpr Iq4Table kTable{kSignedBytes ? 0 : kIq4Zero};
    static VI decode(VI low) { return b_lookup(kTable.byte, low); }
    static VI decode_high(VI v) { return b_lookup_high(kTable.byte, v); }
    static uint32_t encode(uint32_t codes) {
        uint32_t nibbles = 0;
        for (int shift = 0; shift < 32; shift += 8)
            nibbles |= uint32_t{kTable.nibble[codes >> shift & 255]} << shift;
        return nibbles;
    }
    static int value(int nibble) { return kIq4Levels[nibble] + kIq4Zero; }
};

struct iq4 : TableNibbles<Iq4Codes> {
    static constexpr const char* kName = "iq4";
    static constexpr bool kRowScales = false;
    static constexpr int kMaxByte = 255;
    static constexpr int kDecodedOffsetX2 = kSignedBytes ? 2 * kIq4Zero : 0;
    static constexpr int kSuperGroup = 32, kSuperOffset = kIq4Zero, kSuperBits = 8;
    using Panel = std::conditional_t<kSignedBytes, PanelLevels<>, AnyCodes>;

    static VI dot(VI acc, VI w, VX x) {
        return kDecodedOffsetX2 ? dot_signed(acc, w, x) : ::dot(acc, w, x);
    }
    static void pack(const sterna::PackArgs& a) { pack_nibbles<iq4>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<iq4>(a); }
};

}  // namespace
