// Sixteen virtual lanes, whatever the unit's vector width: element i of a sum goes to lane i mod 16
// and the lanes meet in the fixed tree (8, 4, 2, 1), so that sums have the same bits everywhere.
#pragma once
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

struct F16x {  // 16 floats in native vectors
    VF v[16 / kLanes];
};

#define STERNA_EACH(EXPR)                                  \
    F16x r;                                                \
    STERNA_UNROLL(16)                                      \
    for (int i = 0; i < 16 / kLanes; ++i) r.v[i] = (EXPR); \
    return r

inline F16x l_set1(float a) { STERNA_EACH(f_set1(a)); }
inline F16x l_load(const float* p) { STERNA_EACH(f_load(p + i * kLanes)); }
inline F16x l_load_f16(const uint16_t* p) { STERNA_EACH(f_load_f16(p + i * kLanes)); }
inline void l_store(float* p, F16x a) {
    for (int i = 0; i < 16 / kLanes; ++i) f_store(p + i * kLanes, a.v[i]);
}
inline F16x l_add(F16x a, F16x b) { STERNA_EACH(f_add(a.v[i], b.v[i])); }
inline F16x l_sub(F16x a, F16x b) { STERNA_EACH(f_sub(a.v[i], b.v[i])); }
inline F16x l_mul(F16x a, F16x b) { STERNA_EACH(f_mul(a.v[i], b.v[i])); }
inline F16x l_fma(F16x a, F16x b, F16x c) { STERNA_EACH(f_fma(a.v[i], b.v[i], c.v[i])); }
inline F16x l_div(F16x a, F16x b) { STERNA_EACH(f_div(a.v[i], b.v[i])); }
inline F16x l_max(F16x a, F16x b) { STERNA_EACH(f_max(a.v[i], b.v[i])); }
inline F16x l_min(F16x a, F16x b) { STERNA_EACH(f_min(a.v[i], b.v[i])); }

// The first n of 16 floats, and `fill` in the other lanes.
inline F16x l_load_first(const float* p, int64_t n, float fill) {
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : fill;
    return l_load(lanes);
}
inline void l_store_first(float* p, int64_t n, F16x a) {
    float lanes[16];
    l_store(lanes, a);
    for (int i = 0; i < n && i < 16; ++i) p[i] = lanes[i];
}

// Rounded correctly, as IEEE 754 says, on every unit.
inline F16x l_sqrt(F16x a) {
    float lanes[16];
    l_store(lanes, a);
    for (float& x : lanes) x = __builtin_sqrtf(x);
    return l_load(lanes);
}

// The fixed tree: lane i with lane i + n, for n = 8, 4, 2, 1; the result is in every lane.
template <int n = kLanes / 2, class Combine>
inline VF fold_lanes(VF a, Combine combine) {
    a = combine(a, f_swap<n>(a));
    if constexpr (n > 1) return fold_lanes<n / 2>(a, combine);
    return a;
}
template <class Combine>
inline float fold(VF a, Combine combine) {
    float lanes[kLanes];
    f_store(lanes, fold_lanes(a, combine));
    return lanes[0];
}
template <class Combine>
inline float fold(F16x a, Combine combine) {
    for (int n = 16 / kLanes / 2; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) a.v[i] = combine(a.v[i], a.v[i + n]);
    return fold(a.v[0], combine);
}
template <class Combine>
inline int32_t fold(VI a, Combine combine) {
    const auto of_bits = [&](VF x, VF y) { return f_bits(combine(i_bits(x), i_bits(y))); };
    int32_t lanes[kLanes];
    i_store(lanes, i_bits(fold_lanes(f_bits(a), of_bits)));
    return lanes[0];
}
// By lambdas: GCC 12 calls i_add through a pointer at -O2.
inline int32_t i_sum(VI a) {
    return fold(a, [](VI x, VI y) { return i_add(x, y); });
}
inline int32_t i_largest(VI a) {
    return fold(a, [](VI x, VI y) { return i_max(x, y); });
}
inline float l_sum(F16x a) { return fold(a, f_add); }
inline float l_reduce_max(F16x a) { return fold(a, f_max); }

// Values in sixteens, the last of which may hold fewer: f(i, part) loads and stores through `part`.
struct Sixteen {
    static F16x load(const float* p) { return l_load(p); }
    static void store(float* p, F16x a) { l_store(p, a); }
};
struct Fewer {
    int64_t n;
    F16x load(const float* p) const { return l_load_first(p, n, 0.0f); }
    void store(float* p, F16x a) const { l_store_first(p, n, a); }
};
template <class F>
inline void sixteens(int64_t width, F f) {
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) f(i, Sixteen{});
    if (i < width) f(i, Fewer{width - i});
}

