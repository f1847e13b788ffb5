// The intrinsics of AVX-512, AVX10.2 and AVX-VNNI that kernel units use, made of AVX2, FMA and F16C: a vector of
// 512 bits is two halves. CMake's STERNA_EMULATE includes this file before native/units/kernels.cpp, so that
// the sources of a unit can be tested on a CPU without its instructions. One that is missing here
// does not compile.
//
// Semantics: Intel SDM vol. 2. Float arithmetic, conversions and roundings are the CPU's own.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "bf16.h"

namespace emulated {
namespace {

struct Floats {
    __m256 half[2];
};
struct Integers {
    __m256i half[2];
};

inline Floats join(__m256 low, __m256 high) { return {{low, high}}; }
inline Integers join(__m256i low, __m256i high) { return {{low, high}}; }

// f of both lower and of both upper halves.
template <class F, class... Vectors>
inline auto halves(F f, Vectors... v) {
    return join(f(v.half[0]...), f(v.half[1]...));
}
// An intrinsic of 256 bits, whose lanes are independent or whose operands are 128-bit lanes', as the
// one of 512 bits.
#define STERNA_HALVES(f)                                                              \
    [](auto... vectors) {                                                             \
        return emulated::halves([](auto... half) { return f(half...); }, vectors...); \
    }
// STERNA_HALVES for an instruction with a number that is part of it.
#define STERNA_HALVES_BY(f, v, number) \
    emulated::halves([&](auto half) { return f(half, number); }, v)

// Memory.

inline Floats load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline Integers load(const void* p) {
    const auto* half = static_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)}};
}
inline void store(float* p, Floats a) {
    _mm256_storeu_ps(p, a.half[0]);
    _mm256_storeu_ps(p + 8, a.half[1]);
}
inline void store(void* p, Integers a) {
    auto* half = static_cast<__m256i*>(p);
    _mm256_storeu_si256(half, a.half[0]);
    _mm256_storeu_si256(half + 1, a.half[1]);
}
inline void stream(float* p, Floats a) {
    if (reinterpret_cast<uintptr_t>(p) % 64 != 0) __builtin_trap();  // #GP
    _mm256_stream_ps(p, a.half[0]);
    _mm256_stream_ps(p + 8, a.half[1]);
}

// Widening, narrowing.

template <class F>
inline auto widened(F f, __m128i a) {  // 16 bytes
    return join(f(a), f(_mm_srli_si128(a, 8)));
}
template <class F>
inline auto widened(F f, __m256i a) {
    return join(f(_mm256_castsi256_si128(a)), f(_mm256_extracti128_si256(a, 1)));
}
inline __m256i low_words(Integers a) {  // of each 32 bits the low 16
    const auto packed = [](__m256i half) {
        const __m128i index =
            _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
        const __m256i words = _mm256_shuffle_epi8(half, _mm256_broadcastsi128_si256(index));
        return _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08));
    };
    return _mm256_set_m128i(packed(a.half[1]), packed(a.half[0]));
}
inline __m128i low_bytes(Integers a) {  // of each 32 bits the low 8
    const __m256i bytes = _mm256_and_si256(low_words(a), _mm256_set1_epi16(255));
    return _mm_packus_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
}
template <int rounding>
inline __m256i to_half(Floats a) {
    return _mm256_set_m128i(_mm256_cvtps_ph(a.half[1], rounding),
                            _mm256_cvtps_ph(a.half[0], rounding));
}
inline Integers to_bf16(Floats high, Floats low) {
    uint32_t from[32];
    uint16_t to[32];
    std::memcpy(from, &low, 64);
    std::memcpy(from + 16, &high, 64);
    for (int i = 0; i < 32; ++i) to[i] = ::to_bf16(from[i]);
    return load(to);
}

// Products.

inline __m256i dot_bytes(__m256i acc, __m256i u, __m256i x) {
    // Even and odd bytes apart, as int16: a pair of products is <= 2 * 255 * 128.
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
inline __m256i dot_signed_bytes(__m256i acc, __m256i a, __m256i b) {
    const auto even = [](__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); };
    const auto odd = [](__m256i v) { return _mm256_srai_epi16(v, 8); };
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(even(a), even(b)),
                                                  _mm256_madd_epi16(odd(a), odd(b))));
}
inline __m256i dot_words(__m256i acc, __m256i a, __m256i b) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

inline Floats dot_bf16(Floats sum, Integers a, Integers b) {
    return halves([](auto s, auto x, auto y) { return add_pairs_bf16(s, x, y); }, sum, a, b);
}

