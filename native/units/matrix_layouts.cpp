// The code layouts of one family on a matrix unit, for the isa/*.h that extend another one: what they leave out, and
// the layers that are not theirs, is the other unit's. CMake compiles this file as it does layouts.cpp.
#include <cstdint>

#include "matrix/layers.h"
#include "units/kernel_table.h"

// Generated: the headers of layouts/FAMILY, and STERNA_LAYOUT_LIST.
#include STERNA_LAYOUTS

extern "C" sterna::FormatFamily STERNA_JOIN(sterna_layouts,
                                            STERNA_JOIN(STERNA_EXTENDS, STERNA_FAMILY))();

namespace {

// The index of a layout in its family.
enum Index : int {
#define STERNA_LAYOUT(name) k_##name,
    STERNA_LAYOUT_LIST
#undef STERNA_LAYOUT
};
inline const sterna::FormatKernels& extended(int index) {
    return STERNA_JOIN(sterna_layouts, STERNA_JOIN(STERNA_EXTENDS, STERNA_FAMILY))().formats[index];
}

template <class F, int kIndex>
void linear_extended(const sterna::LinearArgs& a) {
    if constexpr (F::kOnMatrix) {
        if (linear_matrix<F>(a)) return;
    }
    linear_plain_rows(a, extended(kIndex));
}
template <class F, int kIndex>
int64_t scratch_extended(int64_t K, int n) {
    const bool all = !F::kOnMatrix || n < sterna::kMostVectorTokens;
    const int on_vectors = all ? n : sterna::kMostVectorTokens;
    // Also where tokens are few: an expert has some rows of a step whose rows are in blocks.
    const int64_t vectors =
        plain_rows_bytes(K, on_vectors) + extended(kIndex).scratch_bytes(K, on_vectors);
    if constexpr (!F::kOnMatrix) return vectors;
    const int64_t own = matrix_scratch<F>(K, n);
    return own > vectors ? own : vectors;
}

template <class F, int kIndex>
constexpr sterna::FormatKernels format_kernels() {
    sterna::FormatKernels k = {};
    k.name = F::kName;
    if constexpr (F::kInteger) {
        k.linear = linear_extended<F, kIndex>;
        k.scratch_bytes = scratch_extended<F, kIndex>;
    } else if constexpr (F::kPlanes != 0) {
        k.fast = fast_kernels<F>();
    }
    return k;
}

constexpr sterna::FormatKernels kFormats[] = {
#define STERNA_LAYOUT(name) format_kernels<name, k_##name>(),
    STERNA_LAYOUT_LIST
#undef STERNA_LAYOUT
};

}  // namespace

extern "C" sterna::FormatFamily STERNA_JOIN(sterna_layouts,
                                            STERNA_JOIN(STERNA_ISA_SYMBOL, STERNA_FAMILY))() {
    return {kFormats, sizeof kFormats / sizeof *kFormats};
}

#include "matrix/layers.h"
#include "units/kernel_table.h"
