// The Hadamard transform of a row, in blocks: sums and differences alone, in one order, so that units agree.
#pragma once
#include "vocabulary.h"

namespace {

// The stages of a block that stay within a vector: lanes i and i ^ half, the halves in ascending order.
template <int half = 1>
inline VF butterflies(VF x, int64_t block) {
    if constexpr (half >= kLanes) {
        return x;
    } else {
        if (half >= block) return x;
        float sign[kLanes];
        for (int i = 0; i < kLanes; ++i) sign[i] = i & half ? -1.0f : 1.0f;
        // x_i + x_j in the lower lane, x_i - x_j in the upper one: a product by -1 is exact.
        return butterflies<2 * half>(f_add(f_swap<half>(x), f_mul(x, f_load(sign))), block);
    }
}

// x <- Hx in blocks, H the Hadamard matrix (+-1) of `block`, a power of two that divides n. n: a multiple of 16.
inline void hadamard(float* x, int64_t n, int64_t block) {
    for (int64_t i = 0; i < n; i += kLanes) f_store(x + i, butterflies(f_load(x + i), block));
    for (int64_t half = kLanes; half < block; half *= 2)
        for (int64_t at = 0; at < n; at += 2 * half)
            for (int64_t i = at; i < at + half; i += kLanes) {
                const VF u = f_load(x + i), v = f_load(x + i + half);
                f_store(x + i, f_add(u, v));
                f_store(x + i + half, f_sub(u, v));
            }
}

}  // namespace
