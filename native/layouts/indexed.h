// Codes that are indices of a table: ggml's IQ1, IQ2 and IQ3. An index stands for eight or four weights (files/grids.h), which
// have signs of their own (IQ2, IQ3), or share a shift by an eighth (IQ1).
//
// A step is 64 k of 64 rows. Byte 4*r + f of each 64-byte line is row 16*f + r:
//   for each eight indices (of 64 or 32 k):
//     8 lines       bits 7..0 of an index; of IQ1, of the number of an entry (files/grids.h)
//     kHigh lines   a number of 8*kHigh bits, the first line's byte lowest: kHigh more bits of each index, the first
//                   index lowest. With a shift for each index (kShifts = 8) the last of them is that.
//   kSigns lines, bit j of a line's byte: whether weight j of eight is negative
//     8             the lines are those of each eight weights
//     7             for the first seven of the eight weights: the eighth sign makes their number even. Bit 7 of
//                   line i is sign i of the last eight weights.
//   kShifts = 32: 16 bytes, of which bit 2*f + h of byte r is the shift of row 16*f + r, for 32 k each
//
// Steps are not decoded one by one: a super-block, or a tile, is decoded to bytes first, the level plus kSuperOffset.
#pragma once
#include "files/grids.h"
#include "layouts/indexed_vectors.h"
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The bytes of a decoded super-block as a layout: a step is 4 k of 64 rows, four lines. kZero: the greatest code of level 0.
template <int kGroup, int kZero>
struct DecodedBlock : IntegerDot {
    static constexpr int kRowBlocks = 4, kStepK = 4, kStepBytes = 256;
    static constexpr int kSuperGroup = kGroup, kSuperOffset = kZero, kSuperBits = 8;
    static constexpr bool kEvenOffset = true, kRowScales = false, kGroupScales = false;
    static constexpr bool kInCache = true, kOddScales = true;
    static constexpr int kMaxByte = 2 * kZero;
    static constexpr bool kRuns = kGroup / 4 <= kRunSteps<kMaxByte>;

    static Place place(uint8_t* block) { return {block, 64, 4 * kLanes, 64}; }
    static void decode(const uint8_t* step, int part, int, VI* w) {
        STERNA_UNROLL(4)
        for (int f = 0; f < kRowBlocks; ++f) w[f] = i_load(step + 64 * f + 4 * kLanes * part);
    }
};

// T has kName, grid(), kHigh, kSigns, kShifts, kGroup, kZero and kPlaceShift, by which a magnitude (of IQ1 a code) becomes
// its place among those of the table.
template <class T>
struct Indexed : IntegerDot {
    using GridType = std::remove_cvref_t<decltype(T::grid())>;
    static constexpr int kWidth = sizeof(GridType::codes[0]);
    static constexpr int kCount = sizeof(GridType::codes) / kWidth;
    static constexpr int kIndexHigh = kCount > 1024  ? 3
                                      : kCount > 512 ? 2
                                      : kCount > 256 ? 1
                                                     : 0;  // bits of an index beyond eight
    static constexpr int kEights = 8 / kWidth;  // eight indices of a step
    static constexpr int kHigh = kIndexHigh + (T::kShifts == 8);
    static constexpr int kEightLines = 8 + kHigh;
    static constexpr int kSignLine = kEights * kEightLines, kShiftAt = 64 * (kSignLine + T::kSigns);

    static constexpr int kRowBlocks = 4, kStepK = 64;
    static constexpr int kStepBytes = kShiftAt + (T::kShifts == 32 ? 16 : 0);
    static constexpr int kSuperGroup = T::kGroup, kSuperOffset = T::kZero, kSuperBits = 8;
    static constexpr int kMaxByte = 2 * T::kZero;
    static constexpr bool kEvenOffset = true, kRowScales = false, kGroupScales = false;
    static constexpr bool kByBlocks = true, kOddScales = true;
    // Formats share the code that multiplies, also where their codes of level 0 are less than its bytes allow for. Where
    // pair sums are int16, those of small levels fit for longer.
    using Direct = DecodedBlock<T::kGroup, kPairSums16 && T::kZero <= 15 ? 15 : 43>;

