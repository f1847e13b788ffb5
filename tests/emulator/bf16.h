// A float rounded to bf16 as VCVTNE2PS2BF16 does: half to even, denormals become 0.
#pragma once
#include <stdint.h>

namespace {

inline uint16_t to_bf16(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet
    if (magnitude < 0x00800000) return static_cast<uint16_t>(bits >> 16 & 0x8000);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace
