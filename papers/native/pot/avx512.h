// on: x86_64 | requires: avx2,fma,avx512f,avx512bw,avx512dq,avx512vl | rank: 2 | flags: -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
// 512-bit vectors: Skylake-X, Zen 4 and later.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define STERNA_POT_UNROLLS(U) STERNA_POT_UNROLLS_16(U)

namespace {

constexpr int kLanes = 16;
using VF = __m512;
using VI = __m512i;

// The lanes of a vector that are read: all, or the first ones; the others are then 0.
struct All {};
struct First {
    __mmask16 mask;
    explicit First(int64_t n) : mask(static_cast<__mmask16>((1u << n) - 1)) {}  // n: 0..16
};

inline VI i_set1(uint32_t v) { return _mm512_set1_epi32(static_cast<int>(v)); }
inline VF f_zero() { return _mm512_setzero_ps(); }
inline VI as_i(VF v) { return _mm512_castps_si512(v); }
inline VF as_f(VI v) { return _mm512_castsi512_ps(v); }
inline VF f_add(VF a, VF b) { return _mm512_add_ps(a, b); }
inline VF f_mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
inline VF f_fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
inline VI i_add(VI a, VI b) { return _mm512_add_epi32(a, b); }
inline VI i_and(VI a, VI b) { return _mm512_and_si512(a, b); }
inline VI i_or(VI a, VI b) { return _mm512_or_si512(a, b); }
inline VI i_mul(VI a, VI b) { return _mm512_mullo_epi32(a, b); }
inline VI i_half(VI v) { return _mm512_srli_epi32(v, 1); }
inline float f_sum(VF v) { return _mm512_reduce_add_ps(v); }
inline uint32_t i_sum(VI v) { return static_cast<uint32_t>(_mm512_reduce_add_epi32(v)); }
inline uint32_t i_any(VI v) { return static_cast<uint32_t>(_mm512_reduce_or_epi32(v)); }

inline VF load(const float* p, All) { return _mm512_loadu_ps(p); }
inline VF load(const float* p, First f) { return _mm512_maskz_loadu_ps(f.mask, p); }
inline VI load(const int32_t* p, All) { return _mm512_loadu_si512(p); }
inline VI load(const int32_t* p, First f) { return _mm512_maskz_loadu_epi32(f.mask, p); }
inline VI load(const uint32_t* p, All) { return _mm512_loadu_si512(p); }
inline VI load(const uint32_t* p, First f) { return _mm512_maskz_loadu_epi32(f.mask, p); }

// Addends: sign << 31 | exponent << 23, of the elements from k on.

// Unpacking 1: bytes widened to dwords. Their sign extension puts the sign into bit 31; the copy in
// bit 30 has to go.
inline VI addends8(__m128i bytes) {
    return i_and(_mm512_slli_epi32(_mm512_cvtepi8_epi32(bytes), 23), i_set1(0x8F800000));
}
inline VI addends8(const uint8_t* row, int64_t k, All) {
    return addends8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + k)));
}
inline VI addends8(const uint8_t* row, int64_t k, First f) {
    return addends8(_mm_maskz_loadu_epi8(f.mask, row + k));
}

// Unpacking 2: word i goes to the upper half of dword i; the mask, not an index, clears the lower.
inline VI addends16(__m256i words) {
    const __m512i index = _mm512_slli_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
    return _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, index, _mm512_castsi256_si512(words));
}
inline VI addends16(const uint16_t* row, int64_t k, All) {
    return addends16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + k)));
}
inline VI addends16(const uint16_t* row, int64_t k, First f) {
    return addends16(_mm256_maskz_loadu_epi16(f.mask, row + k));
}

// Eight nibbles a dword, shifted down to their lanes; the permutation reads the low four bits of each
// lane alone and is a table of all sixteen codes.
inline VI addends4(VI dwords) {
    const VI shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const VI e =
        _mm512_slli_epi32(_mm512_set_epi32(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0), 23);
    const VI table = _mm512_mask_or_epi32(e, 0xFF00, e, i_set1(0x80000000));
    return _mm512_permutexvar_epi32(_mm512_srlv_epi32(dwords, shift), table);
}
inline VI addends4(const uint8_t* row, int64_t k, All) {
    const __m128i low = _mm_loadu_si32(row + k / 2), high = _mm_loadu_si32(row + k / 2 + 4);
    return addends4(_mm512_mask_broadcastd_epi32(_mm512_broadcastd_epi32(low), 0xFF00, high));
}
inline VI addends4(const uint8_t* row, int64_t k, First f) {
    const int bytes = (__builtin_popcount(f.mask) + 1) / 2;
    const __m128i part =
        _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << bytes) - 1), row + k / 2);
    const VI low = _mm512_broadcastd_epi32(part);
    const VI both = _mm512_mask_broadcastd_epi32(low, 0xFF00, _mm_srli_epi64(part, 32));
    // What pads the last byte counts for nothing.
    return _mm512_maskz_mov_epi32(f.mask, addends4(both));
}

// sign * (x << exponent)
struct Shift {
    VI exponent;
    __mmask16 negative;
    Shift() = default;
    explicit Shift(VI code)
        : exponent(i_and(code, i_set1(31))), negative(_mm512_movepi32_mask(code)) {}
    VI of(VI x) const {
        const VI shifted = _mm512_sllv_epi32(x, exponent);
        return _mm512_mask_sub_epi32(shifted, negative, _mm512_setzero_si512(), shifted);
    }
};

}  // namespace
