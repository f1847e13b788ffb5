// elut5: two weights of five levels in a sign and four bits, 2.5 bits a weight, looked up in exact
// tables.
//
// With levels l in -2..2 and v = 5 * l0 + l1 the index is |v|, 0..12, and the sign that of v; 13..15
// mean zeros. native/layouts/lookup_codes.h draws the block: 16 k of 64 rows in five lines.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct elut5 : LookupFormat {
    static constexpr const char* kName = "elut5";
    using Main = Lookup<LookupBlock<LookupCode<5, 2, true>>, true>;
    using Rest = Main;
    static constexpr int kFit = 64;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<elut5>(K).tile_bytes(); }
    static int64_t bytes_before(int64_t K, int64_t k) {
        return MainAndRest<elut5>(K).bytes_before(k);
    }
    static void decode_tile(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
        decode_lookup<elut5>(tile, K, k0, kc, out);
    }
    static void pack(const sterna::PackArgs& a) { pack_lookup<elut5>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<elut5>(a); }
};

}  // namespace
