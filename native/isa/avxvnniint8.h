// on: x86_64 | requires: avx2,fma,f16c,avxvnni,avxvnniint8 | rank: 3 | built: by name | extends: avxvnni by products | flags: -mavx2 -mfma -mf16c -mavxvnni -mavxvnniint8
// AVX-VNNI with the dot product of signed bytes: Sierra Forest, Arrow Lake, Lunar Lake and later. LLVM's models have it no
// faster than avxvnni (docs/explanation/program.md), so a build has it only if STERNA_ISAS names it.
#pragma once
#define STERNA_SIGNED_DOT 1
#include "isa/x86_256.inc"

namespace {

constexpr bool kPairSums16 = false;

inline VI dot(VI acc, VI w, VI x) { return _mm256_dpbssd_epi32(acc, w, x); }
inline VI pair_dot(VI acc, VI a, VI b) { return _mm256_dpwssd_avx_epi32(acc, a, b); }
inline VI run_dot(VI run, VI w, VI x) { return dot(run, w, x); }
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }

}  // namespace
