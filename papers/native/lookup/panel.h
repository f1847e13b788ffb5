// Codes of the lookup-table formats as the bytes of a panel: for many tokens, where exact tables are given
// up for products with the same sums. Bytes of a line are rows there; a panel has four k of a row
// side by side, so what is looked up for four k is turned.
#pragma once
#include "layouts/layout.h"
#include "linear/lookup.h"
#include "linear/panel.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Looks up the weights of 64 rows at the block's k, as 0..kHighest; a byte is a row, as in the block's lines.
template <class L, int k>
inline VI weights_at(const uint8_t* block, VI signs) {
    using Code = typename L::Code;
    constexpr int i = k / Code::kWeights * L::kPlanes, j = k % Code::kWeights;
    const auto digit = [&](int code) {
        const VI line = i_load(block + 64 * (code / 2));
        return b_lookup(Code::kDigits.of[j], code % 2 ? i_shr<4>(line) : line);
    };
    const VI low = digit(i);
    if constexpr (L::kPlanes == 2) {
        const VI high = digit(i + 1);
        return b_add(low, b_add(high, high));
    } else if constexpr (Code::kMirrored) {
        return b_add(b_negate<i>(low, signs), i_set1(Code::kLevels / 2 * 0x01010101));
    } else {
        return low;
    }
}

// Decodes one part of a block into a panel of kc k; `out` is where its first row block has the block's k.
template <class L, int k = 0>
inline void decode_block(const uint8_t* block, VI signs, int64_t kc, uint8_t* out) {
    VI rows[4];
    turn_bytes({weights_at<L, k>(block, signs), weights_at<L, k + 1>(block, signs),
                weights_at<L, k + 2>(block, signs), weights_at<L, k + 3>(block, signs)},
               rows);
    STERNA_UNROLL(4)
    for (int g = 0; g < 4; ++g) i_store(out + panel_at(kc, g, 0, k), rows[g]);
    if constexpr (k + 4 < L::kK) decode_block<L, k + 4>(block, signs, kc, out);
}

// Decodes the blocks that make up [k0, k1) into a panel of kc k, in which `out` is the place of k0.
template <class L>
inline void decode_blocks(const uint8_t* block, int64_t k0, int64_t k1, int64_t kc, uint8_t* out) {
    for (int64_t k = k0; k < k1; k += L::kK, block += L::kBytes, out += panel_at(kc, 0, 0, L::kK)) {
        STERNA_UNROLL(4)
        for (int line = 0; line < L::kBytes; line += kLine)
            prefetch(block + kPanelPrefetchBytes + line);
        for (int part = 0; part < kParts; ++part) {
            const uint8_t* from = block + 4 * kLanes * part;
            VI signs{};
            if constexpr (L::Code::kMirrored) signs = i_load(from + 256);
            decode_block<L>(from, signs, kc, out + panel_at(kc, 0, part, 0));
        }
    }
}

}  // namespace
