// Steps of indexed.h, decoded a vector of rows at a time. Units whose vectors hold long tables (b_lookup128) look 64 indices
// up at once, in tables of the places of four values in a byte, or of two; others load an entry for each index.
#pragma once
#include <type_traits>

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

// Two vectors of indices, or what tables have for them.
template <class V>
struct Two {
    V of[2];
};
// The bytes of a table of kCount that indices and more bits choose, in planes of 128: bit 7 is bit_of(0), the next bit_of(1).
// A plane is two loads, which take longer than a look-up (Zen 4 loads 64 bytes a cycle), so it serves two vectors of indices.
template <int kCount, class Bit, class V>
[[gnu::always_inline]] inline Two<V> looked_up_long(const uint8_t* table, const Two<V>& index,
                                                    Bit bit_of) {
    if constexpr (kCount == 128) {
        return {b_lookup128(table, index.of[0]), b_lookup128(table, index.of[1])};
    } else {
        constexpr int kHalf = kCount / 2;
        constexpr int kBit = kCount > 1024 ? 3 : kCount > 512 ? 2 : kCount > 256 ? 1 : 0;
        const Two<V> low = looked_up_long<kHalf>(table, index, bit_of);
        const Two<V> high = looked_up_long<kHalf>(table + kHalf, index, bit_of);
        return {b_choose(bit_of(0, kBit), low.of[0], high.of[0]),
                b_choose(bit_of(1, kBit), low.of[1], high.of[1])};
    }
}

// The codes of index i of eight, of row block f, four k a vector: tables give them for all row blocks at a time.
template <class F, class T, class V>
struct LongTables {
    const uint8_t* eight;  // the lines of eight indices, from the part's byte on
    Two<V> first, other;  // of an even i and the next
    V pair;

    [[gnu::always_inline]] explicit LongTables(const uint8_t* lines) : eight(lines) {}
    [[gnu::always_inline]] void start(int i) {
        if (i % 2) return;
        const Two<V> index = {i_load(eight + 64 * i), i_load(eight + 64 * (i + 1))};
        const auto bit_of = [&](int n, int b) {
            if (b == 0) return b_has(index.of[n], 7);
            const int at = F::kHigh * (i + n) + b - 1;
            const V line = i_load(eight + 64 * (8 + at / 8));
            return b_has(line, at % 8);
        };
        first = looked_up_long<F::kCount>(T::grid().planes[0], index, bit_of);
        other = looked_up_long<F::kCount>(T::grid().planes[1], index, bit_of);
    }
    [[gnu::always_inline]] void codes(int i, int f, V (&w)[F::kWidth / 4]) {
        const V a = first.of[i % 2], b = other.of[i % 2];
        if constexpr (F::kWidth == 4) {
            if (f % 2 == 0) pair = b_joined(a, b, f);
            w[0] = b_lookup_at(T::grid().of_place, b_nibbles(pair, f));
        } else {
            w[0] = b_lookup_at(T::grid().of_place, b_quarters(a, f));
            w[1] = b_lookup_at(T::grid().of_place, b_quarters(b, f));
        }
    }
};

// The same for IQ1, by tables of halves (Iq1Grid): 12 look-ups for eight weights of 64 rows, where two planes of 2048 bytes
// took 32.
template <class F, class T, class V>
struct HalfTables {
    const uint8_t* eight;
    V halves[2];  // of one i

