// f16: a step is one k of 64 rows, two 64-byte lines of 32 rows.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct f16 : FloatDot<f16> {
    static constexpr const char* kName = "f16";
    static constexpr int kPlanes = 2;
    static constexpr int kStepK = 1, kStepBytes = 128;

    static VF decode_row_block(const uint8_t* lines, int part, int) {
        return f_load_f16(reinterpret_cast<const uint16_t*>(lines) + kLanes * part);
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<f16>(a, [](uint8_t* out, const PackBlock<f16>& block, int64_t k) {
            const uint32_t* pairs = block.at(k);
            uint16_t step[kTileRows<f16>];
            for (int r = 0; r < kTileRows<f16>; ++r)
                step[r] = static_cast<uint16_t>(pairs[r] >> (16 * (k % 2)));
            __builtin_memcpy(out, step, kStepBytes);
        });
    }
    static void row(const sterna::RowArgs& a) {
        float lanes[kLanes];
        uint16_t half[kLanes] = {};
        for (int64_t k = 0; k < a.K; ++k) {
            __builtin_memcpy(half, step_of<f16>(a, k) + 2 * (a.row % kTileRows<f16>), 2);
            f_store(lanes, f_load_f16(half));
            a.out[k] = lanes[0];
        }
    }
};

}  // namespace
