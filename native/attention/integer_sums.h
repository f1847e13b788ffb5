// Sums of int16 products that outgrow int32, as 4096 * high + low.
#pragma once
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

inline void add_parts(VI* high, VI* low, VI sum) {
    *high = i_add(*high, i_sar<12>(sum));
    *low = i_add(*low, i_and(sum, i_set1(4095)));
}

// Returns (4096 * high + low) * scale for a sum below 2^36, rounded once.
inline VF scaled_parts(VI high, VI low, float scale) {
    const VF h = f_from_i(i_add(high, i_sar<12>(low)));
    const VF l = f_from_i(i_and(low, i_set1(4095)));
    return f_mul(f_fma(h, f_set1(4096.0f), l), f_set1(scale));
}

}  // namespace
