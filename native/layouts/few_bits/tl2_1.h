// tl2_1: the codes of tl2_0, looked up in tables of two bytes an entry: sums are exact.
#pragma once
#include "layouts/lookup_codes.h"
#include "linear/lookup.h"
#include "units/kernel_table.h"

namespace {

struct tl2_1 : LookupFormat {
    static constexpr const char* kName = "tl2_1";
    using Main = Lookup<LookupBlock<LookupCode<3, 3, true>>, true>;
    using Rest = Lookup<LookupBlock<LookupCode<3, 2, false>>, true>;
    static constexpr int kFit = 48;
    static constexpr int64_t kBlockUnit = 192;  // k: a multiple of 64 and of 48

    static int64_t tile_bytes(int64_t K) { return MainAndRest<tl2_1>(K).tile_bytes(); }
    static int64_t bytes_before(int64_t K, int64_t k) {
        return MainAndRest<tl2_1>(K).bytes_before(k);
    }
    static void decode_tile(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
        decode_lookup<tl2_1>(tile, K, k0, kc, out);
    }
    static void pack(const sterna::PackArgs& a) { pack_lookup<tl2_1>(a); }
    static void row(const sterna::RowArgs& a) { row_lookup<tl2_1>(a); }
};

}  // namespace
