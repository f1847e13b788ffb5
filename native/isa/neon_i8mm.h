// on: aarch64 | requires: dotprod,i8mm | rank: 2 | extends: neon by products | flags: -march=armv8.2-a+dotprod+i8mm
// NEON with usdot, of unsigned bytes and signed ones: Neoverse V1, N2, Cortex-A710, Apple M2 and later.
#pragma once
#include "isa/neon.inc"

namespace {

constexpr bool kSignedDot = false;

inline VI dot(VI acc, VI u, VX x) { return vusdotq_lane_s32(acc, u8(u), x.low, 0); }
inline VI dot(VI acc, VI u, VI x) { return vusdotq_s32(acc, u8(u), s8(x)); }
template <class X>
inline VI run_dot(VI run, VI u, X x) {
    return dot(run, u, x);
}
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }
inline VI b_top(VI a) { return of(vshrq_n_u8(vceqq_u8(u8(a), vdupq_n_u8(255)), 7)); }

}  // namespace
