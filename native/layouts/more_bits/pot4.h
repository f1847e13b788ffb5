// pot4: powers of two, sign * 2^e with e = 0..7 (E3:P2 of Golzar et al., Table 1), in the lines of
// nibbles.h: sign << 3 | e. Levels reach 128, which is no signed byte, and 128 + 128 no unsigned one: there are
// two ways around it.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "layouts/nibbles.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct Pot4Codes {
    static constexpr uint8_t kTable[16] = {129, 130, 132, 136, 144, 160, 192, 255,
                                           127, 126, 124, 120, 112, 96,  64,  0};
    static constexpr int kOffset = kSignedDot ? 128 : 0;
    static constexpr NibbleTable kBytes{kTable, kOffset};
    static VI decode(VI low) { return b_lookup(kBytes.byte, low); }
    static VI decode_high(VI v) { return b_lookup_high(kBytes.byte, v); }
    static uint32_t encode(uint32_t nibbles) { return nibbles & 0x0f0f0f0fu; }
    static int value(int nibble) { return nibble == 7 ? 256 : kTable[nibble]; }
};

// Decoded is the level plus 128, a byte each, but for +128: it decodes to 255, and `dot` adds what is missing. Where
// dot() takes signed bytes all of it is 128 less.
struct OffsetPot4 : TableNibbles<Pot4Codes> {
    static constexpr int kMaxByte = 255;
    static constexpr bool kHasLevel128 = true;
    static constexpr int kDecodedOffsetX2 = 2 * Pot4Codes::kOffset;
    static VI dot(VI acc, VI w, VX x) { return ::dot(::dot(acc, w, x), b_top(w), x); }
};

// Pairs of products in int16 hold 2 * 128 * 127, but not twice 255: |level| times x with the level's sign. Decoded
// is the nibble.
struct Pot4Nibbles : Pot4Codes {
    static VI decode(VI low) { return i_and(low, i_set1(0x0F0F0F0F)); }
    static VI decode_high(VI v) { return b_shr<4>(v); }
};
struct SignedPot4 : TableNibbles<Pot4Nibbles> {
    static constexpr int kMaxByte = 128;
    static constexpr int kDecodedOffsetX2 = 256;
    static VI dot(VI acc, VI w, VX x) {
        return ::dot(acc, b_lookup(kMagnitude, w), b_signed(x, b_lookup(kSign, w)));
    }

  private:
    static constexpr uint8_t kMagnitude[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                               1, 2, 4, 8, 16, 32, 64, 128};
    static constexpr uint8_t kSign[16] = {1,   1,   1,   1,   1,   1,   1,   1,
                                          255, 255, 255, 255, 255, 255, 255, 255};
};

struct pot4 : std::conditional_t<kPairSums16, SignedPot4, OffsetPot4> {
    static constexpr const char* kName = "pot4";
    using Panel = std::conditional_t<kPairSums16, SignedPot4, OffsetPot4>;
    static void pack(const sterna::PackArgs& a) { pack_nibbles<pot4>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<pot4>(a); }
};

}  // namespace
