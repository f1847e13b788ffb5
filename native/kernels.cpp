// One kernel unit. CMake compiles this file once per isa/*.h, with the flags named in its first
// line; everything but the one exported function lives in an anonymous namespace.
#include <cstdint>

#include STERNA_ISA_HEADER

#include "active.h"
#include "attention.h"
#include "kernel_table.h"
#include "kv_pages.h"
#include "layers.h"
#include "peak.h"
#include "rowwise.h"
#include STERNA_FORMATS  // generated: #include "formats/*.h"
#include "rescore.h"

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
    k.linear = F::linear;
    k.scratch_bytes = scratch_bytes<F>;
    k.pack = F::pack;
    k.row = F::row;
    if constexpr (F::kGroupScales || F::kSuperGroup != 0) k.values = weight_values<F>;
    k.valid = F::valid;
    if constexpr (!F::kInteger) {
        k.rescore = rescore<F>;
        k.coarse = coarse<F>;
        k.fast = fast_kernels<F>();
    }
    return k;
}

constexpr sterna::FormatKernels kFormats[] = {
#define STERNA_FORMAT(name) format_kernels<name>(),
    STERNA_FORMAT_LIST
#undef STERNA_FORMAT
};

constexpr sterna::KernelTable kTable = {
    STERNA_ISA_NAME,
    STERNA_ISA_NEEDS,
    STERNA_ISA_RANK,
    kFormats,
    sizeof kFormats / sizeof *kFormats,
    rowwise,
    rope,
    kv_store,
    attention,
    attention_chunk,
    attention_merge,
    attention_scratch,
    x_block,
    peak_int8,
    peak_f32,
    peak_bf16,
    split,
    list_nonzero,
    linear_open_rows,
    linear_columns,
};

}  // namespace

#define STERNA_JOIN_(a, b) a##b
#define STERNA_JOIN(a, b) STERNA_JOIN_(a, b)
extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels_, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
