// The exponents of activations, which decide how a power of two may be multiplied.
#pragma once
#include <cstdint>

namespace {

constexpr uint32_t kExponentBits = 0x7F800000;

// The least and the greatest exponent field of the activations of a block.
struct Range {
    uint32_t low, high;
    // Whether adding e <= most to any of these exponents is a multiplication.
    bool normal() const { return low > 0; }
    bool fits(uint32_t most) const { return high + most <= 254; }
};

// A plain loop, which compilers vectorise; it costs 1 / M of the product.
inline Range range_of(const float* x, int64_t count) {
    uint32_t low = kExponentBits, high = 0;
    for (int64_t k = 0; k < count; ++k) {
        const uint32_t e = __builtin_bit_cast(uint32_t, x[k]) & kExponentBits;
        low = e < low ? e : low;
        high = e > high ? e : high;
    }
    return {low >> 23, high >> 23};
}

}  // namespace
