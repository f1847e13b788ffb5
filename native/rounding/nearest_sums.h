// Rates a scale of a group of weights: sums over the nearest levels.
#pragma once
#include <cstdint>

namespace sterna {

// Levels between two ends. Evenly spaced by `step`: of two that are equally near, the even multiple of it. Where
// `of_halves` is set any whole numbers: its element i is the level nearest to low + i / 2, of two the lower one.
struct NearestLevels {
    float low, high, step;
    const float* of_halves;
};

// G groups of n weights; a column is a group.
struct NearestSums {
    const float* x;  // [n][G]
    const float* ex;  // [n][G]: e times x
    const float* e;  // what errors count: [n][G], or [n] where all groups share it
    bool e_is_shared;
    const float* inverse;  // [G]
    const float* minimum;  // [G], or null for 0
    int64_t n, G;
    NearestLevels levels;
};

// xq, qq, eq [G]: sums of e x q, e q q and e q, where q_k is the level nearest to (x_k - minimum) * inverse. Products are
// floats, sums are T and go over k in ascending order: their bits depend on neither compiler nor CPU. T: float or double.
template <class T>
void nearest_sums(const NearestSums& a, T* xq, T* qq, T* eq);

}  // namespace sterna
