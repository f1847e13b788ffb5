// Runs linear layers on a matrix unit (AMX), if that is faster than the vectors of the unit that it extends.
#pragma once
#include "linear/layers.h"
#include "matrix/float_tiles.h"
#include "matrix/grouped_tiles.h"
#include "matrix/microblock_tiles.h"
#include "matrix/superblock_tiles.h"
#include "matrix/tiles.h"
#include "units/kernel_table.h"

namespace {

// Runs a layer that is not for a matrix unit on vectors. The activations of many tokens become plain rows, in front of the
// vectors' scratch, so many at a time.
constexpr int kPlainTokens = 512;
constexpr int64_t plain_rows_bytes(int64_t K, int64_t n) {
    return (n < kPlainTokens ? n : kPlainTokens) * K;
}
inline void linear_plain_rows(const sterna::LinearArgs& a, const sterna::FormatKernels& vectors) {
    if (a.x_block == 1) return vectors.linear(a);
    const bool ready = a.scratch_ready && a.n <= kPlainTokens;
    for (int n = 0; n < a.n; n += kPlainTokens) {
        sterna::LinearArgs some =
            layer_of_tokens(a, n, a.n - n < kPlainTokens ? a.n - n : kPlainTokens);
        auto* const rows = reinterpret_cast<int8_t*>(a.scratch);
        for (int i = 0; i < some.n && !ready; ++i)
            for (int64_t k = 0; k < a.K; k += 64)
                __builtin_memcpy(rows + i * a.ldx + k,
                                 some.xq + sterna::x_offset(i, k, a.ldx, a.x_block), 64);
        some.xq = rows;
        some.x_block = 1;
        some.scratch += plain_rows_bytes(a.K, a.n);
        some.scratch_ready = ready;
        vectors.linear(some);
    }
}

// More than kFewTokens tokens.
template <class F>
void many_on_tiles(const sterna::LinearArgs& a) {
    if constexpr (F::kSuperGroup != 0) {
        if (kSuperBlocksAlone<F> || a.groups.super())
            return grouped_tiles<SuperTileOf<F>>(a, decode_super<F>);
    }
    if constexpr (F::kMicroBlocks) {
        if (a.groups.micro()) return grouped_tiles<MicroTile<F>>(a);
    }
    if constexpr (F::kLongGroups) {
        if (a.groups.group_k && a.groups.x_group_k == sterna::kLongGroupK)
            return many_tokens<F, JoinGroups<F>>(a);
    }
    if constexpr (F::kGroupScales) {
        if (a.groups.group_k) return grouped_tiles<PlainTile<F>>(a);
    }
    if constexpr (F::kRowScales) many_tokens<F, JoinRows<F>>(a);
}

// Runs the layer, or returns that vectors should run it.
template <class F>
bool linear_matrix(const sterna::LinearArgs& a) {
    if (a.x_block > 1) {
        if (a.n < a.tile_tokens) return false;
        many_on_tiles<F>(a);
        return true;
    }
    // Levels of 128 need a second panel.
    if constexpr (F::kRowScales && !F::kHasLevel128) {
        if (!a.groups.group_k && !is_direct(a, kFewestTileTokens - 1)) {
            linear_few_tokens<F>(a);
            return true;
        }
    }
    return false;
}

template <class F>
constexpr int64_t matrix_scratch(int64_t K, int n) {
    int64_t most = n > 1 ? tiles_scratch<F>(n) : 0;
    if (n <= kFewTokens) return most;
    if constexpr (F::kGroupScales) {
        const int64_t groups = grouped_tiles_scratch<PlainTile<F>>(K, n);
        most = groups > most ? groups : most;
    }
    if constexpr (F::kSuperGroup != 0) {
        const int64_t blocks = grouped_tiles_scratch<SuperTileOf<F>>(K, n);
        most = blocks > most ? blocks : most;
    }
    return most;
}

}  // namespace
