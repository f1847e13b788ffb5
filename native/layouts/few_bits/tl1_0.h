// tl1_0: two ternary weights in four bits, looked up in tables of bytes: sums are rounded.
//
// Index 3 * (t0 + 1) + (t1 + 1), 0..8, of weights t in {-1, 0, 1} (bitnet.cpp, table 5); 9..15 mean
// zeros. native/layouts/lookup_codes.h draws the block: 16 k of 64 rows in four lines.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct tl1_0 : LookupFormat {
    static constexpr const char* kName = "tl1_0";
    using Main = Lookup<LookupBlock<LookupCode<3, 2, false>>, false>;
    using Rest = Main;
    static constexpr int kFit = 64;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<tl1_0>(K).tile_bytes(); }
    static void pack(const sterna::PackArgs& a) { pack_lookup<tl1_0>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<tl1_0>(a); }
};

}  // namespace
