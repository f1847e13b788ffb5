// LayerNorm of a row, (x - mean) / sqrt(variance + eps) * weight (+ bias), with sums in double: value i goes to lane
// i mod 8, those that are left over to lane 0, and the lanes meet in their order.
#pragma once
#include "units/kernel_table.h"

namespace {

// The compiler's own vectors, which it takes apart for units with narrower ones.
typedef double Doubles __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(32)));
constexpr int kDoubles = 8;

// The sum of f(x) over a row: f changes vectors, and numbers, in place.
template <class F>
inline double sum_in_doubles(const float* x, int64_t width, F f) {
    Doubles lanes = {};
    int64_t i = 0;
    for (; i + kDoubles <= width; i += kDoubles) {
        Floats part;
        __builtin_memcpy(&part, x + i, sizeof part);
        Doubles value = __builtin_convertvector(part, Doubles);
        f(value);
        lanes += value;
    }
    for (; i < width; ++i) {
        double value = x[i];
        f(value);
        lanes[0] += value;
    }
    double sum = 0;
    for (int lane = 0; lane < kDoubles; ++lane) sum += lanes[lane];
    return sum;
}

// False: a value is not finite.
bool layer_norm(const sterna::LayerNormArgs& a) {
    const auto n = static_cast<double>(a.width);
    const double mean = sum_in_doubles(a.x, a.width, [](auto&) {}) / n;
    const double squares = sum_in_doubles(a.x, a.width, [&](auto& value) {
        value -= mean;
        value *= value;
    });
    const double inverse = 1 / __builtin_sqrt(squares / n + a.eps);
    int64_t i = 0;
    for (; i + kDoubles <= a.width; i += kDoubles) {
        Floats part, weight, bias;
        __builtin_memcpy(&part, a.x + i, sizeof part);
        __builtin_memcpy(&weight, a.weight + i, sizeof weight);
        const Doubles normed = (__builtin_convertvector(part, Doubles) - mean) * inverse;
        part = __builtin_convertvector(normed, Floats) * weight;
        if (a.bias) {
            __builtin_memcpy(&bias, a.bias + i, sizeof bias);
            part += bias;
        }
        __builtin_memcpy(a.y + i, &part, sizeof part);
    }
    for (; i < a.width; ++i) {
        const float scaled = static_cast<float>((a.x[i] - mean) * inverse) * a.weight[i];
        a.y[i] = a.bias ? scaled + a.bias[i] : scaled;
    }
    return inverse > 0;  // 1 / sqrt(inf) is 0, and NaN compares false
}

}  // namespace
