#include "rounding/nearest_sums.h"

#include <algorithm>

namespace sterna {

namespace {

// Groups that are summed at a time: their sums stay in the first cache.
constexpr int kGroups = 64;

// NaN becomes `low`: any levels make a scale that may be tried.
float bounded(float r, float low, float high) {
    r = r > low ? r : low;
    return r < high ? r : high;
}

// To the nearest whole number, |r| < 2^22, of two the even one: the sum has no bits for fractions.
float whole(float r) { return (r + 12582912.0f) - 12582912.0f; }

int ceiling(float r) {
    const int truncated = static_cast<int>(r);
    return truncated + (static_cast<float>(truncated) < r);
}

// The levels nearest to `count` ratios, in their place.
void to_levels(const NearestLevels& l, int count, float* ratios) {
    for (int g = 0; g < count; ++g) ratios[g] = bounded(ratios[g], l.low, l.high);
    if (l.of_halves) {
        int at[kGroups];
        for (int g = 0; g < count; ++g)
            at[g] = ceiling(2 * ratios[g]) - 2 * static_cast<int>(l.low);
        for (int g = 0; g < count; ++g) ratios[g] = l.of_halves[at[g]];
    } else if (l.step == 1) {
        for (int g = 0; g < count; ++g) ratios[g] = whole(ratios[g]);
    } else {
        for (int g = 0; g < count; ++g)
            ratios[g] = whole((ratios[g] - l.low) / l.step) * l.step + l.low;
    }
}

}  // namespace

template <class T>
void nearest_sums(const NearestSums& a, T* xq, T* qq, T* eq) {
    std::fill_n(xq, a.G, T{});
    std::fill_n(qq, a.G, T{});
    std::fill_n(eq, a.G, T{});
    for (int64_t start = 0; start < a.G; start += kGroups) {
        const int count = static_cast<int>(std::min<int64_t>(kGroups, a.G - start));
        float q[kGroups], shared[kGroups];
        for (int64_t k = 0; k < a.n; ++k) {
            const int64_t row = k * a.G + start;
            const float *x = a.x + row, *ex = a.ex + row, *e = shared;
            const float* inverse = a.inverse + start;
            if (a.e_is_shared)
                std::fill_n(shared, count, a.e[k]);
            else
                e = a.e + row;
            if (a.minimum) {
                const float* minimum = a.minimum + start;
                for (int g = 0; g < count; ++g) q[g] = (x[g] - minimum[g]) * inverse[g];
            } else {
                for (int g = 0; g < count; ++g) q[g] = x[g] * inverse[g];
            }
            to_levels(a.levels, count, q);
            T *xq_here = xq + start, *qq_here = qq + start, *eq_here = eq + start;
            for (int g = 0; g < count; ++g) xq_here[g] += static_cast<T>(ex[g] * q[g]);
            for (int g = 0; g < count; ++g) qq_here[g] += static_cast<T>(q[g] * q[g] * e[g]);
            for (int g = 0; g < count; ++g) eq_here[g] += static_cast<T>(e[g] * q[g]);
        }
    }
}

template void nearest_sums<float>(const NearestSums&, float*, float*, float*);
template void nearest_sums<double>(const NearestSums&, double*, double*, double*);

}  // namespace sterna
