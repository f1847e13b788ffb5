// The code layouts of one family on a unit that extends another by products of floats: those alone. CMake compiles this
// file as it does layouts.cpp.
#include <cstdint>

#include "linear/bf16_pairs.h"
#include "units/kernel_table.h"

// Generated: the headers of layouts/FAMILY, and STERNA_LAYOUT_LIST.
#include STERNA_LAYOUTS

namespace {

template <class F>
constexpr sterna::FormatKernels format_kernels() {
    sterna::FormatKernels k = {};
    k.name = F::kName;
    if constexpr (!F::kInteger) {
        if constexpr (kHasPairs<F>) k.fast = pair_kernels<F>();
    }
    return k;
}

constexpr sterna::FormatKernels kFormats[] = {
#define STERNA_LAYOUT(name) format_kernels<name>(),
    STERNA_LAYOUT_LIST
#undef STERNA_LAYOUT
};

}  // namespace

extern "C" sterna::FormatFamily STERNA_JOIN(sterna_layouts,
                                            STERNA_JOIN(STERNA_ISA_SYMBOL, STERNA_FAMILY))() {
    return {kFormats, sizeof kFormats / sizeof *kFormats};
}
