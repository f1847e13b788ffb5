// b2: two-bit codes, four row blocks in place in every byte.
//
// A step is 4 consecutive k of 64 rows, one 64-byte line:
//   byte 4*r + j, r = 0..15, j = 0..3:   bits 7..6  5..4  3..2  1..0
//                                        row  48+r  32+r  16+r  r     at k + j
// A field is not shifted down before the dot product: the accumulator of row block f holds
// sum(code * 4^f * x) and is shifted once at the end. Where pair sums are int16, only the fields of the
// lower nibble stay in place: 12 * 127 * 2 leaves room for a run of ten. Where dot() takes signed bytes the last one is
// moved down, which needs no mask.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct b2 : IntegerDot {
    static constexpr const char* kName = "b2";
    static constexpr bool kLongGroups = true;  // GGUF's ternary blocks
    static constexpr int kRowBlocks = 4, kStepK = 4, kStepBytes = 64;
    static constexpr int kInPlace = kPairSums16 ? 2 : kSignedDot ? 3 : 4;  // fields
    static constexpr int kSuperGroup = 16, kSuperOffset = 0, kSuperBits = 2;
    static constexpr int kMaxByte = 3 << 2 * (kInPlace - 1), kMaxCode = 3;
    static constexpr bool kTwoBits = true, kMinima = true, kHasCodes = true;

    static void decode(const uint8_t* step, int part, int, VI* w) {
        const VI v = i_load(step + 4 * kLanes * part), high = i_shr<4>(v);
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f)
            w[f] = i_and(f < kInPlace ? v : high,
                         i_set1(static_cast<int32_t>(0x03030303u << 2 * (f % kInPlace))));
        if (kInPlace == 3) w[3] = b_shr<6>(v);
    }
    static void codes(const uint8_t* step, int part, int, VI* w) {
        const VI v = i_load(step + 4 * kLanes * part), mask = i_set1(0x03030303);
        w[0] = i_and(v, mask);
        w[1] = i_and(i_shr<2>(v), mask);
        w[2] = i_and(i_shr<4>(v), mask);
        w[3] = i_and(i_shr<6>(v), mask);
    }
    static VI settle(VI acc, int row_block) {
        switch (row_block % kInPlace) {
            case 0:
                return acc;
            case 1:
                return i_sar<2>(acc);
            case 2:
                return i_sar<4>(acc);
            default:
                return i_sar<6>(acc);
        }
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<b2>(a, [](uint8_t* out, const PackBlock<b2>& block, int64_t k) {
            const uint32_t* codes = block.at(k);
            for (int r = 0; r < 16; ++r) {
                uint32_t line = 0;
                for (int f = 0; f < 4; ++f) line |= codes[16 * f + r] << (2 * f);
                __builtin_memcpy(out + 4 * r, &line, 4);
            }
        });
    }
    static bool valid(const uint8_t* codes, int64_t bytes, int max_code) {
        const AboveTwoBits above(max_code);
        if (above.none) return true;
        uint64_t found = 0, eight;
        int64_t i = 0;
        for (; i + 8 <= bytes; i += 8) {
            __builtin_memcpy(&eight, codes + i, 8);
            found |= above(eight >> 1, eight) & 0x5555555555555555u;
        }
        for (; i < bytes; ++i) found |= above(codes[i] >> 1, codes[i]) & 0x55u;
        return found == 0;
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<b2>);
        for (int64_t k = 0; k < a.K; ++k) {
            const uint8_t byte = step_of<b2>(a, k)[4 * (in_tile % 16) + k % 4];
            a.out[k] = static_cast<float>((byte >> (2 * (in_tile / 16))) & 3);
        }
    }
};

}  // namespace
