// Layers of the lookup-table formats (bitnet.cpp, arXiv 2502.11880; T-MAC, arXiv 2407.00088), whose sums are those of
// native/linear/lookup.h. docs/measurements/lookup-tables.md has the picture.
#pragma once
#include "layouts/packing.h"
#include "linear/linear.h"
#include "linear/lookup.h"
#include "linear/panel.h"
#include "lookup/codes.h"
#include "lookup/panel.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// int32 sums of tiles side by side: of row block j, part p, in native vectors.
struct TileSums {
    VI v[kMostStreams][kParts][4];
};

// Blocks of one turn, before the next tile has its turn (linear.h says why tiles take turns).
constexpr int64_t kTurnBlocks = 2;

// Adds `blocks` blocks of `count` tiles, which lie `stride` bytes apart.
template <class L>
inline void add_section(const uint8_t* codes, int64_t stride, int count, int64_t ahead,
                        const uint8_t* tables, int64_t blocks, TileSums& total) {
    for (int64_t begin = 0; begin < blocks; begin += L::kSpan) {
        const int64_t end = begin + L::kSpan < blocks ? begin + L::kSpan : blocks;
        ByteSums sums[kMostStreams][kParts][L::kSums];
        for (int s = 0; s < count; ++s)
            for (auto& part : sums[s])
                for (auto& sum : part) sum = {i_set1(0), i_set1(0)};
        for (int64_t b = begin; b < end; b += kTurnBlocks)
            for (int s = 0; s < count; ++s)
                for (int p = 0; p < kParts; ++p)
                    add_blocks<L>(codes + s * stride + b * L::kBytes, tables + b * L::kTableBytes,
                                  end - b < kTurnBlocks ? end - b : kTurnBlocks, ahead, p,
                                  sums[s][p]);
        for (int s = 0; s < count; ++s)
            for (int p = 0; p < kParts; ++p) add_split<L>(sums[s][p], end - begin, total.v[s][p]);
    }
}

// ------------------------------------------------------------------------------------- tables

// A token's tables and, where they are rounded, what a unit of them is worth.
struct Tables {
    uint8_t* bytes;
    float unit;
};

// The largest sum of a code's weights times x, in size.
template <class L>
inline int largest_sum(const int8_t* x, int64_t blocks) {
    int most = 0;
    for (int64_t t = 0; t < blocks * L::kTables; ++t, x += L::Code::kWeights) {
        int sum = 0;
        for (int j = 0; j < L::Code::kWeights; ++j) sum += x[j] < 0 ? -x[j] : x[j];
        most = sum > most ? sum : most;
    }
    return L::Code::kMaxLevel * most;
}

// ------------------------------------------------------------------------------------- the layer

// A format F: K splits into blocks of F::Main and, where these do not fit, of F::Rest (the paper's block fitting: ThreeK
// and TwoK).
template <class F>
struct MainAndRest {
    using Main = typename F::Main;
    using Rest = typename F::Rest;
    int64_t main, rest;  // blocks

    // K is a multiple of 64, and `Rest` takes whatever multiple of it remains.
    explicit MainAndRest(int64_t K)
        : main(K / F::kFit * (F::kFit / Main::kK)), rest(K % F::kFit / Rest::kK) {}
    static_assert(F::kFit % Main::kK == 0 && 64 % Rest::kK == 0 && F::kFit % Rest::kK == 0);
    static_assert(Main::kExact == Rest::kExact && Main::kHighest == Rest::kHighest);

    int64_t main_k() const { return main * Main::kK; }
    int64_t tile_bytes() const { return main * Main::kBytes + rest * Rest::kBytes; }
    int64_t table_bytes() const { return main * Main::kTableBytes + rest * Rest::kTableBytes; }
};

constexpr int kTableTokens = 8;  // tokens whose tables are kept at a time

// Exact tables are given up where a panel, from which products give the same sums, serves so many. A matrix unit lays
// many tokens out in blocks (x_block), which a panel of this unit does not read.
constexpr int kFewestProductTokens = 5;
template <class F>
bool takes_products(const sterna::LinearArgs& a) {
    return F::Main::kExact && a.n >= kFewestProductTokens && a.x_block == 1;
}

// Scratch: a row of x, then for each token its unit in a line and its tables.
constexpr int64_t lookup_row_bytes(int64_t K) { return (K + 127) / 64 * 64; }
template <class F>
int64_t lookup_scratch(int64_t K, int n) {
    const int64_t tokens = n < kTableTokens ? n : kTableTokens;
    const int64_t tables = lookup_row_bytes(K) + tokens * (64 + MainAndRest<F>(K).table_bytes());
    const int64_t panel = F::Main::kExact ? panel_bytes(K, F::kRowBlocks) : 0;
    return tables > panel ? tables : panel;
}
template <class F>
inline Tables tables_of(const sterna::LinearArgs& a, int n) {
    uint8_t* at = a.scratch + lookup_row_bytes(a.K) +
                  n % kTableTokens * (64 + MainAndRest<F>(a.K).table_bytes());
    Tables t{at + 64, 1.0f};
    __builtin_memcpy(&t.unit, at, 4);
    return t;
}

