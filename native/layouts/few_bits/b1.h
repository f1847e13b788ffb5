// b1: one-bit codes, eight row blocks in place in every byte.
//
// A step is 4 consecutive k of 128 rows, one 64-byte line:
//   byte 4*r + j, r = 0..15, j = 0..3:   bit f = row 16*f + r at k + j
// As in b2 a field stays where it is, or in its nibble: the accumulator of row block f holds
// sum(code * 2^f * x), or 2^(f % 4). Where dot() takes signed bytes the last one is moved down alone.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct b1 : IntegerDot {
    static constexpr const char* kName = "b1";
    static constexpr int kRowBlocks = 8, kStepK = 4, kStepBytes = 64;
    static constexpr int kInPlace = kPairSums16 ? 4 : kSignedDot ? 7 : 8;  // fields
    static constexpr int kMaxByte = 1 << (kInPlace - 1), kMaxCode = 1;
    static constexpr bool kHasCodes = true;

    static void decode(const uint8_t* step, int part, int, VI* w) {
        const VI v = i_load(step + 4 * kLanes * part), high = i_shr<4>(v);
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f)
            w[f] = i_and(f < kInPlace ? v : high,
                         i_set1(static_cast<int32_t>(0x01010101u << f % kInPlace)));
        if (kInPlace == 7) w[7] = b_shr<7>(v);
    }
    static void codes(const uint8_t* step, int part, int, VI* w) {
        const VI v = i_load(step + 4 * kLanes * part), mask = i_set1(0x01010101);
        w[0] = i_and(v, mask);
        w[1] = i_and(i_shr<1>(v), mask);
        w[2] = i_and(i_shr<2>(v), mask);
        w[3] = i_and(i_shr<3>(v), mask);
        w[4] = i_and(i_shr<4>(v), mask);
        w[5] = i_and(i_shr<5>(v), mask);
        w[6] = i_and(i_shr<6>(v), mask);
        w[7] = i_and(i_shr<7>(v), mask);
    }
    static VI settle(VI acc, int row_block) {
        switch (row_block % kInPlace) {
            case 0:
                return acc;
            case 1:
                return i_sar<1>(acc);
            case 2:
                return i_sar<2>(acc);
            case 3:
                return i_sar<3>(acc);
            case 4:
                return i_sar<4>(acc);
            case 5:
                return i_sar<5>(acc);
            case 6:
                return i_sar<6>(acc);
            default:
                return i_sar<7>(acc);
        }
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<b1>(a, [](uint8_t* out, const PackBlock<b1>& block, int64_t k) {
            const uint32_t* codes = block.at(k);
            for (int r = 0; r < 16; ++r) {
                uint32_t line = 0;
                for (int f = 0; f < kRowBlocks; ++f) line |= codes[16 * f + r] << f;
                __builtin_memcpy(out + 4 * r, &line, 4);
            }
        });
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<b1>);
        for (int64_t k = 0; k < a.K; ++k) {
            const uint8_t byte = step_of<b1>(a, k)[4 * (in_tile % 16) + k % 4];
            a.out[k] = static_cast<float>((byte >> (in_tile / 16)) & 1);
        }
    }
};

}  // namespace