// Permutations.

inline Floats quarters(Floats a, Floats b, int choice) {  // two of a, then two of b
    float from_a[16], from_b[16];
    store(from_a, a);
    store(from_b, b);
    const auto at = [choice](const float* from, int i) {
        return _mm_loadu_ps(from + 4 * (choice >> 2 * i & 3));
    };
    return {{_mm256_set_m128(at(from_a, 1), at(from_a, 0)),
             _mm256_set_m128(at(from_b, 3), at(from_b, 2))}};
}
inline __m256i gathered(__m256i index, Integers table) {  // bytes by the low six bits
    uint8_t bytes[64];
    store(bytes, table);
    __m256i to = _mm256_setzero_si256();
    for (int i = 0; i < 64; i += 16) {
        const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
        const __m256i here = _mm256_cmpeq_epi8(_mm256_and_si256(index, _mm256_set1_epi8(0x30)),
                                               _mm256_set1_epi8(static_cast<char>(i)));
        const __m256i chosen = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part),
                                                   _mm256_and_si256(index, _mm256_set1_epi8(15)));
        to = _mm256_or_si256(to, _mm256_and_si256(here, chosen));
    }
    return to;
}
inline Integers gather(Integers index, Integers table) {
    return halves([&](__m256i half) { return gathered(half, table); }, index);
}
inline Integers gather(Integers low, Integers index, Integers high) {
    const auto of_both = [&](__m256i half) {  // bit 6 becomes the sign of its byte
        return _mm256_blendv_epi8(gathered(half, low), gathered(half, high),
                                  _mm256_slli_epi16(half, 1));
    };
    return halves(of_both, index);
}
inline Integers gather_words(Integers index, Integers table) {  // by the low five bits
    uint16_t chosen[32], words[32];
    store(chosen, index);
    store(words, table);
    for (uint16_t& word : chosen) word = words[word % 32];
    return load(static_cast<const void*>(chosen));
}

inline Integers shifted_bytes(Integers places,
                              Integers from) {  // eight bits of each 64, from a place on
    uint64_t words[8];
    uint8_t bytes[64];
    store(words, from);
    store(bytes, places);
    for (int i = 0; i < 64; ++i) {
        const uint64_t word = words[i / 8];
        const int n = bytes[i] & 63;
        bytes[i] = static_cast<uint8_t>(word >> n | (n ? word << (64 - n) : 0));
    }
    return load(static_cast<const void*>(bytes));
}

// Masks: bit i of 64 for byte i, or of 16 for double word i.

inline uint64_t any_bits(Integers a, Integers b) {
    uint64_t none = 0;
    for (int i = 0; i < 2; ++i) {
        const __m256i both = _mm256_and_si256(a.half[i], b.half[i]);
        const int zeros = _mm256_movemask_epi8(_mm256_cmpeq_epi8(both, _mm256_setzero_si256()));
        none |= static_cast<uint64_t>(static_cast<uint32_t>(zeros)) << 32 * i;
    }
    return ~none;
}
inline __m256i filled(uint32_t mask) {  // bytes of -1 where it has a bit
    const __m256i index =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(mask)), index);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
}
inline Integers difference_where(Integers otherwise, uint64_t mask, Integers a, Integers b) {
    const Integers chosen = {{filled(static_cast<uint32_t>(mask)), filled(mask >> 32)}};
    const auto select = [](__m256i o, __m256i m, __m256i x, __m256i y) {
        return _mm256_blendv_epi8(o, _mm256_sub_epi8(x, y), m);
    };
    return halves(select, otherwise, chosen, a, b);
}
inline Integers chosen_where(Integers otherwise, uint64_t mask, Integers a) {
    const Integers none = {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
    return difference_where(otherwise, mask, a, none);
}
inline uint16_t no_bits(Integers a, Integers b) {
    uint32_t x[16], y[16], none = 0;
    store(x, a);
    store(y, b);
    for (int i = 0; i < 16; ++i) none |= static_cast<uint32_t>((x[i] & y[i]) == 0) << i;
    return static_cast<uint16_t>(none);
}
inline Integers lanes_where(uint16_t mask, Integers a) {
    uint32_t to[16];
    store(to, a);
    for (int i = 0; i < 16; ++i)
        if (!(mask >> i & 1)) to[i] = 0;
    return load(static_cast<const void*>(to));
}
template <int function>
inline Integers ternary(Integers a, Integers b, Integers c) {
    static_assert(function == 0xCA, "the bits of b where a has one, else those of c");
    const auto select = [](__m256i m, __m256i x, __m256i y) {
        return _mm256_or_si256(_mm256_and_si256(m, x), _mm256_andnot_si256(m, y));
    };
    return halves(select, a, b, c);
}

}  // namespace
}  // namespace emulated

