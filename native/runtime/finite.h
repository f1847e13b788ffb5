// Numbers that are not finite, which are found by their exponents.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sterna {

// Whether any of `count` values of 1, 2 or 4 bytes has all bits of `exponent` set (infinite or NaN).
bool any_has_exponent(const void* values, int64_t count, size_t element, uint32_t exponent);

// As float32 has them.
constexpr uint32_t kFloatExponent = 0x7F800000;

}  // namespace sterna
