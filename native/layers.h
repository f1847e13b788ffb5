// How a linear layer runs: straight from the decoder for a few tokens, from a decoded panel for many.
#pragma once
#include <type_traits>

#include "float_panel.h"
#include "float_tiles.h"
#include "grouped.h"
#include "grouped_tiles.h"
#include "linear.h"
#include "packing.h"
#include "pair_panel.h"
#include "panel.h"
#include "superblock_tiles.h"
#include "superblocks.h"
#include "tiles.h"

namespace {

// The form of a format that few tokens are multiplied with: F::Direct, where it says one.
template <class F>
struct DirectForm {
    using type = F;
};
template <class F>
    requires requires { typename F::Direct; }
struct DirectForm<F> {
    using type = typename F::Direct;
};
template <class F>
using Direct = typename DirectForm<F>::type;

// Whether a step goes straight from the decoder, which `most` is this unit's guess for.
inline bool is_direct(const sterna::LinearArgs& a, int most) {
    return a.n <= (a.direct_tokens ? a.direct_tokens : most);
}

template <class F, class Blocks, class PanelBlocks = Blocks>
void linear_vectors(const sterna::LinearArgs& a) {
    if (is_direct(a, F::kDirectTokens)) return linear_direct<F, Blocks>(a);
    if constexpr (F::kInteger) {
        linear_panel<F, PanelBlocks>(a);
    } else {
        linear_float_panel<F>(a);
    }
}

template <class F>
void linear_superblocks(const sterna::LinearArgs& a) {
    if constexpr (kMatrixUnit) {
        if (a.x_block > 1) return grouped_tiles<SuperTile<F>>(a);
    }
    using Sums = SuperSums<F>;
    using Blocks = GroupedBlocks<Sums, SuperGroups<Sums>>;
    if constexpr (Sums::kPairs) {
        linear_vectors<F, Blocks, PairBlocks<Sums, SuperGroups<Sums>>>(a);
    } else {
        linear_vectors<F, Blocks, std::conditional_t<kScaled<F>, ScaledBlocks<F>, Blocks>>(a);
    }
}

template <class F>
void linear_long_groups(const sterna::LinearArgs& a) {
    if constexpr (kMatrixUnit) {
        if (a.x_block > 1) return many_tokens<F, AddedGroups<F>>(a);
    }
    using Few = Direct<F>;
    linear_vectors<F, GroupedBlocks<Few, PlainGroups<Few, sterna::kLongGroupK>>,
                   GroupedBlocks<F, PlainGroups<F, sterna::kLongGroupK>>>(a);
}

template <class F>
void linear_layer(const sterna::LinearArgs& a) {
    if constexpr (F::kInteger) {
        if constexpr (F::kSuperGroup != 0) {
            if (a.groups.super()) return linear_superblocks<F>(a);
        }
        if (a.groups.group) {
            if constexpr (F::kLongGroups) {
                if (a.groups.x_group == sterna::kLongGroupK) return linear_long_groups<F>(a);
            }
            if constexpr (kMatrixUnit) {
                if (a.x_block > 1) return grouped_tiles<PlainTile<F>>(a);
            }
            constexpr bool kPairs = F::kEvenOffset && pairs_fit<F>(F::kMaxByte, kGroupK);
            using Sums = std::conditional_t<kPairs, PairSums<F, kGroupK>, F>;
            using Groups = PlainGroups<Sums, kGroupK>;
            using Blocks = GroupedBlocks<Sums, Groups>;
            using Few = std::conditional_t<kPairs, PairSums<Direct<F>, kGroupK>, Direct<F>>;
            using FewBlocks = GroupedBlocks<Few, PlainGroups<Few, kGroupK>>;
            if constexpr (kPairSums16 && F::kEvenOffset) {
                if (!a.groups.minima)
                    return linear_vectors<F, FewBlocks, PairBlocks<Sums, Groups>>(a);
            }
            return linear_vectors<F, FewBlocks, Blocks>(a);
        }
        if constexpr (kMatrixUnit) {
            const bool tiles =
                F::kTop ? a.n > sterna::kFewTokens : !is_direct(a, kFewestTileTokens - 1);
            if (tiles) return linear_tiles<F>(a);
        }
    }
    linear_vectors<F, RowBlocks<Direct<F>>, RowBlocks<F>>(a);
}

// A row of real weights where scales are in groups.
template <class F>
void weight_values(const sterna::RowArgs& a, const sterna::GroupScales& s, int z2) {
    if constexpr (F::kSuperGroup != 0) {
        if (s.super()) return super_values<F>(a, s);
    }
    if constexpr (F::kGroupScales) group_values<F>(a, s, z2);
}

// A format that does not read its codes step by step says itself what it takes.
template <class F>
int64_t tile_bytes(int64_t K) {
    if constexpr (requires { F::tile_bytes(K); }) {
        return F::tile_bytes(K);
    } else {
        return K / F::kStepK * F::kStepBytes;
    }
}

template <class F>
int64_t scratch_bytes(int64_t K, int n) {
    if constexpr (requires { F::scratch_bytes(K, n); }) {
        return F::scratch_bytes(K, n);
    } else {
        int64_t bytes = 0;
        if constexpr (F::kInteger) {
            if constexpr (F::kGroupScales || F::kSuperGroup != 0) bytes = token_terms_bytes(K, n);
            if (n > 1) bytes += panel_scratch<F>(K) + grouped_scratch<F>(K);
            if constexpr (kMatrixUnit) {
                const int64_t tiles = n > 1 ? tiles_scratch<F>(n) : 0;
                if (tiles > bytes) bytes = tiles;
                if (n > sterna::kFewTokens) {
                    const int64_t groups = grouped_tiles_scratch<PlainTile<F>>(K, n);
                    if (groups > bytes) bytes = groups;
                    if constexpr (F::kSuperGroup != 0) {
                        const int64_t blocks = grouped_tiles_scratch<SuperTile<F>>(K, n);
                        if (blocks > bytes) bytes = blocks;
                    }
                }
            }
        } else {
            if (n > 1) bytes = FloatPanel<F>::bytes();
        }
        return bytes;
    }
}

int x_block([[maybe_unused]] int n) {
    if constexpr (kMatrixUnit) return tiles_x_block(n);
    return 1;
}

}  // namespace
