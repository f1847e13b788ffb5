// Sums by table lookup: for every g activations a table of the sums that a code may stand for, so that a code costs a
// lookup and an addition instead of g products. s5.h has such codes; so have the formats of bitnet.cpp (arXiv 2502.11880)
// and T-MAC (arXiv 2407.00088), in papers/native/lookup. docs/measurements/lookup-tables.md has the picture.
//
// A byte of a line is a row, so one lookup serves as many rows as a vector has bytes. Sums are
// exact integers: bytes for a run of lookups, then int16, then int32.
#pragma once
#include "layouts/layout.h"
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
    static constexpr int kEntries = kTableEntries<Block, kExact>;
    static constexpr bool kSignInIndex =
        kEntries == 32;  // else signs are applied to what was looked up
    static constexpr int kEntryBytes = kExact ? 2 : 1, kSums = kEntryBytes * Block::kPlanes;
    static constexpr int kTableBytes =
        kEntries * kEntryBytes * Block::kTables;  // bytes for a block
    // Lookups that are added up in int8: 8 for ternary weights, as 8 * 15 <= 127.
    static constexpr int kMaxHigh = (Block::Code::kMaxSum + kMaxLow) / kRadix;
    static constexpr int kMaxByte = kMaxHigh > kMaxLow ? kMaxHigh : kMaxLow;
    static constexpr bool kEightFit = 8 * kMaxByte <= 127 && Block::kTables == 8;
    static constexpr int kRun = !kExact ? 1 : kEightFit ? 8 : 4;
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
    if constexpr (!L::kSignInIndex) {
        return b_index(code);
    } else {
        constexpr int kUp = i < 4 ? 4 - i : 0, kDown = i < 4 ? 0 : i - 4;
        return b_select(i_set1(0x0F0F0F0F), code, i_shl<kUp>(i_shr<kDown>(signs)));
    }
}
// The sums of code i, in bytes, from one of its tables.
template <class L, int i, class V>
inline V looked_up(const uint8_t* table, V index, [[maybe_unused]] V signs) {
    if constexpr (L::kSignInIndex) {
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
        const uint8_t* table = tables + L::kEntries * (L::kEntryBytes * kTable + b);
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
        if (part == 0) {
            STERNA_UNROLL(8)
            for (int line = 0; line < L::kBytes; line += 64) prefetch_l2(block + ahead + line);
        }
        add_codes<L>(block, tables, part, signs, run, sums);
    }
    STERNA_UNROLL(4)
    for (int s = 0; s < L::kSums; ++s) kept[s] = sums[s];
}

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

// ------------------------------------------------------------------------------------- tables

// Stores a code's sums, in tables of bytes.
template <class L, class V>
inline void store_tables(uint8_t* out, const V* sums) {
    if constexpr (L::kSignInIndex) {
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
    for (int64_t t = 0; t < blocks * L::kTables; ++t, out += L::kEntries * L::kEntryBytes) {
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

// ------------------------------------------------------------------------------------- panels

// Bytes j of four vectors' lanes side by side, as vector j of `out`: a matrix turned in every lane. Bytes of a line are
// rows; a panel has four k of a row side by side.
inline void turn_bytes(const VI (&v)[4], VI (&out)[4]) {
    const VI bytes = i_set1(0x00FF00FF), words = i_set1(0xFFFF);
    const VI even0 = b_select(bytes, v[0], i_shl<8>(v[1]));
    const VI even1 = b_select(bytes, v[2], i_shl<8>(v[3]));
    const VI odd0 = b_select(bytes, i_shr<8>(v[0]), v[1]);
    const VI odd1 = b_select(bytes, i_shr<8>(v[2]), v[3]);
    out[0] = b_select(words, even0, i_shl<16>(even1));
    out[1] = b_select(words, odd0, i_shl<16>(odd1));
    out[2] = b_select(words, i_shr<16>(even0), even1);
    out[3] = b_select(words, i_shr<16>(odd0), odd1);
}

}  // namespace
