// exp, log, pow, sin, cos and fused multiply-add from IEEE + - * / only: the same bits on every
// machine, compiler and libm. Needs -ffp-contract=off and round-to-nearest (fpenv.h).
//
// Double arithmetic without FMA (a slow library call on old CPUs), for what runs once per token:
// sampling, log-probabilities, RoPE's angles. Kernels have a vector exp of their own (lanes.h).
//
// Largest errors found against long double libm, 10^7 random points each over these ranges:
//   exp_d          8.9e-15 relative, |z| <= 700; exp_d(0) is exactly 1
//   log_d          0.96 ulp of double, from e^-700 to e^700
//   sincos_d       2.1e-16 absolute, |x| <= 1.64e6
//
// Functions are static: a unit built for another instruction set must not export a weak copy.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace sterna::math {

// Adding and subtracting 1.5*2^(mantissa bits) rounds to the nearest integer, half to even, and
// leaves that integer in the low mantissa bits of the sum (two's complement).
constexpr double kRoundD = 0x1.8p52;

constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfD = std::numeric_limits<double>::infinity();
constexpr double kNanD = std::numeric_limits<double>::quiet_NaN();

// a * b + c, rounded once. Where the CPU has no instruction for it, the C library's function may round twice (that of
// mingw-w64 does). In double the product is exact, and a sum that is rounded to odd can be rounded again (Boldo and
// Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
static inline float fma_f(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    const double product = double{a} * double{b}, addend = c, sum = product + addend;
    const double share =
        sum - product;  // what the sum took of the addend; the error of it is exact
    const double error = (product - (sum - share)) + (addend - share);
    const auto bits = std::bit_cast<uint64_t>(sum);
    const bool even = (bits & 1) == 0, below = error < 0.0, above = error > 0.0;
    const uint64_t odd = (sum > 0.0) == above ? bits + 1 : bits - 1;  // towards the exact sum
    return static_cast<float>(even && (below || above) ? std::bit_cast<double>(odd) : sum);
#endif
}

// e^z for -708 <= z <= 709.7; below gives 0, above infinity. Written without branches, so that a
// loop over it vectorises.
static inline double exp_d(double z) {
    constexpr double kLog2e = 0x1.71547652b82fep+0;
    constexpr double kLn2Hi = 0x1.62e42feep-1;  // 32 bits: n * hi is exact for |n| < 2^21
    constexpr double kLn2Lo = 0x1.a39ef35793c76p-33;  // ln 2 - hi
    const double clamped = z < -708.0 ? -708.0 : (z > 709.7 ? 709.7 : z);
    const double t = clamped * kLog2e + kRoundD;
    const double n = t - kRoundD;
    const double r = (clamped - n * kLn2Hi) - n * kLn2Lo;
    // Taylor to r^11 by Estrin's scheme: |r| <= 0.3466, so the remainder is below 0.3466^12/12!
    // = 6.4e-15.
    const double r2 = r * r, r4 = r2 * r2;
    const double a = (1.0 + r) + r2 * (1.0 / 2 + r * (1.0 / 6));
    const double b = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
    const double c =
        (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800 + r * (1.0 / 39916800));
    const double p = a + r4 * (b + r4 * c);
    // n sits in the low bits of t; n = 1024 only beyond 709.4, hence the scale in two factors.
    const uint64_t bits = std::bit_cast<uint64_t>(t) << 52;
    const double scaled =
        (p * 2.0) * std::bit_cast<double>(bits + (static_cast<uint64_t>(1022) << 52));
    const double result = z < -708.0 ? 0.0 : (z > 709.7 ? kInfD : scaled);
    return z != z ? z : result;
}

