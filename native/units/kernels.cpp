// One kernel unit, but for its code layouts (layouts.cpp). CMake compiles this file once per isa/*.h, with the flags
// named in its first line; everything but the one exported function lives in an anonymous namespace.
#include <cstdint>

#include "attention/attention.h"
#include "attention/kv_pages.h"
#include "linear/active.h"
#include "rowwise.h"
#include "units/kernel_table.h"
#include "units/peak.h"

namespace {

// Activations are plain rows.
int x_block(int) { return 1; }

constexpr sterna::KernelTable unit_table() {
    sterna::KernelTable t = {};
    t.isa = STERNA_ISA_NAME;
    t.needs = STERNA_ISA_NEEDS;
    t.rank = STERNA_ISA_RANK;
    t.rowwise = rowwise;
    t.rope = rope;
    t.cap = cap;
    t.kv_store = kv_store;
    t.attention = attention<NoTiles>;
    t.attention_chunk = attention_chunk<NoTiles>;
    t.attention_merge = attention_merge;
    t.attention_scratch = attention_scratch<NoTiles>;
    t.x_block = x_block;
    t.peak_int8 = peak_int8;
    t.peak_f32 = peak_f32;
    t.list_nonzero = list_nonzero;
    t.linear_open_rows = linear_open_rows;
    t.linear_columns = linear_columns;
    return t;
}
constexpr sterna::KernelTable kTable = unit_table();

}  // namespace

extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
