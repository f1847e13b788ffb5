// Linear layers by table lookup (bitnet.cpp, arXiv 2502.11880; T-MAC, arXiv 2407.00088): for every g
// activations a table of the sums that a code may stand for, so that a code costs a lookup and an
// addition instead of g products. docs/explanation/lookup-tables.md has the picture.
//
// A byte of a line is a row, so one lookup serves as many rows as a vector has bytes. Sums are
// exact integers: bytes for a run of lookups, then int16, then int32.
#pragma once
#include "layouts/layout.h"
#include "layouts/lookup_codes.h"
#include "layouts/packing.h"
#include "linear/linear.h"
#include "linear/lookup_panel.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// How the table entries of a block are held. Exact entries are two bytes, v = 31 * high + low, and each is looked
// up. Others are one byte: v in units of (the token's largest sum) / 127, rounded.
constexpr int kRadix = 31, kMaxLow = kRadix / 2;
// b_store_digits cuts v into digits; whatever a table may hold has digits that fit int8.
constexpr bool digits_fit(int largest) {
    for (int v = -largest; v <= largest; ++v) {
        const int high = (v * ((32768 + kRadix / 2) / kRadix) + 16384) >> 15,
                  low = v - kRadix * high;
        if (low > kMaxLow || low < -kMaxLow) return false;
    }
    return true;
}
// Whether a unit looks a sign up with its code, in a table of 32.
template <class V>
constexpr bool kSignedTables = requires(const uint8_t* t, V code) { b_lookup32(t, code); };
template <class Block, bool kExact>
constexpr int kTableEntries = Block::Code::kMirrored && kExact && kSignedTables<VI> ? 32 : 16;
template <class Block, bool kExact_>
struct Lookup : Block {
    static constexpr bool kExact = kExact_;
    static constexpr int kEntryBytes = kExact ? 2 : 1, kSums = kEntryBytes * Block::kPlanes;
    static constexpr int kTableBytes =
        kTableEntries<Block, kExact> * kEntryBytes * Block::kTables;  // bytes for a block
    // Lookups that are added up in int8: 8 for ternary weights, as 8 * 15 <= 127.
    static constexpr int kMaxHigh = (Block::Code::kMaxSum + kMaxLow) / kRadix;
    static constexpr int kMaxByte = kMaxHigh > kMaxLow ? kMaxHigh : kMaxLow;
    static constexpr int kRun = !kExact ? 1 : 8 * kMaxByte <= 127 && Block::kTables == 8 ? 8 : 4;
    static_assert(!kExact || (kRun * kMaxByte <= 127 && digits_fit(Block::Code::kMaxSum)));
    // A run is added to int16 as a byte of at most 255: 256 runs fit.
    static constexpr int kRuns = Block::kTables / kRun;  // runs of a block, for each of its sums
    static constexpr int kSpan = 256 / kRuns;  // blocks until int16 sums go to int32
    static_assert(kSpan * kRuns * 255 <= 65535);
    // 128 is added to every run, so that bytes are unsigned.
    static constexpr int32_t kBias =
        128 * kRuns * (kExact ? 1 + kRadix : 1) * (Block::kPlanes == 2 ? 3 : 1);
    static_assert(int64_t{kBias} * 2 * sterna::kMaxIntegerK / Block::kK < int64_t{1} << 31);
};

// Sums of unsigned bytes as int16: of all pairs (even + 256 * odd, modulo 2^16), and of the odd ones.
struct ByteSums {
    VI all, odd;
    void add(VI bytes) {
        all = w_add(all, bytes);
        odd = w_add(odd, w_shr<8>(bytes));
    }
    // The sums of byte j of every lane, as int32.
    void split(VI (&sum)[4]) const {
        const VI low = i_set1(0xFFFF);
        const VI even = w_sub(all, i_shl<8>(i_and(odd, i_set1(0x00FF00FF))));
        sum[0] = i_and(even, low);
        sum[1] = i_and(odd, low);
        sum[2] = i_shr<16>(even);
        sum[3] = i_shr<16>(odd);
    }
};