    [[gnu::always_inline]] explicit HalfTables(const uint8_t* lines) : eight(lines) {}
    [[gnu::always_inline]] void start(int i) {
        const int column = F::kHigh * i % 8, low_kind = column + 1, high_kind = column + 2;
        const uint8_t* const lines = eight + 64 * (8 + F::kHigh * i / 8);
        const auto line_of = [&](int bit) { return i_load(lines + bit / 8 * 64); };
        const V byte = i_load(eight + 64 * i);
        const V to_bit6 =
            column < 6 ? i_up(line_of(column), 6 - column) : i_down(line_of(column), column - 6);
        const V places[2] = {byte, b_select(i_set1(0x40404040), to_bit6, i_down(byte, 2))};
        const V place_alone = b_select(i_set1(0x60606060), places[1], byte);

        const auto odd = b_has(line_of(low_kind), low_kind % 8);  // kinds 1 and 3
        const auto upper = b_has(line_of(high_kind), high_kind % 8);  // kinds 2 and 3
        const auto alone = b_has_none_too(odd, byte, 0x60);
        STERNA_UNROLL(2)
        for (int half = 0; half < 2; ++half) {
            const auto& tables = T::grid().halves[half];
            const auto of = [&](int table) { return b_lookup128(tables[table], places[half]); };
            const auto more = b_has_too(odd, byte, half ? 0 : 7);
            const V below = b_choose(odd, of(0), of(1));
            const V above = b_choose(more, b_choose(odd, of(2), of(3)), of(4));
            const V rest = b_lookup128(tables[5], place_alone);
            halves[half] = b_choose(upper, below, b_choose(alone, above, rest));
        }
    }
    [[gnu::always_inline]] void codes(int, int f, V (&w)[2]) {
        STERNA_UNROLL(2)
        for (int half = 0; half < 2; ++half)
            w[half] = i_and(b_quarters_up3(halves[half], f), i_set1(0x18181818));
    }
};

// The same by an entry for each lane. Indices of eight bits are read where they lie. Longer ones are made first, those of
// all eight, so that what was stored need not be awaited: those of row blocks 0 and 2, and of 1 and 3, in turn.
template <class F, class T, class V>
struct EntryLoads {
    const uint8_t* eight;
    alignas(64) uint16_t words[F::kIndexHigh ? 8 : 1][2][2 * kLanes];

    [[gnu::always_inline]] explicit EntryLoads(const uint8_t* lines) : eight(lines) {
        if constexpr (F::kIndexHigh != 0) {
            STERNA_UNROLL(8)
            for (int i = 0; i < 8; ++i)
                for (int odd = 0; odd < 2; ++odd) i_store(words[i][odd], words_of(i, odd));
        }
    }
    [[gnu::always_inline]] void start(int) {}
    [[gnu::always_inline]] void codes(int i, int f, V (&w)[F::kWidth / 4]) {
        const auto index_of = [&](int lane) -> size_t {
            if constexpr (F::kIndexHigh == 0) return eight[64 * i + 4 * lane + f];
            return words[i][f % 2][2 * lane + f / 2];
        };
        load_entries(&T::grid().codes[0][0], index_of, w);
    }

  private:
    [[gnu::always_inline]] V words_of(int i, int odd) const {
        const int at = F::kHigh * i;
        const uint8_t* const line = eight + 64 * (8 + at / 8);
        V more = bytes_of(i_load(line), odd);
        if (at % 8 + F::kIndexHigh > 8)
            more = i_or(more, i_up(bytes_of(i_load(line + 64), odd), 8));
        const V mask = i_set1(((1 << F::kIndexHigh) - 1) * 0x10001);
        return i_or(bytes_of(i_load(eight + 64 * i), odd),
                    i_up(i_and(i_down(more, at % 8), mask), 8));
    }
    // Bytes 0 and 2 of each lane as words, or 1 and 3.
    static V bytes_of(V line, int odd) { return i_and(i_down(line, 8 * odd), i_set1(0x00FF00FF)); }
};

template <class F, class T, class V>
consteval auto index_lookup() {
    if constexpr (!kLongTables<V>)
        return std::type_identity<EntryLoads<F, T, V>>{};
    else if constexpr (requires { T::grid().halves; })
        return std::type_identity<HalfTables<F, T, V>>{};
    else
        return std::type_identity<LongTables<F, T, V>>{};
}
template <class F, class T, class V>
using IndexLookup = typename decltype(index_lookup<F, T, V>())::type;

