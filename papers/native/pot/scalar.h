// requires: | rank: 0 | flags:
// One lane, plain C++: every machine.
#pragma once
#include <cstdint>

#define STERNA_POT_UNROLLS(U) STERNA_POT_UNROLLS_8(U)

namespace {

constexpr int kLanes = 1;
using VF = float;
using VI = uint32_t;

// A vector of one lane has all of them or is not read.
struct All {};
struct First {
    explicit First(int64_t) {}
};

inline VI i_set1(uint32_t v) { return v; }
inline VF f_zero() { return 0.0f; }
inline VI as_i(VF v) { return __builtin_bit_cast(uint32_t, v); }
inline VF as_f(VI v) { return __builtin_bit_cast(float, v); }
inline VF f_add(VF a, VF b) { return a + b; }
inline VF f_mul(VF a, VF b) { return a * b; }
// Only where the product is exact, so that rounding it changes nothing.
inline VF f_fma(VF a, VF b, VF c) { return a * b + c; }
inline VI i_add(VI a, VI b) { return a + b; }
inline VI i_and(VI a, VI b) { return a & b; }
inline VI i_or(VI a, VI b) { return a | b; }
inline VI i_mul(VI a, VI b) { return a * b; }
inline VI i_half(VI v) { return v >> 1; }
inline float f_sum(VF v) { return v; }
inline uint32_t i_sum(VI v) { return v; }
inline uint32_t i_any(VI v) { return v; }

template <class Part>
inline VF load(const float* p, Part) {
    return *p;
}
template <class Part>
inline VI load(const int32_t* p, Part) {
    return static_cast<uint32_t>(*p);
}
template <class Part>
inline VI load(const uint32_t* p, Part) {
    return *p;
}

// Addends: sign << 31 | exponent << 23, of element k.
template <class Part>
inline VI addends8(const uint8_t* row, int64_t k, Part) {
    return (row[k] & 0x80u) << 24 | (row[k] & 31u) << 23;
}
template <class Part>
inline VI addends16(const uint16_t* row, int64_t k, Part) {
    return static_cast<uint32_t>(row[k]) << 16;
}
template <class Part>
inline VI addends4(const uint8_t* row, int64_t k, Part) {
    const uint32_t code = row[k / 2] >> (k % 2 * 4);
    return (code & 8) << 28 | (code & 7) << 23;
}

// sign * (x << exponent)
struct Shift {
    VI code;
    Shift() = default;
    explicit Shift(VI c) : code(c) {}
    VI of(VI x) const {
        const VI shifted = x << (code & 31);
        return code >> 31 ? 0u - shifted : shifted;
    }
};

}  // namespace
