// f32: a step is one k of 64 rows, four 64-byte lines of 16 rows.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct f32 : FloatDot<f32> {
    static constexpr const char* kName = "f32";
    static constexpr int kPlanes = 3;
    static constexpr int kStepK = 1, kStepBytes = 256, kSourceBytes = 4;

    static VF decode_row_block(const uint8_t* lines, int part, int) {
        return f_load(reinterpret_cast<const float*>(lines) + kLanes * part);
    }
    static void pack(const sterna::PackArgs& a) {
        pack_steps<f32>(a, [](uint8_t* out, const PackBlock<f32>& block, int64_t k) {
            __builtin_memcpy(out, block.at(k), kStepBytes);
        });
    }
    static void row(const sterna::RowArgs& a) {
        for (int64_t k = 0; k < a.K; ++k)
            __builtin_memcpy(a.out + k, step_of<f32>(a, k) + 4 * (a.row % kTileRows<f32>), 4);
    }
};

}  // namespace
