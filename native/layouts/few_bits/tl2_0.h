// tl2_0: three ternary weights in a sign and four bits, 1.67 bits a weight, looked up in tables of
// bytes: sums are rounded.
//
// With v = 9 * t0 + 3 * t1 + t2 the index is |v|, 0..13, and the sign that of v (bitnet.cpp, table 6);
// 14 and 15 mean zeros. The first K / 48 * 48 columns are in blocks of 24 k of 64 rows, five lines;
// those that remain, 16 or 32, in blocks of tl1_0. native/layouts/lookup_codes.h draws both.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct tl2_0 : LookupFormat {
    static constexpr const char* kName = "tl2_0";
    using Main = Lookup<LookupBlock<LookupCode<3, 3, true>>, false>;
    using Rest = Lookup<LookupBlock<LookupCode<3, 2, false>>, false>;
    static constexpr int kFit = 48;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<tl2_0>(K).tile_bytes(); }
    static void pack(const sterna::PackArgs& a) { pack_lookup<tl2_0>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<tl2_0>(a); }
};

}  // namespace
