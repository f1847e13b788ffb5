// A matrix unit, but for its code layouts (matrix_layouts.cpp): what the table leaves out is that of the unit that it
// extends (dispatch.cpp). CMake compiles this file as it does kernels.cpp.
#include <cstdint>

#include "attention/attention.h"
#include "matrix/attention_tiles.h"
#include "matrix/float_planes.h"
#include "matrix/peak.h"
#include "matrix/tiles.h"
#include "units/kernel_table.h"

extern "C" const sterna::KernelTable* STERNA_JOIN(sterna_kernels, STERNA_EXTENDS)();

namespace {

using TileAttention = IntegerAttention<AttentionTiles>;
inline const sterna::AttentionKernels& vector_attention() {
    return STERNA_JOIN(sterna_kernels, STERNA_EXTENDS)()->integer_attention;
}
void attention_extended(const sterna::AttentionArgs& a) {
    if (a.rows < kFewestTileRows) return vector_attention().all(a);
    attention<TileAttention>(a);
}
void chunk_extended(const sterna::AttentionArgs& a, int64_t chunk) {
    if (a.rows < kFewestTileRows) return vector_attention().chunk(a, chunk);
    attention_chunk<TileAttention>(a, chunk);
}
void index_extended(const sterna::AttentionArgs& a, const sterna::IndexArgs& index, int64_t chunk) {
    if (a.rows < kFewestTileRows) return vector_attention().index(a, index, chunk);
    index_chunk<TileAttention>(a, index, chunk);
}
int64_t attention_scratch_extended(int64_t head_dim) {
    const int64_t own = TileAttention::scratch(head_dim);
    const int64_t vectors = vector_attention().scratch(head_dim);
    return own > vectors ? own : vectors;
}

constexpr sterna::KernelTable matrix_table() {
    sterna::KernelTable t = {};
    t.isa = STERNA_ISA_NAME;
    t.extends = STERNA_EXTENDS_NAME;
    t.needs = STERNA_ISA_NEEDS;
    t.rank = STERNA_ISA_RANK;
    t.integer_attention = {attention_extended, chunk_extended, index_extended,
                           attention_scratch_extended};
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