// What signs or shifts do to codes: a vector for each eight k, of a bit for each code or each row.
template <class F, class T, class V>
struct CodeChanges {
    const uint8_t* lines;  // from the part's byte on
    V of_eights[8];  // seven signs and the eighth, or the shifts of all k

    [[gnu::always_inline]] CodeChanges(const uint8_t* step, int part)
        : lines(step + 4 * kLanes * part) {
        if constexpr (T::kShifts == 32)
            of_eights[0] = i_load_u8(step + F::kShiftAt + kLanes * part);
        if constexpr (T::kSigns == 7) {
            V last = i_set1(0);
            STERNA_UNROLL(8)
            for (int i = 0; i < 7; ++i) {
                const V signs = i_load(lines + 64 * (F::kSignLine + i));
                of_eights[i] = with_eighth(signs);
                last = i_or(last,
                            i_down(i_and(signs, i_set1(static_cast<int32_t>(0x80808080u))), 7 - i));
            }
            of_eights[7] = with_eighth(last);
        }
    }
    // Of eight k.
    [[gnu::always_inline]] V of(int eight) const {
        if constexpr (T::kSigns == 7) return of_eights[eight];
        if constexpr (T::kSigns == 8) return i_load(lines + 64 * (F::kSignLine + eight));
        if constexpr (T::kShifts == 32) return i_down(of_eights[0], eight / 4);
        const int at = F::kHigh * eight + F::kIndexHigh;
        const V line = i_load(lines + 64 * (8 + at / 8));
        return i_down(line, at % 8);
    }
    // Codes of row block f, of the first or the second four k of eight.
    [[gnu::always_inline]] static V changed(V w, V change, int f, int second) {
        if constexpr (T::kSigns == 0)
            return i_or(w, i_unless(change, T::kShifts == 8 ? 8 * f : 2 * f, i_set1(0x02020202)));
        const V bits = i_set1(second ? static_cast<int32_t>(0x80402010u) : 0x08040201);
        return b_flip(w, b_four_times(change, f), bits, i_set1(2 * T::kZero * 0x01010101));
    }
};

// Decodes the step of 64 k that begins at k0.
template <class F, class T, class V>
[[gnu::always_inline]] inline void decode_vectors(const uint8_t* step, int64_t k0, Place place) {
    // Places of bits in long tables are part of instructions; else a loop of eight k is short enough to need no spills.
    constexpr int kAtOnce = kLongTables<V> ? 8 : 8 / F::kWidth;
    for (int part = 0; part < kParts; ++part) {
        const CodeChanges<F, T, V> changes(step, part);
        uint8_t* to[F::kRowBlocks];
        STERNA_UNROLL(4)
        for (int f = 0; f < F::kRowBlocks; ++f) to[f] = place.at(f, part) + k0 * place.per_k;
        for (int e = 0; e < F::kEights; ++e) {
            IndexLookup<F, T, V> lookup(step + 4 * kLanes * part + 64 * e * F::kEightLines);
            for (int begin = 0; begin < 8; begin += kAtOnce) {
                STERNA_UNROLL(8)
                for (int j = 0; j < kAtOnce; ++j) {
                    const int i = begin + j;
                    lookup.start(i);
                    const V change = changes.of((8 * e + i) * F::kWidth / 8);
                    STERNA_UNROLL(4)
                    for (int f = 0; f < F::kRowBlocks; ++f) {
                        V w[F::kWidth / 4];
                        lookup.codes(i, f, w);
                        STERNA_UNROLL(2)
                        for (int h = 0; h < F::kWidth / 4; ++h)
                            i_store(to[f] + 4 * h * place.per_k,
                                    changes.changed(w[h], change, f, (j * F::kWidth / 4 + h) % 2));
                        to[f] += F::kWidth * place.per_k;
                    }
                }
            }
        }
    }
}

}  // namespace
