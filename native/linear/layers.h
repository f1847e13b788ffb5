// How a linear layer runs on vectors: straight from the decoder for a few tokens, from a decoded panel for many.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "linear/float_panel.h"
#include "linear/joint_panel.h"
#include "linear/linear.h"
#include "linear/output.h"
#include "linear/panel.h"
#include "scales/grouped_panel.h"
#include "scales/groups.h"
#include "scales/microblocks.h"
#include "scales/superblocks.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

// Whether the tokens go straight from the decoder; `most` is this unit's guess of the most that do.
inline bool is_direct(const sterna::LinearArgs& a, int most) {
    return a.n <= (a.direct_tokens ? a.direct_tokens : most);
}

template <class F, class Blocks, class PanelBlocks = Blocks>
void linear_vectors(const sterna::LinearArgs& a) {
    // A panel's loops over integers have kFewestTokens at least.
    const bool too_few = F::kInteger && a.n < kFewestTokens;
    if (too_few || is_direct(a, F::kDirectTokens)) return linear_direct<F, Blocks>(a);
    if constexpr (F::kInteger) {
        linear_panel<F, PanelBlocks>(a);
    } else {
        linear_float_panel<F>(a);
    }
}

// A row has one scale, or none: floats.
template <class F>
void linear_rows(const sterna::LinearArgs& a) {
    if constexpr (kJoint<F>) {
        if (a.joint_tokens && a.n >= a.joint_tokens) return linear_joint<F>(a);
    }
    if constexpr (F::kInteger) {
        linear_vectors<F, RowBlocks<Direct<F>>, RowBlocks<Panel<F>>>(a);
    } else {
        linear_vectors<F, RowBlocks<F>>(a);
    }
}

// Plain scales of groups, with or without minima: a panel of Bytes where there are many tokens.
template <class F, class Few, class Bytes, int kX>
void linear_plain(const sterna::LinearArgs& a) {
    if constexpr (F::kMinima) {
        using Groups = PlainGroups<Bytes, kX, true>;
        if (a.groups.minima) return linear_vectors<F, Few, GroupedPanel<Bytes, Groups>>(a);
    }
    linear_vectors<F, Few, GroupedPanel<Bytes, PlainGroups<Bytes, kX, false>>>(a);
}

template <class F>
void linear_groups(const sterna::LinearArgs& a) {
    // Levels are whole numbers, and their sums over a group fit int16: one multiplication makes a pair an int32.
    constexpr bool kPairs = F::kEvenOffset && pairs_fit<F>(kMostLevel<F>, kGroupK);
    using Few = std::conditional_t<kPairs, PairSums<Direct<F>, kGroupK>, Direct<F>>;
    using FewBlocks = GroupedBlocks<Few, PlainGroups<Few, kGroupK, F::kMinima>>;
    linear_plain<F, FewBlocks, ShortGroupPanel<F>, kGroupK>(a);
}

template <class F>
void linear_long_groups(const sterna::LinearArgs& a) {
    using Few = Direct<F>;
    using FewBlocks = GroupedBlocks<Few, PlainGroups<Few, sterna::kLongGroupK, F::kMinima>>;
    linear_plain<F, FewBlocks, LongGroupPanel<F>, sterna::kLongGroupK>(a);
}

// Any number of tokens straight from the decoder, a few at a time.
template <class F, class Blocks>
void linear_in_turns(const sterna::LinearArgs& a) {
    if (a.n <= kFewTokens) return linear_direct<F, Blocks>(a);
    for (int n = 0; n < a.n; n += kFewTokens)
        linear_direct<F, Blocks>(
            layer_of_tokens(a, n, a.n - n < kFewTokens ? a.n - n : kFewTokens));
}

template <class F>
void linear_superblocks(const sterna::LinearArgs& a) {
    using Few = SuperSums<Direct<F>>;
    using FewGroups = SuperGroups<Few, F::kSuperGroup, kSuperCodes<F>, F::kSuperOffset == 0>;
    using Blocks = std::conditional_t<F::kByBlocks, DecodedBlocks<F, Few, FewGroups>,
                                      GroupedBlocks<Few, FewGroups>>;
    using FewBlocks = SuperBlocks<F, Blocks, FewGroups>;
    if constexpr (!F::kPanels) {
        linear_in_turns<F, FewBlocks>(a);
    } else if constexpr (kScaled<F>) {
        linear_vectors<F, FewBlocks, ScaledBlocks<F>>(a);
    } else {
        using Bytes = SuperPanel<F>;
        using Groups = SuperGroups<Bytes, F::kSuperGroup, kSuperCodes<F, Bytes>, false>;
        linear_vectors<F, FewBlocks, SuperBlocks<F, GroupedPanel<Bytes, Groups>, Groups, Bytes>>(a);
    }
}

// Micro-blocks: a float for each row, and a scale for each 16 k.
template <class F>
void linear_microblocks(const sterna::LinearArgs& a) {
    using Few = MicroSums<F>;
    using Bytes = MicroPanel<F>;
    linear_vectors<F, GroupedBlocks<Few, MicroGroups<Few>>,
                   GroupedPanel<Bytes, MicroGroups<Bytes>>>(a);
}

template <class F>
void linear_layer(const sterna::LinearArgs& a) {
    if constexpr (F::kSuperGroup != 0) {
        if (kSuperBlocksAlone<F> || a.groups.super()) return linear_superblocks<F>(a);
    }
    if constexpr (F::kMicroBlocks) {
        if (a.groups.micro()) return linear_microblocks<F>(a);
    }
    if constexpr (F::kLongGroups) {
        if (a.groups.group_k && a.groups.x_group_k == sterna::kLongGroupK)
            return linear_long_groups<F>(a);
    }
    if constexpr (F::kGroupScales) {
        if (a.groups.group_k) return linear_groups<F>(a);
    }
    if constexpr (F::kRowScales) linear_rows<F>(a);
}

// One row of a weight with scales in groups, as floats.
template <class F>
void weight_values(const sterna::RowArgs& a, const sterna::GroupScales& s, int zero_x2) {
    if constexpr (F::kSuperGroup != 0) {
        if (s.super()) return super_values<F>(a, s);
    }
    if constexpr (F::kMicroBlocks) {
        if (s.micro()) return micro_values<F>(a, s, zero_x2);
    }
    if constexpr (F::kGroupScales || F::kLongGroups) group_values<F>(a, s, zero_x2);
}

template <class F>
int64_t tile_bytes(int64_t K) {
    return bytes_before<F>(K);
}

template <class F>
int64_t scratch_bytes(int64_t K, int n) {
    if constexpr (F::kInteger) {
        const int64_t panel = n > 1 ? panel_bytes(K, F::kRowBlocks) + word_bytes<Panel<F>>(K) : 0;
        if (!kGrouped<F>) return panel;
        const int64_t panels =
            token_terms_bytes(K, n) + panel + (n > 1 ? grouped_scratch<F>(K) : 0);
        if constexpr (F::kLookup) {
            const int64_t lookups = LookupSums<F>::scratch_bytes(K, n);
            if (lookups > panels) return lookups;
        }
        return panels;
    } else {
        return n > 1 ? FloatPanel<F>::bytes() : 0;
    }
}

}  // namespace
