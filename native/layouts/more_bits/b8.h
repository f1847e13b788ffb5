// b8: eight-bit codes, level + 128.
//
// A step is 4 consecutive k of 64 rows, four 64-byte lines: byte 64*f + 4*r + j is row 16*f + r at
// k + j.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct b8 : IntegerDot {
    static constexpr const char* kName = "b8";
    static constexpr int kRowBlocks = 4, kStepK = 4, kStepBytes = 256;
    static constexpr bool kEvenOffset = true, kHasCodes = true;
    static constexpr int kMaxByte = 255;
    static constexpr bool kRuns = false;
    static constexpr int kDirectTokens =
        kFewTokens;  // sums of pairs would not fit a panel's either
    // Where 255 is too great to be multiplied, levels are signed bytes.
    static constexpr int kDecodedOffsetX2 = kSignedBytes ? 256 : 0;
    using Panel = std::conditional_t<kHasWords<VI>, PanelWords,
                                     std::conditional_t<kSignedBytes, PanelLevels<>, AnyCodes>>;

    static VI dot(VI acc, VI w, VX x) {
        return kDecodedOffsetX2 ? dot_signed(acc, w, x) : ::dot(acc, w, x);
    }
    static void decode(const uint8_t* step, int part, int, VI* w) {
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f) {
            w[f] = i_load(step + 64 * f + 4 * kLanes * part);
            if (kDecodedOffsetX2) w[f] = b_add(w[f], i_set1(static_cast<int32_t>(0x80808080)));
        }
    }
    // For a panel.
    static void codes(const uint8_t* step, int part, int j, VI* w) {
        if constexpr (Panel::kWords) {
            STERNA_UNROLL(8)
            for (int f = 0; f < kRowBlocks; ++f)
                w[f] = PanelWords::in_order(i_load(step + 64 * f + 4 * kLanes * part));
        } else {
            decode(step, part, j, w);
        }
    }

    static void pack(const sterna::PackArgs& a) {
        pack_steps<b8>(a, [](uint8_t* out, const PackBlock<b8>& block, int64_t k) {
            __builtin_memcpy(out, block.at(k), kStepBytes);
        });
    }
    static void row(const sterna::RowArgs& a) {
        for (int64_t k = 0; k < a.K; ++k)
            a.out[k] = step_of<b8>(a, k)[4 * (a.row % kTileRows<b8>)+k % 4];
    }
};

}  // namespace