// Code i in the low four bits of every byte, with its sign above them where tables have 32 entries.
template <class L, int i>
inline VI signed_index(VI code, [[maybe_unused]] VI signs) {
    if constexpr (kTableEntries<L, L::kExact> == 16) {
        return b_index(code);
    } else {
        constexpr int kUp = i < 4 ? 4 - i : 0, kDown = i < 4 ? 0 : i - 4;
        return b_select(i_set1(0x0F0F0F0F), code, i_shl<kUp>(i_shr<kDown>(signs)));
    }
}
// The sums of code i, in bytes, from one of its tables.
template <class L, int i, class V>
inline V looked_up(const uint8_t* table, V index, [[maybe_unused]] V signs) {
    if constexpr (kTableEntries<L, L::kExact> == 32) {
        return b_lookup32(table, index);
    } else if constexpr (L::Code::kMirrored) {
        return b_negate<i>(b_lookup_at(table, index), signs);
    } else {
        return b_lookup_at(table, index);
    }
}

// Adds codes i..7 of a block.
template <class L, int i = 0>
inline void add_codes(const uint8_t* block, const uint8_t* tables, int part, VI signs,
                      VI (&run)[L::kSums], ByteSums (&sums)[L::kSums]) {
    constexpr int kTable = i / L::kPlanes, kPlane = i % L::kPlanes;
    const VI line = i_load(block + 64 * (i / 2) + 4 * kLanes * part);
    const VI index = signed_index<L, i>(i % 2 ? i_shr<4>(line) : line, signs);
    STERNA_UNROLL(2)
    for (int b = 0; b < L::kEntryBytes; ++b) {
        const uint8_t* table = tables + kTableEntries<L, L::kExact> * (L::kEntryBytes * kTable + b);
        const VI v = looked_up<L, i>(table, index, signs);
        const int s = L::kEntryBytes * kPlane + b;
        if constexpr (L::kRun == 1) {
            sums[s].add(v);
        } else {
            const VI before = kTable % L::kRun ? run[s] : i_set1(static_cast<int32_t>(0x80808080u));
            run[s] = b_add(before, v);
            if constexpr (kTable % L::kRun == L::kRun - 1) sums[s].add(run[s]);
        }
    }
    if constexpr (i < 7) add_codes<L, i + 1>(block, tables, part, signs, run, sums);
}

// Blocks of one turn, before the next tile has its turn (linear.h says why tiles take turns).
constexpr int64_t kTurnBlocks = 2;

template <class L>
inline void add_blocks(const uint8_t* block, const uint8_t* tables, int64_t count, int64_t ahead,
                       int part, ByteSums (&kept)[L::kSums]) {
    ByteSums sums[L::kSums];
    VI run[L::kSums];
    STERNA_UNROLL(4)
    for (int s = 0; s < L::kSums; ++s) sums[s] = kept[s];
    for (int64_t b = 0; b < count; ++b, block += L::kBytes, tables += L::kTableBytes) {
        VI signs{};
        if constexpr (L::Code::kMirrored) signs = i_load(block + 256 + 4 * kLanes * part);
        // Into L2: tables come from there, too, and wait for the few places of loads that miss L1.
        if (part == 0) STERNA_UNROLL(8)
        for (int line = 0; line < L::kBytes; line += 64) prefetch_l2(block + ahead + line);
        add_codes<L>(block, tables, part, signs, run, sums);
    }
    STERNA_UNROLL(4)
    for (int s = 0; s < L::kSums; ++s) kept[s] = sums[s];
}

// int32 sums of tiles side by side: of row block j, part p, in native vectors.
struct TileSums {
    VI v[kMostStreams][kParts][4];
};

template <class L>
inline void add_split(const ByteSums (&sums)[L::kSums], int64_t blocks, VI (&total)[4]) {
    VI v[L::kSums][4];
    for (int s = 0; s < L::kSums; ++s) sums[s].split(v[s]);
    const VI bias = i_set1(static_cast<int32_t>(L::kBias * blocks));
    for (int j = 0; j < 4; ++j) {
        VI sum = i_sub(total[j], bias);
        for (int plane = 0; plane < L::kPlanes; ++plane) {
            VI one = v[L::kEntryBytes * plane][j];
            if constexpr (L::kExact) {
                const VI high = v[2 * plane + 1][j];
                one = i_add(one, i_sub(i_shl<5>(high), high));
            }
            sum = i_add(sum, plane ? i_add(one, one) : one);
        }
        total[j] = sum;
    }
}

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

