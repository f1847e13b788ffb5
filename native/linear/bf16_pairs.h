// The fast arithmetic of bf16 weights on vectors: an instruction adds the two products of a pair of k.
//
// To the loops of linear.h and float_panel.h a pair of bf16 numbers is a float: four bytes of a weight, of which a step has
// 64 rows, and four of an activation. So they run K / 2 of them with another dot product. Pairs are added in ascending
// order, and of each pair first the product of its second k, then that of its first, by a fused multiply-add each
// (bf16_dot). Activations are rounded to bf16. Sums that wait stay floats, so results are the same for any number of
// tokens, threads and tiles. Those of float_tiles.h differ: a matrix unit adds in another order.
//
// Only layouts gain whose steps are such pairs: bf16 alone. An instruction has two products where a fused multiply-add has
// one. A weight of f16 takes five products of planes, and one of f32 six: two and a half and three instructions for one.
// pot8 has one plane, but its bytes would have to be made pairs first.
#pragma once
#include "layouts/layout.h"
#include "linear/layers.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

struct Bf16Pairs : FloatDot<Bf16Pairs> {
    static constexpr int kStepK = 1, kStepBytes = 256;  // a k is a pair of them

    static VF dot(VF acc, VF w, VF x) { return bf16_dot(acc, w, x); }
    static VF decode_row_block(const uint8_t* line, int part, int) {
        return f_load(reinterpret_cast<const float*>(line) + kLanes * part);
    }
};

template <class F>
constexpr bool kHasPairs = F::kBf16Tiles;

template <class F>
void linear_bf16_pairs(const sterna::LinearArgs& a) {
    static_assert(F::kStepK == 2 && F::kStepBytes == Bf16Pairs::kStepBytes);
    sterna::LinearArgs pairs = a;
    pairs.K = a.K / 2;  // K is padded to whole steps
    pairs.xf = reinterpret_cast<const float*>(a.xh);
    pairs.ldx = a.ldx / 2;
    linear_rows<Bf16Pairs>(pairs);
}

template <class F>
constexpr sterna::FastKernels pair_kernels() {
    return {linear_bf16_pairs<F>, scratch_bytes<Bf16Pairs>, false, 1, 1};
}

}  // namespace
