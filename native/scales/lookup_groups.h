// The sums of long groups by lookups in tables (linear/lookup.h), in place of linear.h's DirectSums.
#pragma once
#include "linear/linear.h"
#include "linear/lookup.h"
#include "scales/plain_groups.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

template <class F>
struct LookupSums {
    static constexpr int G = F::kRowBlocks;
    using L = typename F::Main;
    using Terms = TokenTerms<sterna::kLongGroupK, sterna::kLongGroupK, sterna::kLongGroupK>;
    VI sums[kMostStreams][kFewTokens][kParts][G];

    // Scratch: the terms of tokens, then their tables.
    static constexpr int64_t table_bytes(int64_t K) { return K / L::kK * L::kTableBytes; }
    static int64_t scratch_bytes(int64_t K, int n) {
        const int tokens = n < kFewTokens ? n : kFewTokens;
        return Terms::bytes(K, n) + tokens * table_bytes(K);
    }
    static uint8_t* tables_of(const sterna::LinearArgs& a, int n) {
        return Terms::behind(a) + n * table_bytes(a.K);
    }
    static void begin(const sterna::LinearArgs& a) {
        if (a.scratch_ready) return;
        for (int n = 0; n < a.n; ++n) {
            uint8_t* out = tables_of(a, n);
            for (int64_t k = 0; k < a.K; k += 64, out += 64 / L::kK * L::kTableBytes) {
                int8_t x[64];
                L::arrange(x, a.xq + n * a.ldx + k);
                make_tables<L>(x, 64 / L::kK, 1.0f, out);
            }
        }
    }

    // Sums `count` tiles, `tile_stride` apart, over k in [k0, k1).
    void run(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count, int64_t k0,
             int64_t k1) {
        const int64_t block = k0 / L::kK, blocks = (k1 - k0) / L::kK;
        for (int s = 0; s < count; ++s) {
            const uint8_t* codes =
                a.codes + (tile + s * tile_stride) * a.tile_bytes + block * L::kBytes;
            for (int n = 0; n < a.n; ++n) {
                const uint8_t* tables = tables_of(a, n) + block * L::kTableBytes;
                for (int p = 0; p < kParts; ++p) {
                    ByteSums bytes[L::kSums];
                    for (auto& sum : bytes) sum = {i_set1(0), i_set1(0)};
                    add_blocks<L>(codes, tables, blocks, a.reading.prefetch_bytes, p, bytes);
                    VI(&total)[G] = sums[s][n][p];
                    for (VI& sum : total) sum = i_set1(0);
                    add_split<L>(bytes, blocks, total);
                }
            }
        }
    }
    // The sums of a token and one part, of stream s.
    const VI* part(int s, int n, int, int part) const { return sums[s][n][part]; }
};

}  // namespace
