// The peak of a unit's arithmetic with all operands in registers: the ceiling of a GEMM.
#pragma once
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Products of every pair of kU and kX operands, each into its own accumulator, as a GEMM does it:
// enough chains to hide the latency, and no two products alike, or the compiler would compute them
// once.
template <int kOps, class V, class X, class Dot>
inline int64_t peak_of(int64_t ops, V (&u)[4], const X* x, V zero, Dot dot) {
    constexpr int kSums = kPanelVectors * kPanelTokens;
    constexpr int kU = 4, kX = kSums < 2 * kU ? 1 : kSums < 4 * kU ? kSums / kU : 4;
    V acc[kU][kX];
    STERNA_UNROLL(8)
    for (int i = 0; i < kU; ++i) {
        STERNA_UNROLL(8)
        for (int j = 0; j < kX; ++j) acc[i][j] = zero;
    }
    const int64_t per_round = int64_t{kOps} * kU * kX, rounds = ops / per_round + 1;
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+m"(u));  // else a round's sum could be multiplied by their number
        STERNA_UNROLL(8)
        for (int i = 0; i < kU; ++i) {
            STERNA_UNROLL(8)
            for (int j = 0; j < kX; ++j) acc[i][j] = dot(acc[i][j], u[i], x[j]);
        }
    }
    STERNA_UNROLL(8)
    for (int i = 0; i < kU; ++i) {
        STERNA_UNROLL(8)
        for (int j = 0; j < kX; ++j) {
            const V sum = acc[i][j];  // a copy: what an asm reads from memory stays there
            asm volatile("" ::"m"(sum));
        }
    }
    return rounds * per_round;
}

inline int64_t peak_int8(int64_t ops) {
    const int8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const VX x[4] = {x_load(bytes), x_load(bytes + 1), x_load(bytes + 2), x_load(bytes + 3)};
    VI u[4] = {i_set1(0x01020102), i_set1(0x02040204), i_set1(0x04080408), i_set1(0x08100810)};
    // Products are added in runs, as in panel.h; int16 sums wrap here, which takes no time.
    return peak_of<2 * 4 * kLanes>(ops, u, x, i_set1(0),
                                   [](VI a, VI b, VX c) { return run_dot(a, b, c); });
}

inline int64_t peak_f32(int64_t ops) {
    const VF x[4] = {f_set1(0.5f), f_set1(0.25f), f_set1(0.125f), f_set1(0.0625f)};
    VF u[4] = {f_set1(1.0f), f_set1(2.0f), f_set1(3.0f), f_set1(4.0f)};
    return peak_of<2 * kLanes>(ops, u, x, f_set1(0.0f),
                               [](VF a, VF b, VF c) { return f_fma(b, c, a); });
}

}  // namespace
