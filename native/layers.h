// How a linear layer runs: straight from the decoder for a few tokens, from a decoded panel for many.
#pragma once
#include "linear.h"
#include "packing.h"
#include "panel.h"
#include "tiles.h"

namespace {

template <class F>
void linear_layer(const sterna::LinearArgs& a) {
    if constexpr (F::kInteger) {
        if constexpr (kMatrixUnit) {
            if (a.n >= kFewestTileTokens) return linear_tiles<F>(a);
        }
        if (a.n > kTokens<F>) return linear_panel<F>(a);
    }
    linear_direct<F>(a);
}

template <class F>
int64_t scratch_bytes(int64_t K, int n) {
    if constexpr (F::kInteger) {
        if constexpr (kMatrixUnit) {
            if (n >= kFewestTileTokens) return tiles_scratch<F>(K, n);
        }
        if (n > kTokens<F>) return panel_scratch<F>(K);
    }
    return 0;
}

int x_block([[maybe_unused]] int n) {
    if constexpr (kMatrixUnit) return tiles_x_block(n);
    return 1;
}

}  // namespace
