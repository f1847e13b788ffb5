// lut4x16: lut4 for super-blocks whose groups have 16 k, and for nothing else: of ik_llama.cpp's IQ2_K, IQ3_K and IQ4_K.
#pragma once
#include "layouts/more_bits/lut4.h"

namespace {

// Tiles are packed and read back by lut4's own code. A few tokens are computed one after the other: loops for two to four
// at a time would take a third of the bytes of all. Where pair sums are int16, a panel would take half of those, and other
// layouts have none like it; elsewhere that of b6 serves.
struct lut4x16 : lut4 {
    static constexpr const char* kName = "lut4x16";
    static constexpr bool kRowScales = false, kGroupScales = false, kPanels = !kPairSums16;
    static constexpr int kSuperGroup = 16;
    static constexpr int kSums = kRowBlocks, kDirectTokens = 3;
};

}  // namespace