    // The byte of a row in every line.
    static int byte_of(int row) { return 4 * (row % 16) + row / 16; }

    // Calls put(k, four codes) for a row's codes of a step, four at a time.
    template <class Put>
    [[gnu::always_inline]] static void each_four(const uint8_t* step, int row, Put put) {
        const uint8_t* const line = step + byte_of(row);
        const uint8_t* const signs = line + 64 * kSignLine;
        int last = 0;  // the signs of the last eight weights
        if constexpr (T::kSigns == 7) {
            STERNA_UNROLL(8)
            for (int i = 0; i < 7; ++i) last |= signs[64 * i] >> 7 << i;
        }
        STERNA_UNROLL(8)
        for (int e = 0; e < kEights; ++e) {
            const uint8_t* const eight = line + 64 * e * kEightLines;
            uint32_t high = 0;
            STERNA_UNROLL(4)
            for (int b = 0; b < kHigh; ++b) high |= uint32_t{eight[64 * (8 + b)]} << 8 * b;
            STERNA_UNROLL(8)
            for (int i = 0; i < 8; ++i) {
                const uint32_t more = high >> kHigh * i & ((1u << kIndexHigh) - 1);
                const uint8_t* entry = T::grid().codes[eight[64 * i] | more << 8];
                const int k = (8 * e + i) * kWidth;
                uint32_t four[kWidth / 4];
                __builtin_memcpy(four, entry, kWidth);
                if constexpr (T::kSigns != 0) {
                    const int s = k / 8;
                    const uint8_t* mask = nullptr;
                    if constexpr (T::kSigns == 7)
                        mask = sterna::kSigns7.bytes[s < 7 ? signs[64 * s] & 127 : last];
                    else
                        mask = sterna::kSigns8.bytes[signs[64 * s]];
                    STERNA_UNROLL(2)
                    for (int h = 0; h < kWidth / 4; ++h) {
                        // zero + m becomes zero - m: (127 - (zero + m)) - (127 - 2 zero), and no byte borrows.
                        uint32_t negative;
                        __builtin_memcpy(&negative, mask + (k + 4 * h) % 8, 4);
                        four[h] =
                            (four[h] ^ negative) - (negative & (127u - 2 * T::kZero) * 0x01010101u);
                    }
                } else {
                    bool down;
                    if constexpr (T::kShifts == 8)
                        down = high >> (kHigh * i + kIndexHigh) & 1;
                    else
                        down = step[kShiftAt + row % 16] >> (row / 16 * 2 + k / 32) & 1;
                    STERNA_UNROLL(2)
                    for (int h = 0; h < kWidth / 4; ++h) four[h] += down ? 0 : 0x02020202u;
                }
                STERNA_UNROLL(2)
                for (int h = 0; h < kWidth / 4; ++h) put(k + 4 * h, four[h]);
            }
        }
    }

