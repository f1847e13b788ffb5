// on: x86_64 | requires: avx2,fma,f16c,avxvnni | rank: 2 | extends: avx2 by products | flags: -mavx2 -mfma -mf16c -mavxvnni
// AVX2 with the 256-bit dot product of Alder Lake, Zen 5 and later.
#pragma once
#include "isa/x86_256.inc"

namespace {

constexpr bool kPairSums16 = false;

#if STERNA_SIGNED_DOT
inline VI dot(VI acc, VI u, VI x) { return _mm256_dpbssd_epi32(acc, u, x); }
#else
inline VI dot(VI acc, VI u, VI x) { return _mm256_dpbusd_avx_epi32(acc, u, x); }
#endif
inline VI pair_dot(VI acc, VI a, VI b) { return _mm256_dpwssd_avx_epi32(acc, a, b); }
inline VI run_dot(VI run, VI u, VI x) { return dot(run, u, x); }
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }

}  // namespace
