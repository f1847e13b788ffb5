// tmac2_0: two-bit codes by bit planes (T-MAC), looked up in tables of bytes: sums are rounded.
//
// The nibble of a plane holds that bit of four consecutive codes, the first in bit 3; its table entry is
// the sum of four x, each with the sign + where its bit is set. native/layouts/lookup_codes.h draws the block:
// 16 k of 64 rows in four lines, the low bits' plane in bits 3..0 and the high bits' in 7..4.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct tmac2_0 : LookupFormat {
    static constexpr const char* kName = "tmac2_0";
    using Main = Lookup<LookupBlock<LookupCode<2, 4, false>, 2>, false>;
    using Rest = Main;
    static constexpr int kFit = 64;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<tmac2_0>(K).tile_bytes(); }
    static bool valid(const uint8_t* codes, int64_t bytes, int max_code) {
        const AboveTwoBits above(max_code);
        uint64_t found = 0;
        for (int64_t i = 0; !above.none && i < bytes; ++i) found |= above(codes[i] >> 4, codes[i]);
        return (found & 15) == 0;
    }
    static void pack(const sterna::PackArgs& a) { pack_lookup<tmac2_0>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<tmac2_0>(a); }
};

}  // namespace
