// pot4: powers of two, sign * 2^e with e = 0..7 (E3:P2 of Golzar et al., Table 1), in the lines of
// nibbles.h: sign << 3 | e. What is decoded is that plus 128, a byte each, but for +128, whose 256 is none:
// it decodes to 255, and `dot` adds what is missing.
#pragma once
#include "nibbles.h"

namespace {

struct Pot4Codes {
    static constexpr uint8_t kTable[16] = {129, 130, 132, 136, 144, 160, 192, 255,
                                           127, 126, 124, 120, 112, 96,  64,  0};
    static VI decode(VI low) { return b_lookup(kTable, low); }
    static uint32_t encode(uint32_t nibble) { return nibble & 15; }
    static int value(int nibble) { return nibble == 7 ? 256 : kTable[nibble]; }
};

struct pot4 : TableNibbles<Pot4Codes> {
    static constexpr const char* kName = "pot4";
    static constexpr bool kTop = true;
    static VI dot(VI acc, VI w, VI x) { return ::dot(dot_wide(acc, w, x), b_top(w), x); }
    static VI dot_on(VI run, VI w, VI x) { return dot(run, w, x); }

    static void linear(const sterna::LinearArgs& a) { linear_layer<pot4>(a); }
    static void pack(const sterna::PackArgs& a) { pack_nibbles<pot4>(a); }
    static void row(const sterna::RowArgs& a) { row_of_nibbles<pot4>(a); }
};

}  // namespace
