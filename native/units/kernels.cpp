// One kernel unit, but for its code layouts (layouts.cpp). CMake compiles this file once per isa/*.h, with the flags
// named in its first line; everything but the one exported function lives in an anonymous namespace.
//
// A unit that extends another has products of its own, and leaves the rest to that one (dispatch.cpp).
#include <cstdint>

#include "attention/attention.h"
#include "attention/kv_pages.h"
#include "layer_norm.h"
#include "linear/active.h"
#include "lora.h"
#include "recurrence.h"
#include "rowwise.h"
#include "softmax_weights.h"
#include "units/kernel_table.h"
#include "units/peak.h"

namespace {

// Whether this unit has products of its own alone.
constexpr bool kExtends = STERNA_EXTENDS_NAME[0] != 0;

// Activations are plain rows.
int x_block(int) { return 1; }

constexpr sterna::KernelTable unit_table() {
    sterna::KernelTable t = {};
    t.isa = STERNA_ISA_NAME;
    t.extends = STERNA_EXTENDS_NAME;
    t.needs = STERNA_ISA_NEEDS;
    t.rank = STERNA_ISA_RANK;
    t.integer_attention = attention_kernels<IntegerAttention<NoTiles>>();
    t.peak_int8 = peak_int8;
    t.linear_open_rows = linear_open_rows;
    t.linear_columns = linear_columns;
    if constexpr (!kExtends) {
        t.rowwise = rowwise;
        t.layer_norm = layer_norm;
        t.rope = rope;
        t.cap = cap;
        t.conv = conv;
        t.gates = gates;
        t.recurrence = recurrence;
        t.selective_scan = selective_scan;
        t.rg_lru = rg_lru;
        t.gated = gated;
        t.low_rank = low_rank;
        t.softmax_weights = softmax_weights;
        t.kv_store = kv_store;
        t.gather_keys = gather_keys;
        t.float_attention = attention_kernels<FloatAttention>();
        t.attention_merge = attention_merge;
        t.x_block = x_block;
        t.peak_f32 = peak_f32;
        t.list_nonzero = list_nonzero;
    }
    return t;
}
constexpr sterna::KernelTable kTable = unit_table();

}  // namespace

extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels, STERNA_ISA_SYMBOL)() {
    return &kTable;
}