template <class F>
inline void prepare(const sterna::LinearArgs& a, int n) {
    using Main = typename F::Main;
    using Rest = typename F::Rest;
    const MainAndRest<F> both(a.K);
    auto* x = reinterpret_cast<int8_t*>(a.scratch);
    for (int64_t k = 0; k < a.K; k += 64)
        __builtin_memcpy(x + k, a.xq + sterna::x_offset(n, k, a.ldx, a.x_block), 64);
    __builtin_memset(x + a.K, 0, 64);  // the last table loads four
    const int8_t* rest = x + both.main * Main::kK;
    float inverse = 1.0f, unit = 1.0f;
    if constexpr (!Main::kExact) {
        const int main = largest_sum<Main>(x, both.main);
        const int other = largest_sum<Rest>(rest, both.rest);
        const int most = main > other ? main : other;
        const auto largest = static_cast<float>(most > 0 ? most : 1);
        inverse = 127.0f / largest;
        unit = largest / 127.0f;
    }
    uint8_t* bytes = tables_of<F>(a, n).bytes;
    __builtin_memcpy(bytes - 64, &unit, 4);
    make_tables<Main>(x, both.main, inverse, bytes);
    make_tables<Rest>(rest, both.rest, inverse, bytes + both.main * Main::kTableBytes);
}

// One native vector of outputs. With levels v = spacing * (code - top / 2) of codes 0..top,
// t = 2 * sum(code * x) - zero_x2 * sum(x) = (2 / spacing) * sum(v * x) + (top - zero_x2) * sum(x).
template <class F>
inline void finish_lookup(const sterna::LinearArgs& a, VI sum, float unit, int64_t n, int64_t row) {
    using Main = typename F::Main;
    if (row >= a.M) return;
    if constexpr (Main::Code::kSpacing == 1) sum = i_add(sum, sum);
    const VI shift = i_set1((Main::kHighest - a.zero_x2) * a.x_sum[n]);
    VF t;
    if constexpr (Main::kExact) {
        t = f_from_i(i_add(sum, shift));
    } else {
        t = f_add(f_mul(f_from_i(sum), f_set1(unit)), f_from_i(shift));
    }
    put_output(a, scaled_integer(a, t, n, row), n, row);
}

// Runs one token of `count` tiles, `tile_stride` apart.
template <class F>
inline void lookup_tiles(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count,
                         int n) {
    using Main = typename F::Main;
    using Rest = typename F::Rest;
    const MainAndRest<F> both(a.K);
    const Tables tables = tables_of<F>(a, n);
    TileSums sums;
    for (int s = 0; s < count; ++s)
        for (auto& part : sums.v[s])
            for (auto& sum : part) sum = i_set1(0);
    const uint8_t* codes = a.codes + tile * a.tile_bytes;
    const int64_t ahead = a.reading.prefetch_bytes;
    add_section<Main>(codes, tile_stride * a.tile_bytes, count, ahead, tables.bytes, both.main,
                      sums);
    add_section<Rest>(codes + both.main * Main::kBytes, tile_stride * a.tile_bytes, count, ahead,
                      tables.bytes + both.main * Main::kTableBytes, both.rest, sums);
    for (int s = 0; s < count; ++s)
        for (int p = 0; p < kParts; ++p)
            for (int j = 0; j < 4; ++j)
                finish_lookup<F>(
                    a, sums.v[s][p][j], tables.unit, n,
                    ((tile + s * tile_stride) * 4 + j) * sterna::kRowBlock + kLanes * p);
}

template <class F>
void linear_lookup(const sterna::LinearArgs& a) {
    if constexpr (F::Main::kExact) {  // products have the same sums
        if (takes_products<F>(a)) return linear_panel<F, RowBlocks<Panel<F>>>(a);
    }
    for (int n0 = 0; n0 < a.n; n0 += kTableTokens) {
        const int n1 = n0 + kTableTokens < a.n ? n0 + kTableTokens : a.n;
        if (!a.scratch_ready || a.n > kTableTokens)
            for (int n = n0; n < n1; ++n) prepare<F>(a, n);
        side_by_side(a, [&](int64_t tile, int64_t tile_stride, int count) {
            for (int n = n0; n < n1; ++n) lookup_tiles<F>(a, tile, tile_stride, count, n);
        });
    }
}

// Decodes a whole tile to a panel: the counterpart of linear/panel.h's decode_tile, which is for the layouts that are
// read step by step.
template <class F>
inline void decode_lookup(const uint8_t* tile, int64_t K, uint8_t* out) {
    using Main = typename F::Main;
    const MainAndRest<F> both(K);
    decode_blocks<Main>(tile, 0, both.main_k(), K, out);
    decode_blocks<typename F::Rest>(tile + both.main * Main::kBytes, both.main_k(), K, K,
                                    out + panel_at(K, 0, 0, both.main_k()));
}

template <class F>
void pack_lookup(const sterna::PackArgs& a) {
    using Main = typename F::Main;
    using Rest = typename F::Rest;
    const MainAndRest<F> both((a.K + 63) / 64 * 64);
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        const TileSource<64> source(a, tile);
        uint8_t* out = a.codes + tile * a.tile_bytes;
        int64_t k = 0;
        for (int64_t b = 0; b < both.main; ++b, k += Main::kK, out += Main::kBytes)
            Main::pack(source, k, out);
        for (int64_t b = 0; b < both.rest; ++b, k += Rest::kK, out += Rest::kBytes)
            Rest::pack(source, k, out);
    }
}

template <class F>
void row_lookup(const sterna::RowArgs& a) {
    using Main = typename F::Main;
    using Rest = typename F::Rest;
    const MainAndRest<F> both((a.K + 63) / 64 * 64);
    const uint8_t* tile = a.codes + a.row / 64 * a.tile_bytes;
    const int row = static_cast<int>(a.row % 64);
    const int64_t main_k = both.main * Main::kK;
    for (int64_t k = 0; k < a.K; ++k) {
        const int64_t r = k - main_k;
        const int code =
            r < 0 ? Main::code(tile + k / Main::kK * Main::kBytes, row,
                               static_cast<int>(k % Main::kK))
                  : Rest::code(tile + both.main * Main::kBytes + r / Rest::kK * Rest::kBytes, row,
                               static_cast<int>(r % Rest::kK));
        a.out[k] = static_cast<float>(code);
    }
}

}  // namespace