    // Decodes the steps that hold k in [0, kc).
    [[gnu::noinline]] static void decode_steps(const uint8_t* step, int64_t kc, Place place) {
        for (int64_t k0 = 0; k0 < kc; k0 += kStepK, step += kStepBytes) {
            STERNA_UNROLL(4)
            for (int line = 0; line < kStepBytes; line += kLine) {
                prefetch_l2(step + 4 * kPanelPrefetchBytes + line);
                prefetch(step + 2 * kPanelNearBytes + line);
            }
            if constexpr (kIndexedVectors<VI>) {
                decode_vectors<Indexed, T, VI>(step, k0, place);
                continue;
            }
            for (int row = 0; row < kTileRows<Indexed>; ++row) {
                uint8_t* const to = place.at(row / 16, row % 16 / kLanes) + row % kLanes * 4;
                each_four(step, row, [&](int k, uint32_t four) {
                    __builtin_memcpy(to + (k0 + k) * place.per_k, &four, 4);
                });
            }
        }
    }
    static void decode_tile(const uint8_t* tile, int64_t k0, int64_t kc, uint8_t* out) {
        decode_steps(tile + k0 / kStepK * kStepBytes, kc,
                     {out, panel_at(kc, 1, 0, 0), panel_at(kc, 0, 1, 0), kLanes});
    }

    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<Indexed>);
        for (int64_t k0 = 0; k0 < a.K; k0 += kStepK)
            each_four(step_of<Indexed>(a, k0), in_tile, [&](int k, uint32_t four) {
                for (int j = 0; j < 4 && k0 + k + j < a.K; ++j)
                    a.out[k0 + k + j] = static_cast<float>(four >> 8 * j & 255);
            });
    }

    // The number of the entry that these codes are, or of one near it.
    static uint32_t encode(const uint8_t* codes) {
        constexpr int kValues = T::kSigns == 0 || kWidth == 8 ? 3 : 8;
        uint32_t key = 0;
        for (int j = kWidth - 1; j >= 0; --j) {
            const int size = T::kSigns == 0        ? codes[j]
                             : codes[j] < T::kZero ? T::kZero - codes[j]
                                                   : codes[j] - T::kZero;
            const uint32_t place = static_cast<uint32_t>(size) >> T::kPlaceShift;
            key = key * kValues + (place < kValues ? place : kValues - 1);
        }
        uint32_t index = T::grid().first[key / sterna::kGridBucket];
        while (index + 1 < kCount && T::grid().keys[index] < key) ++index;
        return sterna::number_of(T::grid(), index);
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<Indexed>(a, [](uint8_t* out, const PackBlock<Indexed>& block, int64_t k) {
            __builtin_memset(out, 0, kStepBytes);
            for (int row = 0; row < kTileRows<Indexed>; ++row) {
                uint8_t codes[kStepK];
                for (int i = 0; i < kStepK; i += 4)
                    __builtin_memcpy(codes + i, block.at(k + i) + row, 4);
                pack_row(out, row, codes);
            }
        });
    }

  private:
    static void pack_row(uint8_t* step, int row, const uint8_t* codes) {
        uint8_t* const line = step + byte_of(row);
        for (int e = 0; e < kEights; ++e) {
            uint8_t* const eight = line + 64 * e * kEightLines;
            uint32_t high = 0;
            for (int i = 0; i < 8; ++i) {
                const uint8_t* of_index = codes + (8 * e + i) * kWidth;
                const uint32_t index = encode(of_index);
                eight[64 * i] = static_cast<uint8_t>(index);
                high |= index >> 8 << kHigh * i;
                if (T::kShifts == 8) high |= is_down(of_index) << (kHigh * i + kIndexHigh);
            }
            for (int b = 0; b < kHigh; ++b)
                eight[64 * (8 + b)] = static_cast<uint8_t>(high >> 8 * b);
        }
        for (int s = 0; s < T::kSigns; ++s) line[64 * (kSignLine + s)] = signs_of(codes + 8 * s);
        if (T::kSigns == 7) {
            const uint8_t last = signs_of(codes + 56);
            for (int i = 0; i < 7; ++i) {
                uint8_t& to = line[64 * (kSignLine + i)];
                to = static_cast<uint8_t>((to & 127) | (last >> i & 1) << 7);
            }
        }
        for (int half = 0; half < 2 && T::kShifts == 32; ++half)
            step[kShiftAt + row % 16] = static_cast<uint8_t>(
                step[kShiftAt + row % 16] | is_down(codes + 32 * half) << (row / 16 * 2 + half));
    }
    static uint32_t is_down(const uint8_t* codes) { return codes[0] >> 1 & 1 ? 0 : 1; }
    static uint8_t signs_of(const uint8_t* codes) {
        int signs = 0;
        for (int j = 0; j < 8; ++j) signs |= (codes[j] < T::kZero) << j;
        return static_cast<uint8_t>(signs);
    }
};

}  // namespace
