// Activations as sums of bf16 numbers, for units that multiply those: on vectors (bf16_pairs.h), or in tiles.
#pragma once
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

constexpr int64_t kTileK = 32;  // bf16 numbers of a line

// x = x0 + x1 + x2, exactly if x is normal: each plane is the remainder, rounded to nearest even. If there are several
// planes, the first does not round to infinity, so that every finite x has finite planes.
inline void to_bf16_planes(const sterna::Bf16PlanesArgs& a) {
    const VF limit = f_bits(i_set1(0x7F7F0000)), minus = f_sub(f_set1(0.0f), limit);
    for (int64_t k = 0; k < a.width; k += kTileK) {
        uint16_t* out = a.out + k * a.x_block * a.planes;
        VF x[2] = {f_load(a.x + k), f_load(a.x + k + 16)};
        for (int p = 0; p < a.planes; ++p, out += a.x_block * kTileK) {
            VF plane[2] = {x[0], x[1]};
            if (p + 1 == a.planes) {
                i_store(out, round_bf16(x[0], x[1]));
                continue;
            }
            for (int i = 0; i < 2; ++i) plane[i] = f_max(minus, f_min(limit, x[i]));
            i_store(out, round_bf16(plane[0], plane[1]));
            for (int i = 0; i < 2; ++i) x[i] = f_sub(x[i], widened_bf16(out + 16 * i));
        }
    }
}

}  // namespace
