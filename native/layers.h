// How a linear layer runs: straight from the decoder for a few tokens, from a decoded panel for many.
#pragma once
#include "grouped.h"
#include "linear.h"
#include "packing.h"
#include "panel.h"
#include "tiles.h"

namespace {

template <class F, class Blocks>
void linear_vectors(const sterna::LinearArgs& a) {
    if constexpr (F::kInteger) {
        if (a.n > kTokens<F>) return linear_panel<F, Blocks>(a);
    }
    linear_direct<F, Blocks>(a);
}

template <class F>
void linear_layer(const sterna::LinearArgs& a) {
    if constexpr (F::kInteger) {
        if (a.groups.group) return linear_vectors<F, GroupedBlocks<F>>(a);
        if constexpr (kMatrixUnit) {
            if (a.n >= kFewestTileTokens) return linear_tiles<F>(a);
        }
    }
    linear_vectors<F, RowBlocks<F>>(a);
}

template <class F>
int64_t scratch_bytes(int64_t K, int n) {
    int64_t bytes = 0;
    if constexpr (F::kInteger) {
        if (n > kTokens<F>) bytes = panel_scratch<F>(K) + kGroupedScratch;
        if constexpr (kMatrixUnit) {
            const int64_t tiles = n >= kFewestTileTokens ? tiles_scratch<F>(K, n) : 0;
            if (tiles > bytes) bytes = tiles;
        }
    }
    return bytes;
}

int x_block([[maybe_unused]] int n) {
    if constexpr (kMatrixUnit) return tiles_x_block(n);
    return 1;
}

}  // namespace
