// b8x16: b8 for super-blocks whose groups have 16 k, and for nothing else: of ik_llama.cpp's IQ5_K, IQ5_KS and IQ6_K.
#pragma once
#include "layouts/more_bits/b8.h"

namespace {

// Tiles are packed and read back by b8's own code. A few tokens are computed one after the other: loops for two to four at
// a time would take a third of the bytes of all. Where pair sums are int16 and there are no PanelWords, a panel would take
// half of them, and there is none. Sums of bytes times whole numbers of eight bits may be greater than a float of a matrix
// unit holds, so that vectors compute them (matrix/layers.h).
struct b8x16 : b8 {
    static constexpr const char* kName = "b8x16";
    static constexpr bool kRowScales = false, kGroupScales = false, kOnMatrix = false;
    static constexpr bool kPanels = kHasWords<VI> || !kPairSums16;
    static constexpr int kSuperGroup = 16, kSuperOffset = 128, kSuperBits = 8;
    static constexpr int kSums = kRowBlocks, kDirectTokens = kHasWords<VI> ? 8 : 3;
};

}  // namespace