// max |y| as the bits of a float: an integer maximum does not lose a NaN.
struct AbsMax {
    VI best[16 / kLanes];
    AbsMax() {
        for (auto& b : best) b = i_set1(0);
    }
    void add(F16x y) {
        for (int i = 0; i < 16 / kLanes; ++i)
            best[i] = i_max(best[i], i_and(i_bits(y.v[i]), i_set1(0x7FFFFFFF)));
    }
    int32_t bits() const {
        VI most = best[0];
        for (int i = 1; i < 16 / kLanes; ++i) most = i_max(most, best[i]);
        return i_largest(most);
    }
};
inline int32_t absmax_bits(const float* y, int64_t width) {
    AbsMax most;
    sixteens(width, [&](int64_t i, auto part) { most.add(part.load(y + i)); });
    return most.bits();
}

// x - n ln 2. ln 2 in two parts: 0x1.62e4p-1 has 15 zero bits at its end, so n times it is exact.
inline VF f_less_ln2(VF x, VF n) {
    return f_fma(n, f_set1(-1.42860682030941723212e-6f), f_fma(n, f_set1(-0.693145751953125f), x));
}
// (e^r - 1) / r for |r| <= ln 2 / 2: Taylor's series to r^6 / 7!, with a remainder below 2^-25.
inline VF f_expm1_by(VF r) {
    VF p = f_set1(1.0f / 5040);
    p = f_fma(p, r, f_set1(1.0f / 720));
    p = f_fma(p, r, f_set1(1.0f / 120));
    p = f_fma(p, r, f_set1(1.0f / 24));
    p = f_fma(p, r, f_set1(1.0f / 6));
    p = f_fma(p, r, f_set1(0.5f));
    return f_fma(p, r, f_set1(1.0f));
}
// exp(x) for x in [-87, 88], error below 2 ulp.
inline VF f_exp_within(VF x) {
    const VI n = i_round(f_mul(x, f_set1(1.44269504f)));
    const VF r = f_less_ln2(x, f_from_i(n));
    const VF p = f_fma(f_expm1_by(r), r, f_set1(1.0f));
    return f_bits(i_add(i_bits(p), i_shl<23>(n)));
}
// exp(x), NaN for NaN; below -87 it is exp(-87) (no denormals), above 88 it is exp(88).
inline VF f_exp(VF x) { return f_exp_within(f_max(f_set1(-87.0f), f_min(f_set1(88.0f), x))); }
// 2^x for x below 1, as a softmax needs it, relative error below 2^-22: the largest weight is about 1, so that
// below -86 the difference between 2^x and 2^-86 = 1e-26 is lost, and products with it are no denormals.
inline VF f_exp2_softmax(VF x) {
    x = f_max(f_set1(-86.0f), x);
    const VI n = i_round(x);
    const VF r = f_sub(x, f_from_i(n));
    // Minimax of 2^r on [-1/2, 1/2] with 2^0 = 1 kept: 2^-23.4.
    VF p = f_set1(0.0013264727f);
    p = f_fma(p, r, f_set1(0.009671513f));
    p = f_fma(p, r, f_set1(0.055507336f));
    p = f_fma(p, r, f_set1(0.24022242f));
    p = f_fma(p, r, f_set1(0.693147f));
    p = f_fma(p, r, f_set1(1.0f));
    return f_bits(i_add(i_bits(p), i_shl<23>(n)));
}
inline F16x l_exp2_softmax(F16x x) { STERNA_EACH(f_exp2_softmax(x.v[i])); }

inline VF f_abs(VF x) { return f_bits(i_and(i_bits(x), i_set1(0x7FFFFFFF))); }
inline F16x l_abs(F16x x) { STERNA_EACH(f_abs(x.v[i])); }
// tanh(x), NaN for NaN; relative error below 2^-21.
inline VF f_tanh(VF x) {
    // With e = exp(2 |x|) - 1 it is e / (e + 2), and from 10 on the float 1. e = (2^n - 1) + 2^n (exp(r) - 1) keeps
    // the digits of a small x, for which n = 0.
    const VF a = f_min(f_set1(10.0f), f_abs(x));  // in this order a NaN stays one
    const VI n = i_round(f_mul(a, f_set1(2.88539008f)));
    const VF r = f_less_ln2(f_add(a, a), f_from_i(n));
    const VF power = f_bits(i_shl<23>(i_add(n, i_set1(127))));
    const VF e = f_fma(power, f_mul(f_expm1_by(r), r), f_sub(power, f_set1(1.0f)));
    const VF t = f_div(e, f_add(e, f_set1(2.0f)));
    return f_bits(i_or(i_bits(t), i_and(i_bits(x), i_set1(INT32_MIN))));
}
inline F16x l_tanh(F16x x) { STERNA_EACH(f_tanh(x.v[i])); }
// cap * tanh(x / cap); inverse: 1 / cap.
inline F16x l_cap(F16x x, F16x cap, F16x inverse) {
    STERNA_EACH(f_mul(cap.v[i], f_tanh(f_mul(x.v[i], inverse.v[i]))));
}

