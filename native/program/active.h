// Weights that a step of one token skips: rows of `up` whose gate is closed, columns of `down` whose activation is 0.
// linear/active.h has the copies of weights that this needs, and why no bit changes.
#pragma once
#include "program/tensors.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

// A copy of a weight whose rows or columns can be read one by one.
struct ActiveCopy {
    HugeBuffer data;
    int64_t stride, first_row, first_tile;  // as in ActiveCopyArgs

    // Whether a weight's layout has such copies, and the weight a scale for each row.
    static bool possible(const Weight& w, const KernelTable& kernels) {
        return kernels.formats[w.format].copy_rows && !w.groups.group_k;
    }
    // Rows from first_row on, or all columns.
    static ActiveCopy of(const Weight& w, bool columns, int64_t first_row,
                         const KernelTable& kernels, Pool& pool);
};

// The places and values of a row's codes that are not 0 (ActiveColumns).
struct Nonzeros {
    HugeBuffer places, values;
    int64_t count = 0;

    void reserve(int64_t codes);
    void list(const Activations& row, int64_t width, const KernelTable& kernels);
    ActiveColumns columns(const ActiveCopy& copy) const {
        return {copy.data.data(), copy.stride, reinterpret_cast<const int32_t*>(places.data()),
                reinterpret_cast<const int8_t*>(values.data()), count};
    }
};

}  // namespace sterna
