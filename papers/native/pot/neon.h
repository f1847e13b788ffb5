// on: aarch64 | requires: | rank: 1 | flags:
// 128-bit vectors of every AArch64 CPU.
#pragma once
#include <arm_neon.h>

#include <cstdint>

// 32 registers, as AVX-512 has.
#define STERNA_POT_UNROLLS(U) STERNA_POT_UNROLLS_16(U)

namespace {

constexpr int kLanes = 4;
using VF = float32x4_t;
using VI = uint32x4_t;

// The lanes of a vector that are read: all, or the first ones; the others are then 0.
struct All {};
struct First {
    int n;  // 0..4
    explicit First(int64_t count) : n(static_cast<int>(count)) {}
    VI mask() const {
        constexpr uint32_t kPlaces[4] = {0, 1, 2, 3};
        return vcltq_u32(vld1q_u32(kPlaces), vdupq_n_u32(static_cast<uint32_t>(n)));
    }
};

inline VI i_set1(uint32_t v) { return vdupq_n_u32(v); }
inline VF f_zero() { return vdupq_n_f32(0.0f); }
inline VI as_i(VF v) { return vreinterpretq_u32_f32(v); }
inline VF as_f(VI v) { return vreinterpretq_f32_u32(v); }
inline VF f_add(VF a, VF b) { return vaddq_f32(a, b); }
inline VF f_mul(VF a, VF b) { return vmulq_f32(a, b); }
inline VF f_fma(VF a, VF b, VF c) { return vfmaq_f32(c, a, b); }
inline VI i_add(VI a, VI b) { return vaddq_u32(a, b); }
inline VI i_and(VI a, VI b) { return vandq_u32(a, b); }
inline VI i_or(VI a, VI b) { return vorrq_u32(a, b); }
inline VI i_mul(VI a, VI b) { return vmulq_u32(a, b); }
inline VI i_half(VI v) { return vshrq_n_u32(v, 1); }
inline float f_sum(VF v) { return vaddvq_f32(v); }
inline uint32_t i_sum(VI v) { return vaddvq_u32(v); }
inline uint32_t i_any(VI v) {
    const uint32x2_t half = vorr_u32(vget_low_u32(v), vget_high_u32(v));
    return vget_lane_u32(half, 0) | vget_lane_u32(half, 1);
}

// The first `count` (at most 4) words of a row, and zeros.
template <class T>
inline void first(const T* p, int count, T (&part)[4]) {
    for (int i = 0; i < 4; ++i) part[i] = i < count ? p[i] : T{};
}

inline VF load(const float* p, All) { return vld1q_f32(p); }
inline VI load(const uint32_t* p, All) { return vld1q_u32(p); }
inline VF load(const float* p, First f) {
    float part[4];
    first(p, f.n, part);
    return vld1q_f32(part);
}
inline VI load(const uint32_t* p, First f) {
    uint32_t part[4];
    first(p, f.n, part);
    return vld1q_u32(part);
}
template <class Part>
inline VI load(const int32_t* p, Part part) {
    return load(reinterpret_cast<const uint32_t*>(p), part);
}

// Addends: sign << 31 | exponent << 23, of the elements from k on.

// Unpacking 1: bytes widened to dwords. Their sign extension puts the sign into bit 31; the copy in
// bit 30 has to go.
inline VI addends8(uint32_t bytes) {
    const int16x4_t words = vget_low_s16(vmovl_s8(vcreate_s8(bytes)));
    return vandq_u32(vshlq_n_u32(vreinterpretq_u32_s32(vmovl_s16(words)), 23), i_set1(0x8F800000));
}
inline VI addends8(const uint8_t* row, int64_t k, All) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, row + k, 4);
    return addends8(bytes);
}
inline VI addends8(const uint8_t* row, int64_t k, First f) {
    uint8_t part[4];
    first(row + k, f.n, part);
    return addends8(part, 0, All());
}

// Unpacking 2: widened and shifted to the upper half by one instruction.
inline VI addends16(const uint16_t* row, int64_t k, All) {
    return vshll_n_u16(vld1_u16(row + k), 16);
}
inline VI addends16(const uint16_t* row, int64_t k, First f) {
    uint16_t part[4];
    first(row + k, f.n, part);
    return addends16(part, 0, All());
}

// Four nibbles of a word, each shifted to the top of its lane, then down with its sign.
inline VI addends4(uint32_t word) {
    constexpr int32_t kShifts[4] = {28, 24, 20, 16};
    const int32x4_t top = vreinterpretq_s32_u32(vshlq_u32(vdupq_n_u32(word), vld1q_s32(kShifts)));
    return vandq_u32(vreinterpretq_u32_s32(vshrq_n_s32(top, 5)), i_set1(0x83800000));
}
inline VI addends4(const uint8_t* row, int64_t k, All) {
    uint16_t word;
    __builtin_memcpy(&word, row + k / 2, 2);
    return addends4(word);
}
inline VI addends4(const uint8_t* row, int64_t k, First f) {
    uint8_t part[4];
    first(row + k / 2, (f.n + 1) / 2, part);
    // What pads the last byte counts for nothing.
    return vandq_u32(addends4(part, 0, All()), f.mask());
}

// sign * (x << exponent)
struct Shift {
    int32x4_t exponent;
    VI negative;
    Shift() = default;
    explicit Shift(VI code)
        : exponent(vreinterpretq_s32_u32(vandq_u32(code, i_set1(31)))),
          negative(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(code), 31))) {}
    VI of(VI x) const { return vsubq_u32(veorq_u32(vshlq_u32(x, exponent), negative), negative); }
};

}  // namespace
