// The code layouts of one family, for one kernel unit: CMake compiles this file once for each isa/*.h and folder of
// layouts/. As in kernels.cpp, everything but the one exported function lives in an anonymous namespace.
#include <cstdint>

#include "head/rescore.h"
#include "linear/active_copies.h"
#include "linear/layers.h"
#include "units/kernel_table.h"

// Generated: the headers of layouts/FAMILY, and STERNA_LAYOUT_LIST.
#include STERNA_LAYOUTS

namespace {

template <class F>
constexpr sterna::FormatKernels format_kernels() {
    sterna::FormatKernels k = {};
    k.name = F::kName;
    k.integer = F::kInteger;
    k.tile_rows = kTileRows<F>;
    k.source_bytes = F::kSourceBytes;
    k.rows = F::kRowScales;
    k.groups = F::kGroupScales;
    if constexpr (F::kInteger) {
        k.minima = F::kMinima;
        k.long_groups = F::kLongGroups;
        k.even_offset = F::kEvenOffset;
        if constexpr (F::kTwoBits) {
            k.copy_rows = copy_rows<F>;
            k.copy_columns = copy_columns<F>;
        }
    }
    k.super_group = F::kSuperGroup;
    if constexpr (F::kSuperGroup != 0) k.super_offset = F::kSuperOffset;
    k.step_k = F::kStepK;
    k.tile_bytes = tile_bytes<F>;
    k.linear = linear_layer<F>;
    k.scratch_bytes = scratch_bytes<F>;
    k.pack = F::pack;
    k.row = F::row;
    if constexpr (F::kGroupScales || F::kSuperGroup != 0) k.values = weight_values<F>;
    k.valid = F::valid;
    if constexpr (!F::kInteger) {
        k.rescore = rescore<F>;
        k.make_shadow = make_shadow<F>;
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

#include "linear/active_copies.h"
#include "linear/layers.h"
#include "units/kernel_table.h"