#define __m512 emulated::Floats
#define __m512i emulated::Integers
#define __m512bh emulated::Integers

#define _mm512_loadu_ps(p) emulated::load(p)
#define _mm512_loadu_si512(p) emulated::load(static_cast<const void*>(p))
#define _mm512_storeu_ps(p, a) emulated::store(p, a)
#define _mm512_storeu_si512(p, a) emulated::store(static_cast<void*>(p), a)
#define _mm512_stream_ps(p, a) emulated::stream(p, a)

#define _mm512_setzero_si512() emulated::join(_mm256_setzero_si256(), _mm256_setzero_si256())
#define _mm512_set1_ps(a) emulated::join(_mm256_set1_ps(a), _mm256_set1_ps(a))
#define _mm512_set1_epi8(a) emulated::join(_mm256_set1_epi8(a), _mm256_set1_epi8(a))
#define _mm512_set1_epi16(a) emulated::join(_mm256_set1_epi16(a), _mm256_set1_epi16(a))
#define _mm512_set1_epi32(a) emulated::join(_mm256_set1_epi32(a), _mm256_set1_epi32(a))
#define _mm512_set1_epi64(a) emulated::join(_mm256_set1_epi64x(a), _mm256_set1_epi64x(a))
#define _mm512_set_epi64(h, g, f, e, d, c, b, a) \
    emulated::join(_mm256_set_epi64x(d, c, b, a), _mm256_set_epi64x(h, g, f, e))
#define _mm512_castsi512_si256(a) (a).half[0]
#define _mm512_castsi256_si512(a) emulated::join(a, a)
#define _mm512_extracti64x4_epi64(a, n) (a).half[n]
#define _mm512_inserti64x4(a, b, n) emulated::join((a).half[0], b)  // n is 1
#define _mm512_broadcast_i64x4(a) emulated::join(a, a)
#define _mm512_broadcast_i32x4(a) \
    emulated::join(_mm256_broadcastsi128_si256(a), _mm256_broadcastsi128_si256(a))

#define _mm512_castps_si512 STERNA_HALVES(_mm256_castps_si256)
#define _mm512_castsi512_ps STERNA_HALVES(_mm256_castsi256_ps)
#define _mm512_cvtepi32_ps STERNA_HALVES(_mm256_cvtepi32_ps)
#define _mm512_cvtps_epi32 STERNA_HALVES(_mm256_cvtps_epi32)

#define _mm512_add_ps STERNA_HALVES(_mm256_add_ps)
#define _mm512_sub_ps STERNA_HALVES(_mm256_sub_ps)
#define _mm512_mul_ps STERNA_HALVES(_mm256_mul_ps)
#define _mm512_div_ps STERNA_HALVES(_mm256_div_ps)
#define _mm512_fmadd_ps STERNA_HALVES(_mm256_fmadd_ps)
#define _mm512_max_ps STERNA_HALVES(_mm256_max_ps)
#define _mm512_min_ps STERNA_HALVES(_mm256_min_ps)

