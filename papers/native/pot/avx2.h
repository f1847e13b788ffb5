// on: x86_64 | requires: avx2,fma | rank: 1 | flags: -mavx2 -mfma
// 256-bit vectors.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define STERNA_POT_UNROLLS(U) STERNA_POT_UNROLLS_8(U)

namespace {

constexpr int kLanes = 8;
using VF = __m256;
using VI = __m256i;

// The lanes of a vector that are read: all, or the first ones; the others are then 0.
struct All {};
struct First {
    int n;  // 0..8
    explicit First(int64_t count) : n(static_cast<int>(count)) {}
    VI mask() const {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    }
};

inline VI i_set1(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
inline VF f_zero() { return _mm256_setzero_ps(); }
inline VI as_i(VF v) { return _mm256_castps_si256(v); }
inline VF as_f(VI v) { return _mm256_castsi256_ps(v); }
inline VF f_add(VF a, VF b) { return _mm256_add_ps(a, b); }
inline VF f_mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
inline VF f_fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VI i_add(VI a, VI b) { return _mm256_add_epi32(a, b); }
inline VI i_and(VI a, VI b) { return _mm256_and_si256(a, b); }
inline VI i_or(VI a, VI b) { return _mm256_or_si256(a, b); }
inline VI i_mul(VI a, VI b) { return _mm256_mullo_epi32(a, b); }
inline VI i_half(VI v) { return _mm256_srli_epi32(v, 1); }
inline float f_sum(VF v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline uint32_t i_sum(VI v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1))));
}
inline uint32_t i_any(VI v) {
    __m128i s = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_or_si128(s, _mm_shuffle_epi32(s, 0x4E));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_or_si128(s, _mm_shuffle_epi32(s, 0xB1))));
}

// The first `bytes` (at most 16) of a row; a masked load of bytes does not exist here.
inline __m128i first_bytes(const void* p, int bytes) {
    alignas(16) uint8_t part[16] = {};
    for (int i = 0; i < bytes; ++i) part[i] = static_cast<const uint8_t*>(p)[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
}

inline VF load(const float* p, All) { return _mm256_loadu_ps(p); }
inline VF load(const float* p, First f) { return _mm256_maskload_ps(p, f.mask()); }
inline VI load(const int32_t* p, All) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline VI load(const int32_t* p, First f) { return _mm256_maskload_epi32(p, f.mask()); }
template <class Part>
inline VI load(const uint32_t* p, Part part) {
    return load(reinterpret_cast<const int32_t*>(p), part);
}

// Addends: sign << 31 | exponent << 23, of the elements from k on.

// Unpacking 1: bytes widened to dwords. Their sign extension puts the sign into bit 31; the copy in
// bit 30 has to go.
inline VI addends8(__m128i bytes) {
    return i_and(_mm256_slli_epi32(_mm256_cvtepi8_epi32(bytes), 23), i_set1(0x8F800000));
}
inline VI addends8(const uint8_t* row, int64_t k, All) {
    return addends8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + k)));
}
inline VI addends8(const uint8_t* row, int64_t k, First f) {
    return addends8(first_bytes(row + k, f.n));
}

// Unpacking 2 without a permutation of words: widened, then shifted to the upper half.
inline VI addends16(__m128i words) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16); }
inline VI addends16(const uint16_t* row, int64_t k, All) {
    return addends16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + k)));
}
inline VI addends16(const uint16_t* row, int64_t k, First f) {
    return addends16(first_bytes(row + k, 2 * f.n));
}

// Eight nibbles of a dword, each shifted to the top of its lane, then down with its sign.
inline VI addends4(__m128i dword) {
    const VI shift = _mm256_set_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const VI top = _mm256_sllv_epi32(_mm256_broadcastd_epi32(dword), shift);
    return i_and(_mm256_srai_epi32(top, 5), i_set1(0x83800000));
}
inline VI addends4(const uint8_t* row, int64_t k, All) {
    return addends4(_mm_loadu_si32(row + k / 2));
}
inline VI addends4(const uint8_t* row, int64_t k, First f) {
    // What pads the last byte counts for nothing.
    return i_and(addends4(first_bytes(row + k / 2, (f.n + 1) / 2)), f.mask());
}

// sign * (x << exponent)
struct Shift {
    VI exponent, sign;
    Shift() = default;
    explicit Shift(VI code) : exponent(i_and(code, i_set1(31))), sign(i_or(code, i_set1(1))) {}
    VI of(VI x) const { return _mm256_sign_epi32(_mm256_sllv_epi32(x, exponent), sign); }
};

}  // namespace
