// Sums in double, in an order of their own, so that they have the same bits everywhere.
#pragma once
#include <cstdint>

namespace sterna {

// The sum of f(i) in eight lanes, which compilers turn into vectors.
template <class F>
double sum_of(int64_t width, F f) {
    double lanes[8] = {};
    int64_t i = 0;
    for (; i + 8 <= width; i += 8)
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += f(i + lane);
    for (; i < width; ++i) lanes[0] += f(i);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

inline double mean_of(const float* x, int64_t width) {
    return sum_of(width, [&](int64_t i) { return double{x[i]}; }) / static_cast<double>(width);
}
// The mean of (x - from)^2.
inline double mean_square(const float* x, int64_t width, double from = 0) {
    const double sum = sum_of(width, [&](int64_t i) {
        const double d = x[i] - from;
        return d * d;
    });
    return sum / static_cast<double>(width);
}

}  // namespace sterna
