// on: x86_64 | requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl | rank: 4 | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
// 512-bit vectors without VNNI: Skylake-X. Cascade Lake runs it too: it has VNNI, but not the VBMI
// that the avx512 unit asks for.
#pragma once
#include "isa/x86_512.inc"

namespace {

constexpr bool kPairSums16 = true;

inline VI b_index(VI code) { return _mm512_and_si512(code, _mm512_set1_epi8(15)); }
inline VI b_lookup_at(const uint8_t* t, VI index) { return _mm512_shuffle_epi8(b_table(t), index); }
inline VI b_lookup(const uint8_t* t, VI code) { return b_lookup_at(t, b_index(code)); }
inline VI b_lookup_high(const uint8_t* t, VI code) { return b_lookup(t, i_shr<4>(code)); }
inline VI b_lookup_mirrored(const int8_t* t, VI code) {
    const __m512i half =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t)));
    const __m512i low = _mm512_shuffle_epi8(half, _mm512_and_si512(code, _mm512_set1_epi8(15)));
    const __mmask64 mirrored = _mm512_test_epi8_mask(code, _mm512_set1_epi8(16));
    return _mm512_mask_sub_epi8(low, mirrored, _mm512_set1_epi8(2), low);
}
inline VI dot(VI acc, VI u, VI x) {
    const __m512i pairs = _mm512_maddubs_epi16(u, x);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline VI run_dot(VI run, VI u, VI x) { return _mm512_add_epi16(run, _mm512_maddubs_epi16(u, x)); }
inline VI run_end(VI sum, VI run) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(run, _mm512_set1_epi16(1)));
}
inline VI pair_dot(VI acc, VI a, VI b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }

}  // namespace