// Natural logarithm: log(0) = -inf, log(x < 0) = NaN.
static inline double log_d(double x) {
    constexpr double kLn2Hi = 0x1.62e42feep-1;
    constexpr double kLn2Lo = 0x1.a39ef35793c76p-33;
    constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
    if (!(x > 0.0)) return x == 0.0 ? -kInfD : kNanD;
    if (x == kInfD) return x;
    int64_t exponent = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        exponent = -54;
    }
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)), so that e = 0 around 1 and nothing cancels.
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const uint64_t offset = bits - std::bit_cast<uint64_t>(kSqrtHalf);
    const int64_t e = static_cast<int64_t>(offset) >> 52;
    const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(e) << 52));
    const double n = static_cast<double>(exponent + e);
    // log m = 2 atanh(s), s = (m-1)/(m+1), |s| <= 0.1716: the terms after s^21 are below 2e-19.
    const double f = m - 1.0;
    const double s = f / (2.0 + f);
    const double w = s * s;
    double q = 2.0 / 21;
    q = q * w + 2.0 / 19;
    q = q * w + 2.0 / 17;
    q = q * w + 2.0 / 15;
    q = q * w + 2.0 / 13;
    q = q * w + 2.0 / 11;
    q = q * w + 2.0 / 9;
    q = q * w + 2.0 / 7;
    q = q * w + 2.0 / 5;
    q = q * w + 2.0 / 3;
    // 2s = f - s*f exactly in theory: f carries the leading part without a rounding error.
    const double tail = s * (f - w * q);
    return n * kLn2Hi + (f - (tail - n * kLn2Lo));
}

// x^y for x >= 0 (negative x: NaN); pow(x, 0) = 1.
static inline double pow_d(double x, double y) {
    if (y == 0.0) return 1.0;
    return exp_d(y * log_d(x));
}

struct SinCos {
    double sin, cos;
};

// |x| <= 2^20 * pi/2 = 1.64e6 (a million positions at frequency 1) at the stated error; up to 2^31
// the error grows as |x| * 2^-53; beyond, and for non-finite x, NaN.
static inline SinCos sincos_d(double x) {
    constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
    // pi/2 in three parts of 33 bits (Cody and Waite): n * part is exact for |n| < 2^20.
    constexpr double kPio2A = 0x1.921fb544p+0;
    constexpr double kPio2B = 0x1.0b4611a6p-34;
    constexpr double kPio2C = 0x1.3198a2ep-69;
    if (!(x <= 0x1p31 && x >= -0x1p31)) return {kNanD, kNanD};
    const double t = x * kTwoOverPi + kRoundD;
    const double n = t - kRoundD;
    const uint64_t quadrant = std::bit_cast<uint64_t>(t) & 3;
    const double r = ((x - n * kPio2A) - n * kPio2B) - n * kPio2C;
    // Taylor over |r| <= pi/4: the first terms left out are (pi/4)^17/17! = 5e-17 and
    // (pi/4)^18/18! = 2e-18.
    const double w = r * r;
    double p = -1.0 / 1307674368000.0;  // 15!
    p = p * w + 1.0 / 6227020800.0;
    p = p * w - 1.0 / 39916800.0;
    p = p * w + 1.0 / 362880.0;
    p = p * w - 1.0 / 5040.0;
    p = p * w + 1.0 / 120.0;
    p = p * w - 1.0 / 6.0;
    const double sin_r = r + r * (w * p);
    double q = 1.0 / 20922789888000.0;  // 16!
    q = q * w - 1.0 / 87178291200.0;
    q = q * w + 1.0 / 479001600.0;
    q = q * w - 1.0 / 3628800.0;
    q = q * w + 1.0 / 40320.0;
    q = q * w - 1.0 / 720.0;
    q = q * w + 1.0 / 24.0;
    const double cos_r = (1.0 - 0.5 * w) + w * (w * q);
    const double s = (quadrant & 1) ? cos_r : sin_r;
    const double c = (quadrant & 1) ? sin_r : cos_r;
    return {(quadrant & 2) ? -s : s, (quadrant == 1 || quadrant == 2) ? -c : c};
}

}  // namespace sterna::math
