// The scalar baselines, one product after the other. The same source is compiled without vectorisation
// ("-scalar") and with it ("-auto"), where `omp simd` allows the compiler to reorder a float sum.
#pragma once
#include "table.h"

#ifndef STERNA_POT_SUFFIX
#define STERNA_POT_SUFFIX "-scalar"
#endif

namespace {
namespace plain {

using sterna::pot::Args;
using sterna::pot::Words;

inline uint32_t addend(uint8_t code) { return (code & 0x80u) << 24 | (code & 31u) << 23; }
inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline float sum_f32(const float* a, const float* b, int64_t K) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < K; ++k) sum += a[k] * b[k];
    return sum;
}
inline int32_t sum_i32(const int32_t* a, const int32_t* b, int64_t K) {
    uint32_t sum = 0;  // unsigned: sums are modulo 2^32
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < K; ++k)
        sum += static_cast<uint32_t>(a[k]) * static_cast<uint32_t>(b[k]);
    return static_cast<int32_t>(sum);
}
inline float sum_added(const float* a, const uint8_t* b, int64_t K) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < K; ++k)
        sum += as_float(__builtin_bit_cast(uint32_t, a[k]) + addend(b[k]));
    return sum;
}
inline float sum_powers(const float* a, const uint8_t* b, int64_t K) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < K; ++k) sum += a[k] * as_float(addend(b[k]) + 0x3F800000);
    return sum;
}

// Whether adding 31 to any exponent of these activations is a multiplication.
inline bool addable(const float* x, int64_t count) {
    int32_t bad = 0;
    for (int64_t k = 0; k < count; ++k) {
        const uint32_t e = __builtin_bit_cast(uint32_t, x[k]) >> 23 & 255;
        bad |= e - 1 > 254 - 31 - 1;
    }
    return !bad;
}

template <class X, class W, X (*kSum)(const X*, const W*, int64_t)>
void run(const Args& args, int64_t j0, int64_t j1, int64_t i0, int64_t i1) {
    for (int64_t j = j0; j < j1; ++j)
        for (int64_t i = i0; i < i1; ++i)
            static_cast<X*>(args.c)[j * args.M + i] =
                kSum(static_cast<const X*>(args.a) + j * args.K,
                     static_cast<const W*>(args.b) + i * args.words, args.K);
}

inline void run_pot8(const Args& args, int64_t j0, int64_t j1, int64_t i0, int64_t i1) {
    for (int64_t j = j0; j < j1; ++j) {
        const float* x = static_cast<const float*>(args.a) + j * args.K;
        const auto rows = !args.special || addable(x, args.K) ? run<float, uint8_t, sum_added>
                                                              : run<float, uint8_t, sum_powers>;
        rows(args, j, j + 1, i0, i1);
    }
}

constexpr sterna::pot::Kernel kKernels[] = {
    {"f32" STERNA_POT_SUFFIX, Words::kF32, false, {1, 1, 1}, run<float, float, sum_f32>},
    {"i32" STERNA_POT_SUFFIX, Words::kI32, true, {1, 1, 1}, run<int32_t, int32_t, sum_i32>},
    {"pot8" STERNA_POT_SUFFIX, Words::kU8, false, {1, 1, 1}, run_pot8},
};
constexpr sterna::pot::Table kTable = {kKernels, sizeof kKernels / sizeof *kKernels};

}  // namespace plain
}  // namespace
