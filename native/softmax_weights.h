// The weights by which the sampler draws, in double. Operations are scalar_math.h's, none of them fused, so all units
// have the same bits; the compiler makes vectors of the loop.
#pragma once
#include "scalar_math.h"
#include "units/kernel_table.h"

namespace {

void softmax_weights(const sterna::SoftmaxArgs& a) {
    const double max = a.max;
    for (int64_t i = 0; i < a.count; ++i) {
        const double w =
            sterna::math::exp_d((static_cast<double>(a.logits[i]) - max) / a.temperature);
        a.weights[i] = w >= a.least ? w : 0.0;
    }
}

}  // namespace
