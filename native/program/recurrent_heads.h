// The heads of a recurrent layer.
#pragma once
#include <algorithm>
#include <cstdint>

#include "program/fields.h"
#include "program/kv_cache.h"
#include "units/kernel_table.h"

namespace sterna {

// Value head h has the keys and queries of head h / (v_heads / k_heads), or where they are tiled of head h mod k_heads.
struct RecurrentHeads {
    int k_heads = 0, v_heads = 0;
    int64_t k_dim = 0, v_dim = 0;
    bool tiled = false;

    static RecurrentHeads of(const OpFields& f) {
        const auto in_range = [](int64_t value) { return value >= 1 && value <= kMaxHeadDim; };
        const int64_t k_heads = f.whole("heads.k_heads"), v_heads = f.whole("heads.v_heads");
        const int64_t k_dim = f.whole("heads.k_dim"), v_dim = f.whole("heads.v_dim");
        f.require(in_range(k_heads) && in_range(v_heads) && in_range(k_dim) && in_range(v_dim),
                  "heads", "and their width must lie in 1..65,536");
        f.require(v_heads % k_heads == 0, "heads", "must have a multiple of k_heads as v_heads");
        return {static_cast<int>(k_heads), static_cast<int>(v_heads), k_dim, v_dim,
                f.flag("heads.tiled")};
    }

    int k_head(int h) const { return tiled ? h % k_heads : h / (v_heads / k_heads); }
    // Of a row [q | k | v], as the convolution has it.
    int64_t k_width() const { return k_heads * k_dim; }
    int64_t v_width() const { return v_heads * v_dim; }
    int64_t channels() const { return 2 * k_width() + v_width(); }
    // Whether a state may decay so: with a number for each head, or for each row of its state.
    bool decays(size_t count) const {
        const auto n = static_cast<int64_t>(count);
        return n == v_heads || n == v_heads * k_dim;
    }
    int64_t head_floats() const { return state_blocks(v_dim) * kStateColumns * k_dim; }
};

}  // namespace sterna
