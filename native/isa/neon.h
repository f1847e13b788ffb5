// on: aarch64 | requires: dotprod | rank: 1 | flags: -march=armv8.2-a+dotprod
// NEON with sdot: Cortex-A55, A75, Neoverse N1, Apple A11 and later. Both factors of a product are signed bytes.
#pragma once
#include "isa/neon.inc"

namespace {

constexpr bool kSignedDot = true;

inline VI dot(VI acc, VI u, VX x) { return vdotq_lane_s32(acc, s8(u), x.low, 0); }
inline VI dot(VI acc, VI u, VI x) { return vdotq_s32(acc, s8(u), s8(x)); }
template <class X>
inline VI run_dot(VI run, VI u, X x) {
    return dot(run, u, x);
}
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }
inline VI b_top(VI a) { return of(vshrq_n_u8(vceqq_s8(s8(a), vdupq_n_s8(127)), 7)); }

}  // namespace
