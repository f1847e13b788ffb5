// on: x86_64 | requires: avx2,fma,f16c | rank: 1 | flags: -mavx2 -mfma -mf16c
// 256-bit vectors; int8 products through the saturating pair sums of vpmaddubsw.
#pragma once
#include "isa/x86_256.inc"

namespace {

constexpr bool kPairSums16 = true;

inline VI dot(VI acc, VI u, VI x) {
    const __m256i pairs = _mm256_maddubs_epi16(u, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline VI run_dot(VI run, VI u, VI x) { return _mm256_add_epi16(run, _mm256_maddubs_epi16(u, x)); }
inline VI run_end(VI sum, VI run) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(run, _mm256_set1_epi16(1)));
}
inline VI pair_dot(VI acc, VI a, VI b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
// The even bytes (0) or the odd ones (1) as words. Only the unit has it where two pair_dot are faster than a dot_signed:
// on 512-bit vectors, where a mask gives x its signs, they take 1.15 times as long (Zen 4).
inline VI b_words(VI a, int odd) {
    return odd ? _mm256_srli_epi16(a, 8) : _mm256_and_si256(a, _mm256_set1_epi16(255));
}

}  // namespace
