// Steps of indexed.h, decoded a vector of rows at a time. Units whose vectors hold long tables (b_lookup128) look 64 indices
// up at once, in tables of the places of four values in a byte, or of two; others load an entry for each index.
#pragma once
#include "files/grids.h"
#include "isa/table_words.inc"
#include "layouts/layout.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Where decoded bytes go: those of row 16 g + kLanes part + lane at k are at per_block g + per_part part + per_k k + 4 lane.
struct Place {
    uint8_t* out;
    int64_t per_block, per_part, per_k;
    uint8_t* at(int g, int part) const { return out + g * per_block + part * per_part; }
};

template <class V>
constexpr bool kLongTables = requires(const uint8_t* t, V index) { b_lookup128(t, index); };
// Whether the unit has the words that this file needs.
template <class V>
constexpr bool kIndexedVectors = requires(V a) { b_flip(a, a, a, a); };

// The bytes of a table of kCount that index and more bits choose, in planes of 128: bit 7 is bit_of(0), the next bit_of(1).
template <int kCount, class Bit, class V>
[[gnu::always_inline]] inline V looked_up_long(const uint8_t* table, V index, Bit bit_of) {
    if constexpr (kCount == 128) {
        return b_lookup128(table, index);
    } else {
        constexpr int kHalf = kCount / 2;
        constexpr int kBit = kCount > 1024 ? 3 : kCount > 512 ? 2 : kCount > 256 ? 1 : 0;
        return b_choose(bit_of(kBit), looked_up_long<kHalf>(table, index, bit_of),
                        looked_up_long<kHalf>(table + kHalf, index, bit_of));
    }
}

// The codes of index i of eight, of row block f: four k a vector. Tables give them for all row blocks, or entries are loaded
// for the indices of the lanes, which come in words: of row blocks 0 and 2, and of 1 and 3.
template <class F, class T, class V>
struct IndexLookup {
    static constexpr int kVectors = F::kWidth / 4;
    const uint8_t* eight;  // the lines of eight indices, from the part's byte on
    V index, first, other, pair;
    uint64_t lanes[kLanes / 2];  // two lanes of words each

    [[gnu::always_inline]] void start(int i) {
        index = i_load(eight + 64 * i);
        if constexpr (kLongTables<V>) {
            const auto bit_of = [&](int b) {
                if (b == 0) return b_has(index, 7);
                const int at = F::kHigh * i + b - 1;
                const V line = i_load(eight + 64 * (8 + at / 8));
                return b_has(line, at % 8);
            };
            first = looked_up_long<F::kCount>(T::grid().planes[0], index, bit_of);
            other = looked_up_long<F::kCount>(T::grid().planes[1], index, bit_of);
        }
    }
    // Before the codes of row blocks `odd` and odd + 2.
    [[gnu::always_inline]] void start_rows(int i, int odd) {
        if constexpr (!kLongTables<V>) {
            V words = bytes_of(index, odd);
            if constexpr (F::kIndexHigh != 0) {
                const int at = F::kHigh * i;
                const uint8_t* const line = eight + 64 * (8 + at / 8);
                V more = bytes_of(i_load(line), odd);
                if (at % 8 + F::kIndexHigh > 8)
                    more = i_or(more, i_up(bytes_of(i_load(line + 64), odd), 8));
                const V mask = i_set1(((1 << F::kIndexHigh) - 1) * 0x10001);
                words = i_or(words, i_up(i_and(i_down(more, at % 8), mask), 8));
            }
            to_scalars(words, lanes);
        }
    }
    [[gnu::always_inline]] void codes(int f, V (&w)[kVectors]) {
        if constexpr (!kLongTables<V>) {
            load_entries(&T::grid().codes[0][0], lanes, 16 * (f / 2), w);
        } else if constexpr (F::kWidth == 4) {
            if (f % 2 == 0) pair = b_joined(first, other, f);
            w[0] = b_lookup_at(T::grid().of_place, b_nibbles(pair, f));
        } else {
            w[0] = b_lookup_at(T::grid().of_place, b_quarters(first, f));
            w[1] = b_lookup_at(T::grid().of_place, b_quarters(other, f));
        }
    }

  private:
    // Bytes 0 and 2 of each lane as words, or 1 and 3.
    static V bytes_of(V line, int odd) { return i_and(i_down(line, 8 * odd), i_set1(0x00FF00FF)); }
};

// Decodes the step of 64 k that begins at k0.
template <class F, class T, class V>
[[gnu::always_inline]] inline void decode_vectors(const uint8_t* step, int64_t k0, Place place) {
    for (int part = 0; part < kParts; ++part) {
        const uint8_t* const lines = step + 4 * kLanes * part;
        const uint8_t* const sign_lines = lines + 64 * F::kSignLine;
        V last = i_set1(0), shifts = last;  // the signs of the last eight weights
        if constexpr (T::kSigns == 7) {
            STERNA_UNROLL(8)
            for (int i = 0; i < 7; ++i) {
                const V top =
                    i_and(i_load(sign_lines + 64 * i), i_set1(static_cast<int32_t>(0x80808080u)));
                last = i_or(last, i_down(top, 7 - i));
            }
        }
        if constexpr (T::kShifts == 32) shifts = i_load_u8(step + F::kShiftAt + kLanes * part);
        for (int e = 0; e < F::kEights; ++e) {
            const uint8_t* const eight = lines + 64 * e * F::kEightLines;
            IndexLookup<F, T, V> lookup{eight, {}, {}, {}, {}, {}};
            STERNA_UNROLL(8)
            for (int i = 0; i < 8; ++i) {
                const int k = (8 * e + i) * F::kWidth, s = k / 8;
                lookup.start(i);
                V signs = last;
                if (T::kSigns == 8 || (T::kSigns == 7 && s < 7))
                    signs = i_load(sign_lines + 64 * s);
                if constexpr (T::kSigns == 7) signs = with_eighth(signs);
                STERNA_UNROLL(4)
                for (int j = 0; j < F::kRowBlocks; ++j) {
                    const int f = kLongTables<V> ? j : j % 2 * 2 + j / 2;
                    if (j % 2 == 0) lookup.start_rows(i, j / 2);
                    V w[F::kWidth / 4];
                    lookup.codes(f, w);
                    uint8_t* const to = place.at(f, part) + (k0 + k) * place.per_k;
                    V of_row = signs;
                    if constexpr (T::kSigns != 0) of_row = b_four_times(signs, f);
                    STERNA_UNROLL(2)
                    for (int h = 0; h < F::kWidth / 4; ++h) {
                        if constexpr (T::kSigns != 0) {
                            const V bits = (k + 4 * h) % 8
                                               ? i_set1(static_cast<int32_t>(0x80402010u))
                                               : i_set1(0x08040201);
                            w[h] = b_flip(w[h], of_row, bits, i_set1(2 * T::kZero * 0x01010101));
                        } else if constexpr (T::kShifts == 8) {
                            const int at = F::kHigh * i + F::kIndexHigh;
                            const V line = i_load(eight + 64 * (8 + at / 8));
                            w[h] = i_add_unless(w[h], line, 8 * f + at % 8, i_set1(0x02020202));
                        } else {
                            w[h] = i_add_unless(w[h], shifts, 2 * f + k / 32, i_set1(0x02020202));
                        }
                        i_store(to + 4 * h * place.per_k, w[h]);
                    }
                }
            }
        }
    }
}

}  // namespace
