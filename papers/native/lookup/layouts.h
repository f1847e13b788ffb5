// The eight layouts of lookup tables. "_0" has tables of bytes, whose sums are rounded, and "_1" of two bytes an entry:
// those sums are exact. codes.h draws the blocks.
#pragma once
#include "layouts/layout.h"
#include "linear/lookup.h"
#include "lookup/codes.h"
#include "lookup/layer.h"
#include "units/kernel_table.h"

namespace {

template <class Main_, class Rest_ = Main_, int kFit_ = 64>
struct LookupLayout : IntegerDot {
    using Main = Main_;
    using Rest = Rest_;
    static constexpr int kFit =
        kFit_;  // k that blocks of Main fill; those of Rest have what remains
    static constexpr bool kLookup = true;
    static constexpr int kRowBlocks = 4, kStepK = 64;
    static constexpr int kMaxByte = 4;  // greatest code in a panel: five levels

    // The whole tile: k from 0 to K.
    static void decode_tile(const uint8_t* tile, int64_t, int64_t K, uint8_t* out) {
        decode_lookup<LookupLayout>(tile, K, out);
    }
};

template <int kLevels, int kWeights, bool kMirrored, bool kExact, int kPlanes = 1>
using Codes = Lookup<LookupBlock<LookupCode<kLevels, kWeights, kMirrored>, kPlanes>, kExact>;

// Two ternary weights in four bits: index 3 * (t0 + 1) + (t1 + 1), 0..8, of weights t in {-1, 0, 1} (bitnet.cpp, table
// 5); 9..15 mean zeros.
template <bool kExact>
using tl1 = LookupLayout<Codes<3, 2, false, kExact>>;
// Three ternary weights in a sign and four bits, 1.67 bits a weight. With v = 9 * t0 + 3 * t1 + t2 the index is |v|,
// 0..13, and the sign that of v (bitnet.cpp, table 6); 14 and 15 mean zeros. The first K / 48 * 48 columns are in blocks
// of 24 k of 64 rows; those that remain, 16 or 32, in blocks of tl1.
template <bool kExact>
using tl2 = LookupLayout<Codes<3, 3, true, kExact>, Codes<3, 2, false, kExact>, 48>;
// Two-bit codes by bit planes (T-MAC). The nibble of a plane holds that bit of four consecutive codes, the first in bit
// 3; its table entry is the sum of four x, each with the sign + where its bit is set.
template <bool kExact>
using tmac2 = LookupLayout<Codes<2, 4, false, kExact, 2>>;
// Two weights of four levels in four bits: index 4 * c0 + c1 of codes 0..3, levels 2 * c - 3.
using elut4 = LookupLayout<Codes<4, 2, false, true>>;
// Two weights of five levels in a sign and four bits, 2.5 bits a weight. With levels l in -2..2 and v = 5 * l0 + l1 the
// index is |v|, 0..12, and the sign that of v; 13..15 mean zeros.
using elut5 = LookupLayout<Codes<5, 2, true, true>>;

// Whether no code of two planes is above max_code; all other bytes are codes.
inline bool planes_valid(const uint8_t* codes, int64_t bytes, int max_code) {
    const AboveTwoBits above(max_code);
    uint64_t found = 0;
    for (int64_t i = 0; !above.none && i < bytes; ++i) found |= above(codes[i] >> 4, codes[i]);
    return (found & 15) == 0;
}

}  // namespace
