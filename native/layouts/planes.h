// Codes of three, five and six bits: the low bits lie as in b2 and b4, the high ones in a bit plane.
//
// A step is as many k of 64 rows as fill a line of the plane: 8 where it has one bit, 4 where two. First come
// the lines of low bits, for four k after four, then the plane. Of row 16*f + r at k + j, j < 4:
//   low bits     2: byte 4*r + j of the line, from bit 2*f
//                4: byte 4*r + j of line f / 2, from bit 4*(f % 2)
//   high bits    1: bit f of byte 4*r + j, for k + 4 + j bit 4 + f
//                2: byte 4*r + j, from bit 2*f
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Bits moved down by n, or up.
template <int n>
inline VI moved_down(VI v) {
    if constexpr (n > 0) {
        return i_shr<n>(v);
    } else if constexpr (n < 0) {
        return i_shl<-n>(v);
    } else {
        return v;
    }
}

// kLow 2 or 4 bits, and kHigh 1 or 2; for super-blocks with groups of kSpan k, in which kZero is level 0.
template <int kLow, int kHigh, int kSpan, int kZero>
struct BitPlanes : IntegerDot {
    static constexpr int kRowBlocks = 4, kStepK = 8 / kHigh;
    static constexpr int kLines = kLow / 2;  // lines of the low bits of four k
    static constexpr int kPlane = kStepK / 4 * kLines * 64;  // where the plane starts
    static constexpr int kStepBytes = kPlane + 64;
    static constexpr int kSuperGroup = kSpan, kSuperOffset = kZero, kSuperBits = kLow + kHigh;
    static constexpr bool kEvenOffset = true, kRowScales = false, kGroupScales = false;
    static constexpr uint32_t kLowMask = (1 << kLow) - 1, kHighMask = ((1 << kHigh) - 1) << kLow;
    // Three bits leave room for a run of a group in int16; else int32 it is.
    static constexpr int kMaxByte = static_cast<int>(kLowMask | kHighMask);
    static constexpr bool kRuns = kSpan / 4 <= kRunSteps<kMaxByte>;

    // The position of the bits of field f of quad q.
    static constexpr int line_of(int q, int f) { return 64 * (q * kLines + f * kLow / 8); }
    static constexpr int low_bit(int f) { return f * kLow % 8; }
    static constexpr int high_bit(int q, int f) { return kHigh == 1 ? 4 * q + f : 2 * f; }

    template <int q, int f>
    static VI field(const uint8_t* step, VI plane) {
        const VI low_mask = i_set1(static_cast<int32_t>(kLowMask * 0x01010101u));
        const VI high_mask = i_set1(static_cast<int32_t>(kHighMask * 0x01010101u));
        const VI high = i_and(moved_down<high_bit(q, f) - kLow>(plane), high_mask);
        return i_or(i_and(moved_down<low_bit(f)>(i_load(step + line_of(q, f))), low_mask), high);
    }
    template <int q>
    static void quad(const uint8_t* step, VI plane, VI* w) {
        w[0] = field<q, 0>(step, plane);
        w[1] = field<q, 1>(step, plane);
        w[2] = field<q, 2>(step, plane);
        w[3] = field<q, 3>(step, plane);
    }
    static void decode(const uint8_t* step, int part, int j, VI* w) {
        step += 4 * kLanes * part;
        const VI plane = i_load(step + kPlane);
        if constexpr (kStepK == 8) {
            if (j) return quad<1>(step, plane, w);
        }
        quad<0>(step, plane, w);
    }

    template <class F>
    static void pack_planes(const sterna::PackArgs& a) {
        pack_steps<F>(a, [](uint8_t* out, const PackBlock<F>& block, int64_t k) {
            __builtin_memset(out, 0, kStepBytes);
            for (int q = 0; q < kStepK / 4; ++q)
                for (int f = 0; f < kRowBlocks; ++f)
                    for (int r = 0; r < 16; ++r) {
                        const uint32_t codes = block.at(k + 4 * q)[16 * f + r];
                        const uint32_t low = codes & kLowMask * 0x01010101u;
                        const uint32_t high = (codes & kHighMask * 0x01010101u) >> kLow;
                        add_bits(out + line_of(q, f) + 4 * r, low << low_bit(f));
                        add_bits(out + kPlane + 4 * r, high << high_bit(q, f));
                    }
        });
    }
    template <class F>
    static void row_of_planes(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<F>), f = in_tile / 16;
        for (int64_t k = 0; k < a.K; ++k) {
            const uint8_t* step = step_of<F>(a, k);
            const int q = static_cast<int>(k % kStepK / 4);
            const int64_t at = 4 * (in_tile % 16) + k % 4;
            const uint32_t low = step[line_of(q, f) + at] >> low_bit(f) & kLowMask;
            const uint32_t high = static_cast<uint32_t>(step[kPlane + at]) >> high_bit(q, f);
            a.out[k] = static_cast<float>(low | (high << kLow & kHighMask));
        }
    }

  private:
    static void add_bits(uint8_t* to, uint32_t bits) {
        uint32_t line;
        __builtin_memcpy(&line, to, 4);
        line |= bits;
        __builtin_memcpy(to, &line, 4);
    }
};

}  // namespace
