// The end of every linear layer, on vectors and on matrix units: a sum becomes an output. No other code of kernels reads
// LinearArgs::outputs, so none can forget a part of it (tests/test_layers.py).
#pragma once
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Integer sums times the scales of their rows and of a token.
inline VF scaled_integer(const sterna::LinearArgs& a, VF t, int64_t n, int64_t row) {
    return f_mul(t, f_mul(f_load(a.scale + row), f_set1(a.x_scale[n])));
}

// Float sums: rows of powers of two have a scale.
inline VF scaled_float(const sterna::LinearArgs& a, VF sum, int64_t row) {
    return a.scale ? f_mul(sum, f_load(a.scale + row)) : sum;
}

// Sums of groups: rows of micro-blocks have a float.
inline VF scaled_groups(const sterna::LinearArgs& a, VF sum, int64_t row, int tile_rows) {
    return a.groups.micro() ? f_mul(sum, f_load(a.groups.row_floats(row, a.K, tile_rows))) : sum;
}

// The layer of the tokens [n, n + count) of one with groups of 32 k, whose activations are plain rows.
inline sterna::LinearArgs layer_of_tokens(const sterna::LinearArgs& a, int64_t n, int count) {
    sterna::LinearArgs some = a;
    some.n = count;
    some.xq += n * a.ldx;
    some.x_scale += n * (a.ldx / sterna::kGroupK);
    some.x_sum += n * (a.ldx / sterna::kSumK);
    some.scratch_ready = false;  // it has what other tokens need
    const auto [to, ld, residual, bias] = a.outputs;
    some.outputs = {to + n * ld, ld, residual ? residual + n * ld : nullptr, bias};
    return some;
}

// Writes one native vector of outputs of token n. kPastCaches: they are read only after the layer, and the caches are
// left to weights; a line that held a residual is in a cache anyway.
template <bool kPastCaches = false>
inline void put_output(const sterna::LinearArgs& a, VF y, int64_t n, int64_t row) {
    if (row >= a.M) return;  // a tile may reach further beyond M than the outputs' padding
    // All by name: what is added to LinearOutputs does not compile before it is used here.
    const auto [to, ld, residual, bias] = a.outputs;
    const int64_t at = n * ld + row;
    if (residual) y = f_add(f_load(residual + at), y);
    if (bias) y = f_add(y, f_load(bias + row));
    if (kPastCaches && !residual) {
        f_stream(to + at, y);
    } else {
        f_store(to + at, y);
    }
}

}  // namespace
