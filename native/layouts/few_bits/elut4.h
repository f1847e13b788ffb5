// elut4: two weights of four levels in four bits, looked up in exact tables.
//
// Index 4 * c0 + c1 of codes 0..3, levels 2 * c - 3. native/layouts/lookup_codes.h draws the block: 16 k of 64
// rows in four lines.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct elut4 : LookupFormat {
    static constexpr const char* kName = "elut4";
    using Main = Lookup<LookupBlock<LookupCode<4, 2, false>>, true>;
    using Rest = Main;
    static constexpr int kFit = 64;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<elut4>(K).tile_bytes(); }
    static int64_t bytes_before(int64_t K, int64_t k) {
        return MainAndRest<elut4>(K).bytes_before(k);
    }
    static void decode_tile(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
        decode_lookup<elut4>(tile, K, k0, kc, out);
    }
    static void pack(const sterna::PackArgs& a) { pack_lookup<elut4>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<elut4>(a); }
};

}  // namespace
