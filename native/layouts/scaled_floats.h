// Small floats with a float32 for each row and kGroup k: what layouts of scaled floats share.
//
// A step is kGroup consecutive k of 64 rows. For each row block it has 64 bytes with the scales of its 16 rows, then
// its codes. A weight is code * scale, rounded once to float32: the product is of a float that `Codes` makes of a code
// and of the stored scale, which has the inverse of a power of two that this float has for the decoder's ease. All that
// follows is as in f32, with the same bits.
#pragma once
#include "layouts/layout.h"
#include "layouts/packing.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// `Codes` says how a row block's codes lie: kBytes for 16 rows x kGroup k, decode(codes, part, j) as a float, and for one
// row put(codes, row, j, code) and value(codes, row, j).
template <class F, class Codes, int kGroup>
struct ScaledFloats : FloatDot<F> {
    // No kPlanes: three of bf16 gain little over vectors, and a matrix unit's arithmetic takes denormals for 0.
    static constexpr int kScaleBytes = 4 * sterna::kRowBlock;
    static constexpr int kBlockBytes = kScaleBytes + Codes::kBytes;
    static constexpr int kStepK = kGroup, kStepBytes = kFloatRowBlocks * kBlockBytes;

    static VF decode_row_block(const uint8_t* lines, int part, int j) {
        const VF scale = f_load(reinterpret_cast<const float*>(lines) + kLanes * part);
        return f_mul(Codes::decode(lines + kScaleBytes, part, j), scale);
    }
    // A source word is a code, and above it a byte of the scale: of the first four k of a group.
    static void pack(const sterna::PackArgs& a) {
        pack_steps<F>(a, [](uint8_t* out, const PackBlock<F>& block, int64_t k) {
            __builtin_memset(out, 0, kStepBytes);
            for (int r = 0; r < kTileRows<F>; ++r) {
                uint8_t* lines = out + r / sterna::kRowBlock * kBlockBytes;
                const int row = r % sterna::kRowBlock;
                for (int j = 0; j < kGroup; ++j) {
                    const uint32_t word = block.at(k + j)[r] >> (16 * (j % 2));
                    Codes::put(lines + kScaleBytes, row, j, static_cast<uint8_t>(word));
                    if (j < 4) lines[4 * row + j] = static_cast<uint8_t>(word >> 8);
                }
            }
        });
    }
    static void row(const sterna::RowArgs& a) {
        const int in_tile = static_cast<int>(a.row % kTileRows<F>);
        const int row = in_tile % sterna::kRowBlock;
        for (int64_t k = 0; k < a.K; ++k) {
            const uint8_t* lines = step_of<F>(a, k) + in_tile / sterna::kRowBlock * kBlockBytes;
            float scale;
            __builtin_memcpy(&scale, lines + 4 * row, 4);
            a.out[k] = Codes::value(lines + kScaleBytes, row, static_cast<int>(k % kGroup)) * scale;
        }
    }
};

}  // namespace
