// A matrix unit, but for its code layouts (matrix_layouts.cpp): what the table leaves out is that of the unit that it
// extends (dispatch.cpp). CMake compiles this file as it does kernels.cpp.
#include <cstdint>

#include "attention/attention.h"
#include "matrix/attention_tiles.h"
#include "matrix/float_planes.h"
#include "matrix/peak.h"
#include "matrix/tiles.h"
#include "units/kernel_table.h"

namespace {

constexpr sterna::KernelTable matrix_table() {
    sterna::KernelTable t = {};
    t.isa = STERNA_ISA_NAME;
    t.extends = STERNA_EXTENDS_NAME;
    t.needs = STERNA_ISA_NEEDS;
    t.rank = STERNA_ISA_RANK;
    t.attention = attention<AttentionTiles>;
    t.attention_chunk = attention_chunk<AttentionTiles>;
    t.attention_merge = attention_merge;
    t.attention_scratch = attention_scratch<AttentionTiles>;
    t.x_block = tiles_x_block;
    t.peak_int8 = peak_int8;
    t.peak_bf16 = peak_bf16;
    t.to_bf16_planes = to_bf16_planes;
    return t;
}
constexpr sterna::KernelTable kTable = matrix_table();

}  // namespace

extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
