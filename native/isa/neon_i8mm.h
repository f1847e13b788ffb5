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
// Two rows x 8 k of unsigned bytes by two tokens x 8 k: row_pairs.h.
inline VI rows_dot(VI acc, VI u, VI x) { return vusmmlaq_s32(acc, u8(u), s8(x)); }
inline VI x_pair(const int8_t* x, int64_t ldx) {
    const auto eight = [](const int8_t* p) { return reinterpret_cast<const int64_t*>(p); };
    const int64x2_t low = vcombine_s64(vld1_s64(eight(x)), vdup_n_s64(0));
    return vreinterpretq_s32_s64(vld1q_lane_s64(eight(x + ldx), low, 1));
}
inline VI i_zip_low(VI a, VI b) { return vzip1q_s32(a, b); }
inline VI i_zip_high(VI a, VI b) { return vzip2q_s32(a, b); }
inline VI i_unzip_even(VI a, VI b) { return vuzp1q_s32(a, b); }
inline VI i_unzip_odd(VI a, VI b) { return vuzp2q_s32(a, b); }
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }
inline VI b_top(VI a) { return of(vshrq_n_u8(vceqq_u8(u8(a), vdupq_n_u8(255)), 7)); }

}  // namespace