#define _mm512_add_epi8 STERNA_HALVES(_mm256_add_epi8)
#define _mm512_add_epi16 STERNA_HALVES(_mm256_add_epi16)
#define _mm512_add_epi32 STERNA_HALVES(_mm256_add_epi32)
#define _mm512_sub_epi8 STERNA_HALVES(_mm256_sub_epi8)
#define _mm512_sub_epi16 STERNA_HALVES(_mm256_sub_epi16)
#define _mm512_sub_epi32 STERNA_HALVES(_mm256_sub_epi32)
#define _mm512_abs_epi8 STERNA_HALVES(_mm256_abs_epi8)
#define _mm512_min_epi8 STERNA_HALVES(_mm256_min_epi8)
#define _mm512_min_epu8 STERNA_HALVES(_mm256_min_epu8)
#define _mm512_max_epi32 STERNA_HALVES(_mm256_max_epi32)
#define _mm512_and_si512 STERNA_HALVES(_mm256_and_si256)
#define _mm512_or_si512 STERNA_HALVES(_mm256_or_si256)
#define _mm512_xor_si512 STERNA_HALVES(_mm256_xor_si256)
#define _mm512_mullo_epi16 STERNA_HALVES(_mm256_mullo_epi16)
#define _mm512_madd_epi16 STERNA_HALVES(_mm256_madd_epi16)
#define _mm512_maddubs_epi16 STERNA_HALVES(_mm256_maddubs_epi16)
#define _mm512_dpbusd_epi32 STERNA_HALVES(emulated::dot_bytes)
#define _mm512_dpbssd_epi32 STERNA_HALVES(emulated::dot_signed_bytes)
#define _mm512_dpwssd_epi32 STERNA_HALVES(emulated::dot_words)
#define _mm512_dpbf16_ps(sum, a, b) emulated::dot_bf16(sum, a, b)
#define _mm256_dpbusd_avx_epi32 emulated::dot_bytes
#define _mm256_dpbssd_epi32 emulated::dot_signed_bytes
#define _mm256_dpwssd_avx_epi32 emulated::dot_words
#define _mm512_shuffle_epi8 STERNA_HALVES(_mm256_shuffle_epi8)
#define _mm512_unpacklo_epi8 STERNA_HALVES(_mm256_unpacklo_epi8)
#define _mm512_unpackhi_epi8 STERNA_HALVES(_mm256_unpackhi_epi8)
#define _mm512_unpacklo_epi16 STERNA_HALVES(_mm256_unpacklo_epi16)
#define _mm512_unpackhi_epi16 STERNA_HALVES(_mm256_unpackhi_epi16)

#define _mm512_permute_ps(a, n) STERNA_HALVES_BY(_mm256_permute_ps, a, n)
#define _mm512_slli_epi32(a, n) STERNA_HALVES_BY(_mm256_slli_epi32, a, n)
#define _mm512_srai_epi16(a, n) STERNA_HALVES_BY(_mm256_srai_epi16, a, n)
#define _mm512_srai_epi32(a, n) STERNA_HALVES_BY(_mm256_srai_epi32, a, n)
#define _mm512_srli_epi16(a, n) STERNA_HALVES_BY(_mm256_srli_epi16, a, n)
#define _mm512_srli_epi32(a, n) STERNA_HALVES_BY(_mm256_srli_epi32, a, n)
#define _mm512_shuffle_f32x4(a, b, n) emulated::quarters(a, b, n)
#define _mm512_shuffle_i32x4(a, b, n) \
    _mm512_castps_si512(emulated::quarters(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), n))
#define _mm512_ternarylogic_epi32(a, b, c, n) emulated::ternary<n>(a, b, c)

#define STERNA_WIDENED(f, a) emulated::widened([](__m128i low) { return f(low); }, a)
#define _mm512_cvtepi8_epi16(a) STERNA_WIDENED(_mm256_cvtepi8_epi16, a)
#define _mm512_cvtepi8_epi32(a) STERNA_WIDENED(_mm256_cvtepi8_epi32, a)
#define _mm512_cvtepu8_epi32(a) STERNA_WIDENED(_mm256_cvtepu8_epi32, a)
#define _mm512_cvtepu16_epi32(a) STERNA_WIDENED(_mm256_cvtepu16_epi32, a)
#define _mm512_cvtph_ps(a) STERNA_WIDENED(_mm256_cvtph_ps, a)
#define _mm512_cvtepi32_epi8(a) emulated::low_bytes(a)
#define _mm512_cvtepi32_epi16(a) emulated::low_words(a)
#define _mm512_cvtps_ph(a, rounding) emulated::to_half<rounding>(a)
#define _mm512_cvtne2ps_pbh(high, low) emulated::to_bf16(high, low)

#define _mm512_permutexvar_epi8(index, table) emulated::gather(index, table)
#define _mm512_permutexvar_epi16(index, table) emulated::gather_words(index, table)
#define _mm512_permutex2var_epi8(low, index, high) emulated::gather(low, index, high)
#define _mm512_test_epi8_mask(a, b) emulated::any_bits(a, b)
#define _mm512_mask_test_epi8_mask(mask, a, b) (mask & emulated::any_bits(a, b))
#define _mm512_mask_testn_epi8_mask(mask, a, b) (mask & ~emulated::any_bits(a, b))
#define _mm512_mask_sub_epi8(o, mask, a, b) emulated::difference_where(o, mask, a, b)
#define _mm512_multishift_epi64_epi8(places, a) emulated::shifted_bytes(places, a)
#define _mm512_mask_mov_epi8(o, mask, a) emulated::chosen_where(o, mask, a)
#define _mm512_testn_epi32_mask(a, b) emulated::no_bits(a, b)
#define _mm512_maskz_mov_epi32(mask, a) emulated::lanes_where(mask, a)
