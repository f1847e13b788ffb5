// Sums of int16 products that outgrow int32, as 4096 * high + low.
#pragma once
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

constexpr int kLowBits = 12;
constexpr int32_t kLow = (1 << kLowBits) - 1;

// Returns (4096 * high + low) * scale for a sum below 2^36, rounded once.
inline VF scaled_parts(VI high, VI low, float scale) {
    const VF h = f_from_i(i_add(high, i_sar<kLowBits>(low)));
    const VF l = f_from_i(i_and(low, i_set1(kLow)));
    return f_mul(f_fma(h, f_set1(kLow + 1.0f), l), f_set1(scale));
}

}  // namespace
