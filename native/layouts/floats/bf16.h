// bf16: a step is two consecutive k of 64 rows, four 64-byte lines of 16 rows; a dword holds k in
// its low half and k + 1 in its high half.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct bf16 : FloatDot<bf16> {
    static constexpr const char* kName = "bf16";
    static constexpr int kPlanes = 1;
    static constexpr int kStepK = 2, kStepBytes = 256;
    static constexpr bool kBf16Tiles = true, kBf16Steps = true;

    static VF decode_row_block(const uint8_t* lines, int part, int j) {
        const VI v = i_load(lines + 4 * kLanes * part);
        return f_bits(j == 0 ? i_shl<16>(v) : i_and(v, i_set1(static_cast<int32_t>(0xFFFF0000u))));
    }
    static void decode_bf16(const uint8_t* step, VI* w) {
        STERNA_UNROLL(8)
        for (int f = 0; f < kRowBlocks; ++f) w[f] = i_load(step + 64 * f);
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<bf16>(a, [](uint8_t* out, const PackBlock<bf16>& block, int64_t k) {
            __builtin_memcpy(out, block.at(k), kStepBytes);
        });
    }
    static void row(const sterna::RowArgs& a) {
        for (int64_t k = 0; k < a.K; ++k) {
            uint16_t half;
            __builtin_memcpy(&half, step_of<bf16>(a, k) + 4 * (a.row % kTileRows<bf16>)+2 * (k % 2),
                             2);
            const uint32_t bits = static_cast<uint32_t>(half) << 16;
            __builtin_memcpy(a.out + k, &bits, 4);
        }
    }
};

}  // namespace