// Stores a code's sums, in tables of bytes.
template <class L, class V>
inline void store_tables(uint8_t* out, const V* sums) {
    if constexpr (kTableEntries<L, L::kExact> == 32) {
        b_store_mirrored_digits<kRadix>(out, sums);
    } else if constexpr (L::kExact) {
        b_store_digits<kRadix>(out, sums);
    } else {
        b_store(out, sums);
    }
}

template <class L>
inline void make_tables(const int8_t* x, int64_t blocks, float inverse, uint8_t* out) {
    const auto& entries = L::Code::kTable;
    const VI zero = i_set1(0);
    for (int64_t t = 0; t < blocks * L::kTables;
         ++t, out += kTableEntries<L, L::kExact> * L::kEntryBytes) {
        const VX four = x_load(x + t * L::Code::kWeights);  // x beyond the code counts 0 times
        VI v[kParts];
        STERNA_UNROLL(4)
        for (int p = 0; p < kParts; ++p) {
            v[p] = i_sub(dot(zero, i_load(entries.plus[kLanes * p]), four),
                         dot(zero, i_load(entries.minus[kLanes * p]), four));
            if constexpr (!L::kExact)
                v[p] = i_add(i_round(f_mul(f_from_i(v[p]), f_set1(inverse))), i_set1(128));
        }
        store_tables<L>(out, v);
    }
}

// ------------------------------------------------------------------------------------- the layer

// A lookup format F: K splits into blocks of F::Main and, where these do not fit, of F::Rest (the
// paper's block fitting: ThreeK and TwoK).
struct LookupFormat : IntegerDot {
    static constexpr bool kLookup = true, kGroupScales = false;
    static constexpr int kRowBlocks = 4, kStepK = 64;
    static constexpr int kMaxByte = 4;  // greatest code in a panel: five levels
};

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
    // The offset in a tile of the block that starts at k.
    int64_t bytes_before(int64_t k) const {
        const int64_t beyond = k - main_k();
        return beyond < 0 ? k / Main::kK * Main::kBytes
                          : main * Main::kBytes + beyond / Rest::kK * Rest::kBytes;
    }
    int64_t tile_bytes() const { return main * Main::kBytes + rest * Rest::kBytes; }
    int64_t table_bytes() const { return main * Main::kTableBytes + rest * Rest::kTableBytes; }
};

constexpr int kTableTokens = 8;  // tokens whose tables are kept at a time

// Exact tables are given up where a panel, from which products give the same sums, serves so many.
constexpr int kFewestProductTokens = 5;
template <class F>
constexpr bool takes_products(int n) {
    return F::Main::kExact && n >= kFewestProductTokens;
}

// Scratch: a row of x, then for each token its unit in a line and its tables.
constexpr int64_t lookup_row_bytes(int64_t K) { return (K + 127) / 64 * 64; }
template <class F>
int64_t lookup_scratch(int64_t K, int n) {
    const int64_t tokens = n < kTableTokens ? n : kTableTokens;
    const int64_t tables = lookup_row_bytes(K) + tokens * (64 + MainAndRest<F>(K).table_bytes());
    if (!takes_products<F>(n)) return tables;
    return panel_bytes(K, F::kRowBlocks);
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
        if (takes_products<F>(a.n)) return linear_panel<F, RowBlocks<Panel<F>>>(a);
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

// The counterpart of panel.h's decode_tile, which is for the layouts that are read step by step.
template <class F>
inline void decode_lookup(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
    const MainAndRest<F> both(K);
    const int64_t end = k0 + kc, middle = both.main_k() < end ? both.main_k() : end;
    const int64_t rest = k0 > middle ? k0 : middle;
    decode_blocks<typename F::Main>(tile + both.bytes_before(k0), k0, middle, kc, out);
    decode_blocks<typename F::Rest>(tile + both.bytes_before(rest), rest, end, kc,
                                    out + panel_at(kc, 0, 0, rest - k0));
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
