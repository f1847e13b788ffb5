// requires: | rank: 0 | flags: -O1 -Wno-psabi
// Vocabulary of the scalar unit, with vectors.inc: the readable meaning of every word, and the oracle of the others.
#pragma once
#include <cstdint>
#include <cstring>

#include "scalar_math.h"

namespace {

constexpr int kLanes = 16;
constexpr int kAccumulators = 4;  // vectors that a block of tokens x row blocks accumulates in
constexpr int kPanelVectors = 1, kPanelTokens = 4;  // accumulators of a panel's blocks
constexpr int kAttentionRows = 1;  // query rows that share a pass over the keys
constexpr bool kPairSums16 = false;  // dot() adds pairs of products in a saturating int16
constexpr bool kSignedDot = false;  // dot() takes u as signed bytes, so that they are at most 127

}  // namespace

#include "isa/vectors.inc"

namespace {

// The operand with which dot() and pair_dot() multiply every lane: a type of its own where an instruction takes one
// element for all lanes, or where it is not loaded as a vector. It converts to a VI.
using VX = VI;
inline VX x_load(const void* x) { return x_broadcast(x); }

}  // namespace

namespace {

#define STERNA_LANES(T, EXPR)                       \
    T r;                                            \
    for (int i = 0; i < kLanes; ++i) r[i] = (EXPR); \
    return r

inline float bits_to_float(uint32_t b) {
    float f;
    std::memcpy(&f, &b, 4);
    return f;
}
inline uint32_t float_to_bits(float f) {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    return b;
}

// a * b + c, rounded once.
inline VF f_fma(VF a, VF b, VF c) { STERNA_LANES(VF, sterna::math::fma_f(a[i], b[i], c[i])); }
// Lane i of the result is lane i ^ n.
template <int n>
inline VF f_swap(VF a) {
    STERNA_LANES(VF, a[i ^ n]);
}
// Bytes t[c & 31] of a table of 32 bytes, stored twice, whose upper half mirrors the lower around 1:
// t[16 + i] = 2 - t[i].
inline VI b_lookup_mirrored(const int8_t* t, VI code) {
    uint8_t bytes[4 * kLanes];
    i_store(bytes, code);
    for (auto& b : bytes) b = static_cast<uint8_t>(t[b & 31]);
    return i_load(bytes);
}
// kLanes bytes, a lane each; signed ones.
inline VI i_load_u8(const uint8_t* p) { STERNA_LANES(VI, p[i]); }
inline VI i_load_i8(const uint8_t* p) { STERNA_LANES(VI, static_cast<int8_t>(p[i])); }
// The index c % 16 of every byte. A unit may leave other bits where its lookup does not see them.
inline VI b_index(VI code) { return i_and(code, i_set1(0x0F0F0F0F)); }
// Bytes t[i] of a table of 16 bytes for indices of b_index, or what i_xor made of such.
inline VI b_lookup_at(const uint8_t* t, VI index) {
    uint8_t bytes[4 * kLanes];
    i_store(bytes, index);
    for (auto& b : bytes) b = t[b];
    return i_load(bytes);
}
// Bytes t[c % 16].
inline VI b_lookup(const uint8_t* t, VI code) { return b_lookup_at(t, b_index(code)); }
// The same, chosen by the high four bits.
inline VI b_lookup_high(const uint8_t* t, VI code) { return b_lookup(t, i_shr<4>(code)); }
// 16 int32 in [0, 255], kLanes at a time, as bytes.
inline void b_store(uint8_t* p, const VI* v) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(v[i / kLanes][i % kLanes]);
}
// Cuts 16 int16 (as int32, kLanes at a time) into two digits each: v = radix * high + low, high rounded
// to nearest by a 15-bit reciprocal. 16 bytes of low, 16 of high, which have to fit int8.
template <int radix>
inline void b_store_digits(uint8_t* p, const VI* v) {
    for (int i = 0; i < 16; ++i) {
        const int32_t w = v[i / kLanes][i % kLanes];
        const int32_t high = (w * ((32768 + radix / 2) / radix) + 16384) >> 15;
        p[i] = static_cast<uint8_t>(w - radix * high);
        p[16 + i] = static_cast<uint8_t>(high);
    }
}
// Narrowed to int8; values lie in [-127, 127].
inline VI w_load_i8(const int8_t* p) {
    int16_t w[2 * kLanes];
    for (int i = 0; i < 2 * kLanes; ++i) w[i] = p[i];
    return i_load(w);
}
// Bytes of a table of sixteen as 2 * kLanes int16, from the 2 i-th on. Their indices, 32, are the low and then the high
// halves of sixteen bytes.
inline VI w_load_levels(const int8_t* t, const uint8_t* p, int i) {
    int16_t w[2 * kLanes];
    for (int n = 0; n < 2 * kLanes; ++n) {
        const int at = 2 * i + n;
        w[n] = t[p[at % 16] >> at / 16 * 4 & 15];
    }
    return i_load(w);
}
inline void i_store_i8(int8_t* p, VI a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a[i]);
}
// Narrowed to int16; values lie in [-32768, 32767].
inline void i_store_i16(int16_t* p, VI a) {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(a[i]);
}
// acc + sum over a lane's four bytes of u8 * s8; needs 2 * max(u8) * 127 <= 32767 where
// kPairSums16 says so.
inline VI dot(VI acc, VI u, VX x) {
    for (int j = 0; j < 32; j += 8) acc += (u >> j & 255) * (i_shl<24>(x >> j) >> 24);
    return acc;
}
// A short run of dot products, from zero: sum + what the run has added up. Where kPairSums16 says so
// a run holds int16 sums, so that n of them need 2 * n * max(u8) * 127 <= 32767.
inline VI run_dot(VI run, VI u, VX x) { return dot(run, u, x); }
inline VI run_end(VI sum, VI run) { return i_add(sum, run); }

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31;
    const uint32_t mantissa = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7F800000 | mantissa << 13);
    if (exponent == 0) {  // subnormal: mantissa * 2^-24 is exact
        const float m = static_cast<float>(mantissa) * 5.9604644775390625e-08f;
        return bits_to_float(sign | float_to_bits(m));
    }
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline uint16_t float_to_half(float f) {  // nearest even
    const uint32_t b = float_to_bits(f), sign = (b >> 16) & 0x8000;
    uint32_t a = b & 0x7FFFFFFF;
    if (a > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | ((a >> 13) & 1023));
    if (a >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds to infinity
    if (a < 0x38800000) {  // below 2^-14: adding 0.5 rounds at 2^-24
        const float r = bits_to_float(a) + 0.5f;
        return static_cast<uint16_t>(sign | (float_to_bits(r) - 0x3F000000));
    }
    a += 0xFFF + ((a >> 13) & 1);
    return static_cast<uint16_t>(sign | (a - 0x38000000) >> 13);
}
inline VF f_load_f16(const uint16_t* p) { STERNA_LANES(VF, half_to_float(p[i])); }
inline void f_store_f16(uint16_t* p, VF a) {
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a[i]);
}
// Bit i: whether byte i of 64 is not 0.
inline uint64_t b_nonzero(const int8_t* p) {
    uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= static_cast<uint64_t>(p[i] != 0) << i;
    return mask;
}
// Takes the bytes of four lines of 64 in turn: byte 16 q + r of line j goes to byte 4 r + j of 64 at out + q * stride.
inline void b_interleave(const uint8_t* const* from, uint8_t* out, int64_t stride) {
    for (int q = 0; q < 4; ++q)
        for (int r = 0; r < 16; ++r)
            for (int j = 0; j < 4; ++j) out[q * stride + 4 * r + j] = from[j][16 * q + r];
}
inline void prefetch(const void*) {}
inline void prefetch_l2(const void*) {}
inline void prefetch_l2_surely(const void*) {}

#undef STERNA_LANES
}  // namespace
