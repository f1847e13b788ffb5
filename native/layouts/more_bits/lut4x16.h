// lut4x16: lut4 for super-blocks whose groups have 16 k, and for nothing else: of ik_llama.cpp's IQ2_K, IQ3_K and IQ4_K.
#pragma once
#include <type_traits>

#include "layouts/more_bits/lut4.h"

namespace {

// Tiles are packed and read back by lut4's own code. A few tokens are computed one after the other: loops for two to four
// at a time would take a third of the bytes of all. A panel is one that another layout has too: of b8x16 where there are
// PanelWords, of b6 where pair sums are int32. Elsewhere it would take half of the bytes, and there is none.
struct lut4x16 : lut4 {
    static constexpr const char* kName = "lut4x16";
    static constexpr bool kRowScales = false, kGroupScales = false, kHasCodes = kHasWords<VI>;
    static constexpr bool kPanels = kHasCodes || !kPairSums16;
    static constexpr int kSuperGroup = 16;
    static constexpr int kSums = kRowBlocks, kDirectTokens = kHasCodes ? 8 : 3;
    using Panel = std::conditional_t<kHasCodes, PanelWords, lut4::Panel>;

    static void codes(const Levels& levels, const uint8_t* step, int part, int j, VI* w) {
        decode(levels, step, part, j, w);
        const VI offset = i_set1(static_cast<int32_t>(0x80808080));
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f) w[f] = PanelWords::in_order(b_add(w[f], offset));
    }
};

}  // namespace
