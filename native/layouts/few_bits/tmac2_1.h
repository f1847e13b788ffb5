// tmac2_1: the codes of tmac2_0, looked up in tables of two bytes an entry: sums are exact.
#pragma once
#include "layouts/few_bits/tmac2_0.h"
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct tmac2_1 : LookupFormat {
    static constexpr const char* kName = "tmac2_1";
    using Main = Lookup<LookupBlock<LookupCode<2, 4, false>, 2>, true>;
    using Rest = Main;
    static constexpr int kFit = 64;

    static int64_t tile_bytes(int64_t K) { return MainAndRest<tmac2_1>(K).tile_bytes(); }
    static bool valid(const uint8_t* codes, int64_t bytes, int max_code) {
        return tmac2_0::valid(codes, bytes, max_code);
    }
    static int64_t bytes_before(int64_t K, int64_t k) {
        return MainAndRest<tmac2_1>(K).bytes_before(k);
    }
    static void decode_tile(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
        decode_lookup<tmac2_1>(tile, K, k0, kc, out);
    }
    static void pack(const sterna::PackArgs& a) { pack_lookup<tmac2_1>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<tmac2_1>(a); }
};

}  // namespace