// x (1 + erf(x / sqrt 2)) / 2, NaN for NaN; relative error below 2^-20 from x = -13 on, and below that less than 2^-120.
inline VF f_gelu(VF x) {
    // With Q(a) the normal distribution beyond a it is max(x, 0) - a Q(a), a = |x|; and Q(a) = exp(-a^2 / 2) t P(t),
    // t = 1 / (1 + 0.3 a), since Q(a) exp(a^2 / 2) is smooth. P: minimax of relative error for a <= 14, 2^-28.
    const VF a = f_min(f_set1(14.0f), f_abs(x));  // in this order a NaN stays one
    const VF t = f_div(f_set1(1.0f), f_fma(f_set1(0.3f), a, f_set1(1.0f)));
    VF p = f_set1(-0.0206128359f);
    p = f_fma(p, t, f_set1(0.112375811f));
    p = f_fma(p, t, f_set1(-0.228067577f));
    p = f_fma(p, t, f_set1(0.191581786f));
    p = f_fma(p, t, f_set1(-0.0792474076f));
    p = f_fma(p, t, f_set1(0.096057862f));
    p = f_fma(p, t, f_set1(0.0784255713f));
    p = f_fma(p, t, f_set1(0.110227324f));
    p = f_fma(p, t, f_set1(0.119572841f));
    p = f_fma(p, t, f_set1(0.119686633f));
    // The square's rounding error counts: for a square of 98, exp would amplify 2^-24 to 2^-17.
    const VF square = f_mul(a, a), rest = f_fma(a, a, f_sub(f_set1(0.0f), square));
    const VF e = f_exp(f_mul(square, f_set1(-0.5f)));
    const VF tail = f_mul(f_mul(f_fma(e, f_mul(rest, f_set1(-0.5f)), e), t), p);
    return f_fma(f_sub(f_set1(0.0f), a), tail, f_max(f_set1(0.0f), x));
}
// x (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + exp(-2 u)), so that nothing cancels; NaN
// for NaN. Relative error below 2^-21 (1 + |u|), and where exp(-2 u) is above exp(88) less than 2^-126 |x|.
inline VF f_gelu_tanh(VF x) {
    const VF square = f_mul(x, x);
    const VF minus_2u = f_mul(x, f_fma(square, f_set1(-0.0713548163f), f_set1(-1.59576912f)));
    return f_div(x, f_add(f_set1(1.0f), f_exp(minus_2u)));
}

// 1 / (1 + exp(-x)), NaN for NaN; below -88 it is exp(-88). Relative error below 2^-21.
inline VF f_sigmoid(VF x) {
    return f_div(f_set1(1.0f), f_add(f_set1(1.0f), f_exp(f_sub(f_set1(0.0f), x))));
}
// x / (1 + exp(-x)), NaN for NaN. Relative error below 2^-21 from -87 on, and below that less than 2^-120.
inline VF f_silu(VF x) { return f_div(x, f_add(f_set1(1.0f), f_exp(f_sub(f_set1(0.0f), x)))); }
// log(1 + exp(x)), NaN for NaN; relative error below 2^-21 from -40 on, below that it is exp(-40).
inline VF f_softplus(VF x) {
    // max(x, 0) + log(1 + e), e = exp(-|x|); and log(1 + e) = 2 atanh(t / 2), t = 2 e / (2 + e), whose series in
    // (t / 2)^2 <= 1/9 is cut off at 2^-29. -40: products of t are no denormals, and 1 + t is 1 long before.
    const VF e = f_exp(f_max(f_set1(-40.0f), f_sub(f_set1(0.0f), f_abs(x))));
    const VF t = f_div(f_add(e, e), f_add(f_set1(2.0f), e));
    const VF s = f_mul(f_mul(t, t), f_set1(0.25f));
    VF p = f_set1(1.0f / 15);
    p = f_fma(p, s, f_set1(1.0f / 13));
    p = f_fma(p, s, f_set1(1.0f / 11));
    p = f_fma(p, s, f_set1(1.0f / 9));
    p = f_fma(p, s, f_set1(1.0f / 7));
    p = f_fma(p, s, f_set1(0.2f));
    p = f_fma(p, s, f_set1(1.0f / 3));
    p = f_fma(p, s, f_set1(1.0f));
    return f_fma(t, p, f_max(f_set1(0.0f), x));
}
inline F16x l_sigmoid(F16x x) { STERNA_EACH(f_sigmoid(x.v[i])); }
inline F16x l_silu(F16x x) { STERNA_EACH(f_silu(x.v[i])); }
inline F16x l_softplus(F16x x) { STERNA_EACH(f_softplus(x.v[i])); }
inline F16x l_exp(F16x x) { STERNA_EACH(f_exp(x.v[i])); }

#undef STERNA_EACH
}  // namespace
