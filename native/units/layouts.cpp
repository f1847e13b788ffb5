// The code layouts of one family, for one kernel unit: CMake compiles this file once for each isa/*.h and folder of
// layouts/. As in kernels.cpp, everything but the one exported function lives in an anonymous namespace, and a unit that
// extends another has products of integers alone.
#include <cstdint>

#include "head/rescore.h"
#include "linear/active_copies.h"
#include "linear/layers.h"
#include "units/kernel_table.h"

// Generated: the headers of layouts/FAMILY, and STERNA_LAYOUT_LIST.
#include STERNA_LAYOUTS

namespace {

template <class F>
constexpr void add_products(sterna::FormatKernels& k) {
    k.linear = linear_layer<F>;
    k.scratch_bytes = scratch_bytes<F>;
    if constexpr (kJoint<F>) k.joint_scratch = joint_scratch<F>;
}

template <class F>
constexpr void add_facts(sterna::FormatKernels& k) {
    k.integer = F::kInteger;
    k.read_loop = kReadLoop<F>;
    k.tile_rows = kTileRows<F>;
    k.source_bytes = F::kSourceBytes;
    k.rows = F::kRowScales;
    k.groups = F::kGroupScales;
    if constexpr (F::kInteger) {
        k.minima = F::kMinima;
        k.micro = F::kMicroBlocks;
        k.long_groups = F::kLongGroups;
        k.even_offset = F::kEvenOffset;
    }
    k.super_group = F::kSuperGroup;
    if constexpr (F::kSuperGroup != 0) {
        k.super_offset = F::kSuperOffset;
        k.odd_scales = F::kOddScales;
    }
    k.levels = F::kLevels;
    k.level_offset = F::kLevelOffset;
    k.step_k = F::kStepK;
}

template <class F>
constexpr void add_storage(sterna::FormatKernels& k) {
    k.tile_bytes = tile_bytes<F>;
    k.pack = F::pack;
    k.row = F::row;
    if constexpr (kGrouped<F>) k.values = weight_values<F>;
    k.valid = F::valid;
    if constexpr (!F::kInteger) {
        k.rescore = rescore<F>;
        k.make_shadow = make_shadow<F>;
    } else if constexpr (F::kTwoBits) {
        k.copy_rows = copy_rows<F>;
        k.copy_columns = copy_columns<F>;
    }
}

template <class F>
constexpr sterna::FormatKernels format_kernels() {
    constexpr bool kExtends = STERNA_EXTENDS_NAME[0] != 0;
    // A unit that extends another one does so by products of integers: those of floats are the other unit's.
    constexpr bool kHasProducts = F::kInteger || !kExtends;
    sterna::FormatKernels k = {};
    k.name = F::kName;
    if constexpr (kHasProducts) add_products<F>(k);
    if constexpr (!kExtends) {
        add_facts<F>(k);
        add_storage<F>(k);
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
